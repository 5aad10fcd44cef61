// The descriptors that sessions leave to links.
#include <fcntl.h>
#include <sys/resource.h>

#include <thread>

#include "daemon/base/open_files.h"
#include "tests/daemon/ipc/ipc_fixture.h"

namespace cgx::daemon {
namespace {

using scheduler::Counter;

// The last descriptors that this process may open are the reserve; `free` more are outside it (if
// negative, so many of it are taken).
class FewDescriptors {
 public:
  explicit FewDescriptors(int free) {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    const rlimit few{kFiles, before_.rlim_max};
    EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
    while (held_.empty() || held_.back().get() < kReserve - free - 1) {
      held_.emplace_back(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    }
  }
  ~FewDescriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }

  static constexpr int kFiles = 512, kReserved = 64;
  static constexpr int kReserve = kFiles - kReserved;  // the first one of it

 private:
  rlimit before_{};
  std::vector<UniqueFd> held_;
};

int taken_of_the_reserve() {
  int taken = 0;
  for (int fd = FewDescriptors::kReserve; fd < FewDescriptors::kFiles; ++fd) {
    taken += ::fcntl(fd, F_GETFD) >= 0;
  }
  return taken;
}

// They came while there was room for connections, not for what a session needs.
TEST_F(IpcAgentTest, RefusesByNameASessionThatWouldTakeFromTheReserve) {
  options.handshake_ns = 60'000'000'000;
  start();
  std::deque<RawClient> clients;
  for (int i = 0; i < 40; ++i) clients.push_back(connect());
  while (agent->connections() < 40) std::this_thread::yield();
  const FewDescriptors few(12);
  for (RawClient& client : clients) client.send(wire::Hello{"train", "test"}, 1);
  uint64_t refused = 0;  // what is welcomed is received later: this process pays for that, too
  while (agent->sessions_ever() + (refused += counters.take(Counter::ksessions_refused)) < 40) {
    std::this_thread::yield();
  }
  EXPECT_GT(agent->sessions_ever(), 0u);
  EXPECT_GT(refused, 0u);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (taken_of_the_reserve() > 0 && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::yield();  // who is refused has files of /proc read on their way out
  }
  EXPECT_EQ(taken_of_the_reserve(), 0);
  for (RawClient& client : clients) {
    const auto answer = client.receive();
    ASSERT_TRUE(answer.has_value());
    if (answer->header.type == static_cast<uint16_t>(wire::SessionMessageType::kWelcome)) continue;
    const wire::Reply reply = wire::decode_body<wire::Reply>(answer->body).value();
    EXPECT_EQ(reply.code, StatusCode::kRESOURCE_EXHAUSTED);
    EXPECT_EQ(reply.message, "the daemon has no descriptor left (ulimit -n)");
  }
}

TEST_F(IpcAgentTest, AnArenaOfASessionMayTakeFromHalfOfTheReserveAndIsElseRefusedByName) {
  start();
  RawClient client = open_session();
  const UniqueFd memfd = make_arena(4096), another = make_arena(4096);
  client.send(wire::AddArena{.kind = wire::ArenaKind{99}}, 1);
  EXPECT_EQ(client.receive_reply().code, StatusCode::kUNIMPLEMENTED);
  const uint64_t before = open_files().open;  // what opening took is closed
  {
    const FewDescriptors few(0);
    client.send(wire::AddArena{.arena = 0, .bytes = 4096}, 2, {memfd.get()});
    EXPECT_EQ(client.receive_reply().code, StatusCode::kOK);
  }
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (open_files().open > before && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::yield();  // the arena's is closed once it is mapped
  }
  const FewDescriptors few(-FewDescriptors::kReserved / 2);
  client.send(wire::AddArena{.arena = 1, .bytes = 4096}, 3, {another.get()});
  const wire::Reply reply = client.receive_reply();
  EXPECT_EQ(reply.code, StatusCode::kRESOURCE_EXHAUSTED);
  EXPECT_EQ(reply.message, "the daemon has no descriptor left (ulimit -n)");
}

}  // namespace
}  // namespace cgx::daemon
