// What only UCX does: settings, the process it runs in, sockets and memory. The common promises of
// transports are in tests/conformance/transport_*.
#include "transport/ucx.h"

#include <dirent.h>
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <map>
#include <random>
#include <set>

#include "tests/allocations.h"
#include "tests/transport/ucx_pair.h"
#include "transport/ucx_sockets.h"

namespace cgx::transport {
namespace {

using ::testing::HasSubstr;

template <typename Visit>
void for_each_descriptor(Visit visit) {
  std::vector<int> open;
  DIR* folder = ::opendir("/proc/self/fd");
  while (const dirent* entry = ::readdir(folder)) {
    const int descriptor = std::atoi(entry->d_name);
    if (entry->d_name[0] != '.' && descriptor != ::dirfd(folder)) open.push_back(descriptor);
  }
  ::closedir(folder);
  for (const int descriptor : open) visit(descriptor);
}

int descriptor_count() {
  int count = 0;
  for_each_descriptor([&](int) { ++count; });
  return count;
}

TEST_F(UcxTest, RefusesTransportsThatBypassTheNetwork) {
  for (const char* name : {"posix", "sysv", "cma", "self", "shm", "sm", "all", "xpmem", ""}) {
    const Status status = refusal({.transports = {"tcp", name}});
    EXPECT_EQ(status.code(), StatusCode::kINVALID_ARGUMENT) << name;
    EXPECT_THAT(status.message(), HasSubstr("\"" + std::string(name) + "\""));
  }
}

TEST_F(UcxTest, RefusesOptionsOutOfRangeNamingThem) {
  EXPECT_THAT(refusal({.transports = {}}).message(), HasSubstr("transports"));
  EXPECT_THAT(refusal({.frame_bytes = 100}).message(), HasSubstr("frame_bytes: 100"));
  EXPECT_THAT(refusal({.port_first = 10, .port_last = 9}).message(), HasSubstr("10-9"));
  EXPECT_THAT(refusal({.devices = {"a,b"}}).message(), HasSubstr("\"a,b\""));
  EXPECT_THAT(refusal({.log_level = "loud"}).message(), HasSubstr("LOG_LEVEL=loud"));
}

TEST_F(UcxTest, RefusesADeviceThatIsNotThere) {
  const Status status = refusal({.devices = {"nosuch0"}});
  EXPECT_EQ(status.code(), StatusCode::kUNAVAILABLE);
  EXPECT_THAT(status.message(), HasSubstr("nosuch0"));
}

TEST_F(UcxTest, RefusesToWorkBesideUcxVariables) {
  ::setenv("UCX_TLS", "posix", 1);
  const Status status = refusal({});
  EXPECT_EQ(status.code(), StatusCode::kINVALID_ARGUMENT);
  EXPECT_THAT(status.message(), HasSubstr("UCX_TLS"));
  prepare_process();
  EXPECT_EQ(std::getenv("UCX_TLS"), nullptr);
  EXPECT_TRUE(refusal({}).ok());
}

TEST_F(UcxTest, HandlesNoSignal) {
  open_pair();
  for (const int signal : {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGHUP, SIGUSR1}) {
    struct sigaction action {};
    ASSERT_EQ(::sigaction(signal, nullptr, &action), 0);
    Dl_info from{};
    const bool known = ::dladdr(reinterpret_cast<void*>(action.sa_handler), &from) != 0;
    EXPECT_FALSE(known && std::string(from.dli_fname).find("libuc") != std::string::npos)
        << strsignal(signal) << " belongs to " << from.dli_fname;
  }
}

TEST_F(UcxTest, SettingsNameVersionTransportsAndFrame) {
  open(a);
  const std::string settings = a.transport->local_endpoint()->settings;
  EXPECT_THAT(settings, HasSubstr("ucx/2;lib=1."));
  EXPECT_THAT(settings, HasSubstr(";tls=tcp;"));
  EXPECT_THAT(settings, HasSubstr(";frame=262144"));
}

TEST_F(UcxTest, RefusesAPeerWithAnotherFrameSizeNamingBoth) {
  open(a);
  open(b, {.frame_bytes = 64 << 10});
  auto peer = a.transport->connect(
      {.remote = *b.transport->local_endpoint(), .inbound_tag = 1, .name = "machine 7"});
  ASSERT_FALSE(peer.ok());
  EXPECT_EQ(peer.status().code(), StatusCode::kMISMATCH);
  EXPECT_THAT(peer.status().message(), HasSubstr("machine 7"));
  EXPECT_THAT(peer.status().message(), HasSubstr("ours has \"frame=262144\""));
  EXPECT_THAT(peer.status().message(), HasSubstr("theirs \"frame=65536\""));
}

// Settings that UCX does not know are ignored without a word, so the effect is what counts.
TEST_F(UcxTest, ReassemblesOnlyWhatExceedsTheFrame) {
  for (const uint32_t frame_bytes : {64u << 10, 256u << 10, 1u << 20}) {
    open_pair({.frame_bytes = frame_bytes});
    exchange(frame_bytes);
    EXPECT_EQ(b.transport->totals().bytes_copied, 0u) << frame_bytes;
    exchange(frame_bytes + 2048);
    EXPECT_EQ(b.transport->totals().bytes_copied, frame_bytes + 2048) << frame_bytes;
    a.transport.reset();
    b.transport.reset();
  }
}

TEST_F(UcxTest, ListensInThePortRange) {
  const auto listening = [] {
    std::vector<int> ports;
    for_each_descriptor([&](int descriptor) {
      int accepts = 0;
      socklen_t size = sizeof accepts;
      sockaddr_in address{};
      socklen_t length = sizeof address;
      if (::getsockopt(descriptor, SOL_SOCKET, SO_ACCEPTCONN, &accepts, &size) == 0 && accepts &&
          ::getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &length) == 0) {
        ports.push_back(ntohs(address.sin_port));
      }
    });
    return ports;
  };
  const size_t before = listening().size();
  open(a, {.port_first = 42100, .port_last = 42199});
  EXPECT_GT(listening().size(), before);
  for (const int port : listening()) EXPECT_TRUE(port >= 42100 && port <= 42199) << port;
}

// In a process of its own: UCX makes no worker any more in one where that has happened.
struct UcxDeathTest : UcxTest {
  // One moment without descriptors, and strangers at the door just then.
  void lose_listeners() {
    const std::set<int> listening = listening_sockets();
    const SocketAddresses doors = addresses_of(listening);
    rlimit limit{};
    ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
    std::vector<Socket> strangers(doors.size());
    for (Socket& each : strangers) each = Socket(::socket(AF_INET, SOCK_STREAM, 0));
    const rlimit none{.rlim_cur = static_cast<rlim_t>(strangers.back().get()) + 1,
                      .rlim_max = limit.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
    for (size_t i = 0; i < doors.size(); ++i) {
      const auto port = static_cast<uint16_t>(std::stoul(doors[i].substr(doors[i].find(' '))));
      const SocketAddress where = SocketAddress::parse(host_of(doors[i]), port).value();
      (void)::connect(strangers[i].get(), where.get(), where.bytes);  // it may be closed by now
    }
    // One that was closed makes room for what others accept.
    ASSERT_TRUE(until([&] { return !std::all_of(listening.begin(), listening.end(), listens); }));
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  }
  static bool listens(int descriptor) {
    int accepts = 0;
    socklen_t size = sizeof accepts;
    ::getsockopt(descriptor, SOL_SOCKET, SO_ACCEPTCONN, &accepts, &size);
    return accepts == 1;
  }
  [[noreturn]] void say_what_the_next_link_is_told() {
    open_pair();
    lose_listeners();
    for (Side* side : {&a, &b}) {
      const Endpoint endpoint = *side->transport->local_endpoint();
      auto peer = side->transport->connect({.remote = endpoint, .inbound_tag = 77, .name = "peer"});
      if (!peer.ok()) std::fputs(peer.status().to_string().c_str(), stderr);
    }
    std::_Exit(0);
  }
};

// Now and then UCX itself aborts here: its thread and ours both come to the door, and the second
// finds it closed by the first.
TEST_F(UcxDeathTest, ALostListenerIsNamedToWhoeverLinksNext) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  bool told = false;
  const auto ended = [&](int status) {
    told = ::testing::ExitedWithCode(0)(status);
    return told || ::testing::KilledBySignal(SIGABRT)(status);
  };
  for (int attempt = 0; attempt < 5 && !told; ++attempt) {
    EXPECT_EXIT(say_what_the_next_link_is_told(), ended,
                "UNAVAILABLE: UCX no longer listens at [0-9.]+ [0-9]+|"
                "Assertion `listen_fd == iface->listen_fd' failed");
  }
  EXPECT_TRUE(told);
}

TEST_F(UcxTest, SetsCongestionControlOfItsSocketsOnly) {
  const int stranger = ::socket(AF_INET, SOCK_STREAM, 0);
  const auto congestion = [](int socket) {
    char name[32] = {};
    socklen_t size = sizeof name;
    return ::getsockopt(socket, IPPROTO_TCP, TCP_CONGESTION, name, &size) == 0 ? std::string(name)
                                                                               : std::string();
  };
  const std::string before = congestion(stranger);
  open_pair({.congestion = "reno"});
  exchange(1000);
  int sockets = 0;
  for_each_descriptor([&](int descriptor) {
    const std::string name = congestion(descriptor);
    if (name.empty() || descriptor == stranger) return;
    EXPECT_EQ(name, "reno") << "descriptor " << descriptor;
    ++sockets;
  });
  EXPECT_GE(sockets, 4);  // two listeners, two ends of a connection
  EXPECT_EQ(congestion(stranger), before);
  ::close(stranger);
}

TEST_F(UcxTest, RefusesAnUnknownCongestionControl) {
  const Status status = refusal({.congestion = "nosuch"});
  EXPECT_EQ(status.code(), StatusCode::kINVALID_ARGUMENT);
  EXPECT_THAT(status.message(), HasSubstr("nosuch"));
}

TEST_F(UcxTest, LeavesNoDescriptorBehind) {
  open_pair();
  exchange(1000);
  a.transport.reset();
  b.transport.reset();
  const int before = descriptor_count();
  const std::vector<std::byte> payload(4 << 20);
  for (int i = 0; i < 10; ++i) {
    open_pair();
    exchange(1000);
    if (i % 2) {  // cut in the middle
      ASSERT_TRUE(a.transport->send(a.peer, {{}, payload}, 1).ok());
    }
    a.transport.reset();
    b.transport.reset();
  }
  EXPECT_EQ(descriptor_count(), before);
}

// Ends of connections made because those of earlier links were not free again in time: a few,
// however many links there are.
constexpr int kLateEnds = 8;

// Who closes, and whether the other side has heard of it before it closes too, makes no difference.
TEST_F(UcxTest, LinksAfterTheFirstCostNoDescriptorOnEitherSide) {
  open(a);
  open(b);
  int before = 0;
  for (int i = 0; i < 106; ++i) {
    if (i == 6) before = descriptor_count();
    join();
    exchange(1000);
    Side& first = i % 2 ? a : b;
    Side& second = i % 2 ? b : a;
    const size_t downs = second.events.downs.size() + 1;
    first.transport->close(first.peer);
    if (i % 3 > 0) {
      ASSERT_TRUE(until([&] { return second.events.downs.size() == downs; }));
    }
    second.transport->close(second.peer);
  }
  EXPECT_TRUE(until([&] { return descriptor_count() <= before + kLateEnds; }))
      << descriptor_count() << " descriptors, " << before << " before";
}

// A link keeps its id until it is closed, but not its connection.
TEST_F(UcxTest, LostLinksThatAreNeverClosedCostNoDescriptor) {
  open(a);
  open(b);
  int before = 0;
  for (size_t i = 0; i < 40; ++i) {
    if (i == 4) before = descriptor_count();
    join();
    exchange(1000);
    a.transport->close(a.peer);
    ASSERT_TRUE(until([&] { return b.events.downs.size() == i + 1; }));
  }
  EXPECT_TRUE(until([&] { return descriptor_count() <= before + kLateEnds; }))
      << descriptor_count() << " descriptors, " << before << " before";
}

TEST_F(UcxTest, LinksAtOnceHaveSocketsOfTheirOwnThatLaterLinksUse) {
  open(a);
  open(b);
  constexpr int kLinks = 5;
  int after_first = 0;
  for (int round = 0; round < 20; ++round) {
    std::vector<std::pair<PeerId, PeerId>> links;
    for (int i = 0; i < kLinks; ++i) {
      join();
      exchange(1000);
      links.emplace_back(a.peer, b.peer);
    }
    for (const auto& [at_a, at_b] : links) {
      a.transport->close(at_a);
      b.transport->close(at_b);
    }
    settle();
    if (round == 0) after_first = descriptor_count();
  }
  // Once more as many, if a whole round was not free again in time.
  EXPECT_TRUE(until([&] { return descriptor_count() <= after_first + 2 * kLinks; }))
      << descriptor_count() << " descriptors, " << after_first << " after the first round";
}

// The inodes of all sockets, which no later socket has while these are open. A count would not show
// a new one: the ends of a connection that both sides began at once close whenever UCX comes to it.
std::set<ino_t> sockets() {
  std::set<ino_t> found;
  for_each_descriptor([&](int descriptor) {
    struct stat about {};
    if (::fstat(descriptor, &about) == 0 && S_ISSOCK(about.st_mode)) found.insert(about.st_ino);
  });
  return found;
}

// A stopped peer, a cut network: what the last link sent is not answered for.
TEST_F(UcxTest, AConnectionIsUsedAgainOnlyOnceThePeerHasAnswered) {
  open_pair();
  exchange(1000);
  const auto connect = [&] {
    const uint64_t inbound = ++last_tag, outbound = ++last_tag;
    auto peer = a.transport->connect({.remote = *b.transport->local_endpoint(),
                                      .inbound_tag = inbound,
                                      .outbound_tag = outbound,
                                      .name = "peer"});
    EXPECT_TRUE(peer.ok()) << peer.status().to_string();
    return peer.ok() ? *peer : PeerId{};
  };
  const auto connects_anew = [&] {
    const std::set<ino_t> before = sockets();
    a.transport->close(connect());
    const std::set<ino_t> after = sockets();
    return !std::includes(before.begin(), before.end(), after.begin(), after.end());
  };
  a.transport->close(a.peer);
  for (int round = 0; round < 1000; ++round) a.transport->progress();
  EXPECT_TRUE(connects_anew()) << "for the link that b knows nothing of";

  ASSERT_TRUE(until([&] { return b.events.downs.size() == 1; }));
  join();
  exchange(1000);
  a.transport->close(a.peer);
  EXPECT_TRUE(until([&] {
    settle();  // how long that takes is the kernel's
    return !connects_anew();
  }));
}

// The peer refused after we had connected, or was not there when we tried: UCX's count of the
// connections between the two differs from then on.
TEST_F(UcxTest, LinksThatThePeerNeverMadeLeaveNoMoreAndMoreDescriptors) {
  open(a);
  open(b);
  int before = 0;
  for (int i = 0; i < 80; ++i) {
    if (i == 20) before = descriptor_count();
    Side& lonely = i % 7 < 4 ? a : b;
    Side& other = i % 7 < 4 ? b : a;
    const uint64_t inbound = ++last_tag, outbound = ++last_tag;
    auto peer = lonely.transport->connect({.remote = *other.transport->local_endpoint(),
                                           .inbound_tag = inbound,
                                           .outbound_tag = outbound,
                                           .name = "peer"});
    ASSERT_TRUE(peer.ok()) << peer.status().to_string();
    for (int round = 0; round < 1000 * (i % 3); ++round) {
      a.transport->progress();
      b.transport->progress();
    }
    lonely.transport->close(*peer);
    if (i % 5 == 4) {
      join();
      exchange(1000);
      a.transport->close(a.peer);
      b.transport->close(b.peer);
    }
  }
  EXPECT_TRUE(until([&] { return descriptor_count() <= before + 4; }))
      << descriptor_count() << " descriptors, " << before << " before";
}

// Links made, used, closed and cut in any order, by either side, with either side standing still or
// dying meanwhile: no crash, every token once, and nothing left in the end.
TEST_F(UcxTest, RandomLivesOfLinksEndWell) {
  const int before = descriptor_count();
  const std::vector<std::byte> payload(1 << 20);
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    std::map<Side*, std::vector<PeerId>> links;
    std::map<Side*, int> pending;
    int up = 0;
    for (Side* side : {&a, &b}) {
      side->events = {};
      side->events.keeps_frames = false;
      side->events.when_frame = [&](PeerId, const Frame& frame) { up += !frame.header.empty(); };
      side->events.when_sent = [&, side](SendToken) { --pending[side]; };
      side->events.when_down = [&, side](PeerId peer) {
        if (random() % 2) side->transport->close(peer);
      };
      open(*side);
    }
    for (int deed = 0; deed < 150; ++deed) {
      Side& side = random() % 2 ? a : b;
      std::vector<PeerId>& own = links[&side];
      const PeerId peer = own.empty() ? PeerId{} : own[random() % own.size()];
      switch (random() % 16) {
        case 0 ... 1:
          join();
          up = 0;  // UCX aborts when a connection fails that is not up yet
          for (Side* each : {&a, &b}) {
            ASSERT_TRUE(each->transport->send(each->peer, {to_bytes("up"), {}}, kNoToken).ok());
          }
          ASSERT_TRUE(until([&] { return up == 2; }));
          links[&a].push_back(a.peer);
          links[&b].push_back(b.peer);
          break;
        case 2:
          side.transport->close(peer);
          break;
        case 3 ... 6: {
          const Frame frame{{}, std::span(payload).first(random() % payload.size() + 1)};
          for (int i = 0; i < 3; ++i) pending[&side] += side.transport->send(peer, frame, 1).ok();
          break;
        }
        case 7:
          if (random() % 8 > 0) break;
          side.transport.reset();
          open(side);
          own.clear();
          pending[&side] = 0;
          break;
        default:
          for (uint32_t rounds = random() % 60; rounds > 0; --rounds) side.transport->progress();
      }
    }
    for (Side* side : {&a, &b}) {
      for (const PeerId peer : links[side]) side->transport->close(peer);
    }
    EXPECT_TRUE(until([&] { return pending[&a] == 0 && pending[&b] == 0; }))
        << pending[&a] << " and " << pending[&b] << " sends without a report";
    a.transport.reset();
    b.transport.reset();
  }
  EXPECT_EQ(descriptor_count(), before);
}

