// The mesh over real sockets: two daemons' mesh agents, servers and dialers in one process.
#include "daemon/fleet/mesh_rpc.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <condition_variable>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <mutex>

#include "daemon/base/openssl_state.h"
#include "daemon/fleet/mesh_messages.h"
#include "tests/daemon/base/scratch_directory.h"

namespace cgx::daemon {
namespace {

using scheduler::Counter;

// As in main, where it comes first, too.
[[maybe_unused]] const bool kKept = (keep_openssl_state(), true);

class Quiet final : public scheduler::EventSink {
  void event(scheduler::EventLevel, std::string_view) override {}
};

// A whole side with threads, as the daemon makes it.
class Side final : public LinksPort {
 public:
  explicit Side(wire::InstanceId instance, const MeshTls& tls = {},
                const MeshTimes& times = {.handshake_ns = kSecond / 5})
      : instance_(instance) {
    TcpListener listener = std::move(TcpListener::open("127.0.0.1:0", "test")).value();
    address = "127.0.0.1:" + std::to_string(listener.port);
    dialer_ = std::move(make_mesh_dialer(tls, 2 * kSecond)).value();
    MeshOptions options;
    options.instance = instance;
    options.name = "side";
    options.unreachable_ns = 2 * kSecond;
    agent =
        std::make_unique<MeshAgent>(options, MeshAgent::Ports{*this, *dialer_, counters, events_});
    thread_ = std::move(AgentThread::start(*agent)).value();
    server_ =
        std::move(MeshServer::start(std::move(listener), tls, times, *agent, counters)).value();
  }
  ~Side() override {
    server_.reset();
    thread_.reset();
    dialer_.reset();
  }

  void want(const Side& other, char key) {
    LinkWish wish{.serial = 1, .request = {.job = "train", .uid = 1}, .local = {{}, "s"}};
    wish.request.job_key.fill(std::byte(key));
    wish.request.instance = other.instance_;
    wish.request.mesh_address = other.address;
    EXPECT_TRUE(agent->want(std::move(wish)));
  }
  void connect_link(LinkSerial serial, transport::ConnectOptions) override {
    agent->connected(serial, {});
  }
  void link_made(LinkSerial) override { end({}); }
  void link_refused(LinkSerial, Status why) override { end(why); }

  // How the wish ended.
  Status outcome() {
    std::unique_lock lock(mutex_);
    const bool some = ended_.wait_for(lock, std::chrono::seconds(20), [&] { return done_; });
    return some ? outcome_ : internal_error("not within 20 s");
  }

  std::string address;
  EdgeCounters counters;
  std::unique_ptr<MeshAgent> agent;

 private:
  void end(const Status& why) {
    std::lock_guard lock(mutex_);
    outcome_ = why;
    done_ = true;
    ended_.notify_all();
  }