long cpu_us() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1'000'000 + usage.ru_utime.tv_usec +
         usage.ru_stime.tv_usec;
}

struct UcxIdleTest : UcxTest {
  struct Cost {
    int wakeups = 0;
    long us = 0;
    bool is_nothing() const { return wakeups <= 2 && us < 5'000; }  // 1 % of half a second
  };
  Cost sleep_for_half_a_second();
};

UcxIdleTest::Cost UcxIdleTest::sleep_for_half_a_second() {
  EXPECT_TRUE(until([&] { return a.transport->arm() && b.transport->arm(); }));
  const long before = cpu_us();
  int wakeups = 0;
  for (const auto end = Clock::now() + std::chrono::milliseconds(500); Clock::now() < end;) {
    pollfd ready[2] = {{.fd = a.transport->event_fd(), .events = POLLIN, .revents = 0},
                       {.fd = b.transport->event_fd(), .events = POLLIN, .revents = 0}};
    if (::poll(ready, 2, 250) == 0) continue;
    ++wakeups;
    a.transport->progress();  // takes in what woke us; arming alone leaves it there
    b.transport->progress();
    until([&] { return a.transport->arm() && b.transport->arm(); });
  }
  return {wakeups, cpu_us() - before};
}

TEST_F(UcxIdleTest, IdleCostsNothing) {
  open_pair();
  exchange(100'000);
  Cost cost = sleep_for_half_a_second();
  // On a busy machine what was sent may still be under way.
  for (int again = 0; again < 4 && !cost.is_nothing(); ++again) cost = sleep_for_half_a_second();
  EXPECT_TRUE(cost.is_nothing()) << cost.wakeups << " wake-ups, " << cost.us << " us";
}

#ifdef CGX_COUNTS_ALLOCATIONS
class Silent : public Events {
 public:
  void on_frame(PeerId, const Frame&) override { ++frames; }
  void on_sent(PeerId, SendToken, const Status&) override { ++sent; }
  void on_peer_down(PeerId, const Status&) override {}
  uint64_t frames = 0, sent = 0;
};

TEST_F(UcxTest, SteadyStateAllocatesNothing) {
  Silent from, to;
  auto sender = make_ucx_transport({}, from), receiver = make_ucx_transport({}, to);
  ASSERT_TRUE(sender.ok() && receiver.ok());
  auto peer = (*sender)->connect({.remote = *(*receiver)->local_endpoint(),
                                  .inbound_tag = 1,
                                  .outbound_tag = 2,
                                  .name = "receiver"});
  ASSERT_TRUE(peer.ok());
  ASSERT_TRUE((*receiver)
                  ->connect({.remote = *(*sender)->local_endpoint(),
                             .inbound_tag = 2,
                             .outbound_tag = 1,
                             .name = "sender"})
                  .ok());
  const std::vector<std::byte> header(128), payload(256 << 10);
  const auto run = [&](uint64_t count) {
    const uint64_t end = from.sent + count, begin = from.sent;
    uint64_t asked = begin;
    while (from.sent < end || to.frames < end) {
      if (asked < end && asked - from.sent < 8) {
        const size_t bytes = asked % 2 ? payload.size() : 5000;
        (void)(*sender)->send(*peer, {header, std::span(payload).first(bytes)}, 1);
        ++asked;
      }
      (*sender)->progress();
      (*receiver)->progress();
    }
  };
  run(200);
  const uint64_t before = allocations.load();
  run(1000);
  EXPECT_EQ(allocations.load() - before, 0u);
}
#endif

}  // namespace
}  // namespace cgx::transport