  const wire::InstanceId instance_;
  Quiet events_;
  std::unique_ptr<MeshDialer> dialer_;
  std::unique_ptr<AgentThread> thread_;
  std::unique_ptr<MeshServer> server_;
  std::mutex mutex_;
  std::condition_variable ended_;
  Status outcome_;
  bool done_ = false;
};

TEST(MeshRpcTest, TwoDaemonsLinkOverSockets) {
  Side a({1, 1}), b({2, 2});
  a.want(b, 'k');
  b.want(a, 'k');
  EXPECT_TRUE(a.outcome().ok()) << a.outcome().to_string();
  EXPECT_TRUE(b.outcome().ok()) << b.outcome().to_string();
}

TEST(MeshRpcTest, AWrongKeyIsNamedOnBothSidesOverSockets) {
  Side a({1, 1}), b({2, 2});
  a.want(b, 'k');
  b.want(a, 'x');
  EXPECT_EQ(a.outcome().code(), StatusCode::kAUTH_FAILED);
  EXPECT_EQ(b.outcome().code(), StatusCode::kAUTH_FAILED);
}

UniqueFd connect_to(const std::string& address) {
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  to.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
  UniqueFd fd(::socket(AF_INET, SOCK_STREAM, 0));
  EXPECT_EQ(::connect(fd.get(), reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0);
  return fd;
}

// By then it has come through the door and keeps one of its places.
TEST(MeshRpcTest, WhoeverAsksNothingIsShownOut) {
  Side a({1, 1}), b({2, 2}, {}, {.handshake_ns = 2 * kSecond, .idle_ns = 300 * kMillisecond});
  const UniqueFd fd = connect_to(b.address);
  const timeval patience{.tv_sec = 15, .tv_usec = 0};
  ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  std::string opening = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
  opening += std::string("\0\0\0\4\0\0\0\0\0", 9);  // settings, none
  ASSERT_EQ(::send(fd.get(), opening.data(), opening.size(), MSG_NOSIGNAL),
            ssize_t(opening.size()));
  size_t heard = 0;
  char bytes[256];
  ssize_t got = 0;
  while ((got = ::recv(fd.get(), bytes, sizeof bytes, 0)) > 0) heard += static_cast<size_t>(got);
  EXPECT_GT(heard, 9u) << "the server's settings";
  EXPECT_FALSE(got < 0 && errno == EAGAIN) << "it may stay";
  EXPECT_EQ(b.counters.take(Counter::kcontrol_junk), 0u) << "it was no junk";
  a.want(b, 'k');
  b.want(a, 'k');
  EXPECT_TRUE(a.outcome().ok());
}

TEST(MeshRpcTest, GarbageOnTheMeshPortIsCountedAndLinksAreStillMade) {
  Side a({1, 1}), b({2, 2});
  for (const std::string junk :
       {"GET / HTTP/1.1\r\n\r\n", "\x16\x03\x01", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\njunk"}) {
    const UniqueFd fd = connect_to(b.address);
    EXPECT_EQ(::send(fd.get(), junk.data(), junk.size(), MSG_NOSIGNAL), ssize_t(junk.size()));
    char byte;
    while (::recv(fd.get(), &byte, 1, 0) > 0) {  // until it hangs up
    }
  }
  EXPECT_GE(b.counters.take(Counter::kcontrol_junk), 2u);
  a.want(b, 'k');
  b.want(a, 'k');
  EXPECT_TRUE(a.outcome().ok());
}

// An authority and a certificate for 127.0.0.1 signed by it; empty if openssl is not installed.
MeshTls make_certificates(const std::string& directory) {
  const std::string script =
      "cd " + directory +
      " && exec 2>/dev/null && K='-newkey ec -pkeyopt ec_paramgen_curve:P-256'" +
      " && openssl req -x509 $K -nodes -subj /CN=authority -keyout ca.key -out ca.pem -days 2"
      " && openssl req $K -nodes -subj /CN=daemon -keyout d.key -out d.csr"
      " && echo subjectAltName=IP:127.0.0.1 > d.ext && openssl x509 -req -in d.csr -CA ca.pem"
      " -CAkey ca.key -CAcreateserial -days 2 -extfile d.ext -out d.pem";
  if (std::system(script.c_str()) != 0) return {};
  const auto read = [&](const char* name) {
    std::ifstream file(directory + "/" + name);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  return {read("ca.pem"), read("d.pem"), read("d.key")};
}

class MeshTlsTest : public testing::Test {
 protected:
  void SetUp() override {
    if (ours.empty() || others.empty()) GTEST_SKIP() << "openssl is not installed";
  }
  ScratchDirectory one, two;
  MeshTls ours = make_certificates(one.path()), others = make_certificates(two.path());
};

TEST_F(MeshTlsTest, DaemonsWithCertificatesOfOneAuthorityLink) {
  Side a({1, 1}, ours), b({2, 2}, ours);
  a.want(b, 'k');
  b.want(a, 'k');
  EXPECT_TRUE(a.outcome().ok()) << a.outcome().to_string();
  EXPECT_TRUE(b.outcome().ok()) << b.outcome().to_string();
}

TEST_F(MeshTlsTest, OtherAuthoritiesAndPlainConnectionsDoNot) {
  Side b({2, 2}, ours);
  for (const MeshTls& tls : {others, MeshTls{}}) {
    Side a({1, 1}, tls);
    a.want(b, 'k');
    EXPECT_EQ(a.outcome().code(), StatusCode::kUNAVAILABLE);
  }
}

TEST(MeshMessagesTest, EveryMessageComesBackAsItWas) {
  Greeting greeting{1, "job", 7, {1, 2}, {3, 4}, {}, new_nonce(), "name"};
  const auto back = from_message(to_message(greeting));
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(back->nonce, greeting.nonce);
  EXPECT_EQ(back->from, greeting.from);
  Acceptance acceptance{.verdict = Verdict::refused(internal_error("x")),
                        .endpoint = {{std::byte{9}}, "s"}};
  const Arrival failed{.nonce = {std::byte(6)}, .failure = internal_error("no lanes")};
  const auto heard = from_message(to_message(failed));
  ASSERT_TRUE(heard.ok());
  EXPECT_EQ(heard->failure, failed.failure);
  EXPECT_TRUE(from_message(to_message(Arrival{}))->failure.ok());
  const auto answer = from_message(to_message(acceptance));
  ASSERT_TRUE(answer.ok());
  EXPECT_EQ(answer->verdict.why, internal_error("x"));
  EXPECT_EQ(answer->endpoint.address, acceptance.endpoint.address);
}

TEST(MeshMessagesTest, FieldsOfTheWrongSizeAreNamed) {
  v1::GreetRequest message = to_message(Greeting{});
  message.set_nonce("short");
  EXPECT_NE(from_message(message).status().message().find("nonce"), std::string::npos);
  message = to_message(Greeting{});
  message.set_job(std::string(1000, 'j'));
  EXPECT_NE(from_message(message).status().message().find("job"), std::string::npos);
}

}  // namespace
}  // namespace cgx::daemon
