// UCX between two processes, on one host and in two network namespaces: whole frames both ways, the
// network really used, a killed peer reported in time.
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>

#include "tests/transport/recorder.h"
#include "tests/transport/two_processes.h"
#include "transport/ucx.h"

namespace cgx::transport {
namespace {

using Clock = std::chrono::steady_clock;

// In the children: says what is wrong and where, and leaves.
#define REQUIRE(condition)                                                           \
  do {                                                                               \
    if (!(condition)) {                                                              \
      std::fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition); \
      ::_exit(1);                                                                    \
    }                                                                                \
  } while (0)

struct Party {
  explicit Party(const TwoProcesses::Child& self, const UcxOptions& options = {}) {
    auto made = make_ucx_transport(options, events);
    if (!made.ok()) std::fprintf(stderr, "%s\n", made.status().to_string().c_str());
    REQUIRE(made.ok());
    transport = std::move(*made);
    auto joined = connect_over(*transport, self);
    if (!joined.ok()) std::fprintf(stderr, "%s\n", joined.status().to_string().c_str());
    REQUIRE(joined.ok());
    peer = *joined;
  }
  bool until(const std::function<bool()>& done, std::chrono::milliseconds limit) {
    const auto deadline = Clock::now() + limit;
    while (!done()) {
      if (Clock::now() >= deadline) return false;
      transport->progress();
    }
    return true;
  }

  // As meet(), but what on_sent gave free may still be in UCX: it needs progress to leave.
  void meet(const TwoProcesses::Child& self) {
    char byte = 'm';
    write_all(self.socket, &byte, 1);
    bool met = false;
    REQUIRE(until([&] { return met = met || ::recv(self.socket, &byte, 1, MSG_DONTWAIT) == 1; },
                  std::chrono::seconds(30)));
  }

  Recorder events;
  std::unique_ptr<Transport> transport;
  PeerId peer;
};

size_t size_of(int frame) {
  return static_cast<size_t>(frame) * 2654435761u % 300'000;
}

std::vector<std::byte> payload_of(int frame, int side) {
  std::vector<std::byte> payload(size_of(frame));
  for (size_t i = 0; i < payload.size(); ++i) {
    payload[i] = static_cast<std::byte>(i * 7 + static_cast<size_t>(frame) + side);
  }
  return payload;
}

int exchange_frames(const TwoProcesses::Child& self, bool shows_bytes) {
  constexpr int kFrames = 300;
  Party party(self);
  std::vector<std::vector<std::byte>> payloads;
  for (int i = 0; i < kFrames; ++i) payloads.push_back(payload_of(i, self.side));
  for (int i = 0; i < kFrames; ++i) {
    REQUIRE(
        party.transport->send(party.peer, {to_bytes(std::to_string(i)), payloads[i]}, i + 1).ok());
    party.transport->progress();
  }
  REQUIRE(party.until(
      [&] { return party.events.frames.size() == kFrames && party.events.sent.size() == kFrames; },
      std::chrono::seconds(30)));
  for (int i = 0; i < kFrames; ++i) {
    REQUIRE(party.events.frames[i].header == std::to_string(i));
    REQUIRE(party.events.frames[i].payload == to_text(payload_of(i, 1 - self.side)));
  }
  REQUIRE(party.transport->totals().bytes_received > 0);
  party.meet(self);  // both sides have everything
  if (shows_bytes) REQUIRE(veth_bytes_sent() > party.transport->totals().bytes_sent);
  if (self.side == 0) {
    party.transport->close(party.peer);
    (void)party.until([] { return false; }, std::chrono::milliseconds(50));
  } else {
    REQUIRE(party.until([&] { return party.events.downs.size() == 1; }, std::chrono::seconds(3)));
  }
  party.meet(self);
  return 0;
}

int lose_peer(const TwoProcesses::Child& self) {
  Party party(self);
  const std::vector<std::byte> payload(4 << 20);
  if (self.side == 1) {
    REQUIRE(party.until([&] { return party.events.frames.size() >= 2; }, std::chrono::seconds(10)));
    ::raise(SIGKILL);
  }
  constexpr SendToken kFrames = 50;
  for (SendToken token = 1; token <= kFrames; ++token) {
    REQUIRE(party.transport->send(party.peer, {to_bytes("x"), payload}, token).ok());
  }
  char byte = 0;
  party.transport->progress();
  while (party.events.sent.size() < 2) party.transport->progress();
  // The socket of the test ends with the other process: that is the moment of its death.
  while (::recv(self.socket, &byte, 1, MSG_DONTWAIT) != 0) party.transport->progress();
  REQUIRE(party.until([&] { return party.events.downs.size() == 1; }, std::chrono::seconds(3)));
  REQUIRE(party.events.downs[0].why.code() == StatusCode::kPEER_LOST);
  REQUIRE(party.events.sent_before_down == kFrames);
  REQUIRE(
      !party.until([&] { return party.events.downs.size() > 1; }, std::chrono::milliseconds(50)));
  return 0;
}

bool has_stopped(pid_t process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/stat");
  std::string line;
  return std::getline(file, line) && line.substr(line.rfind(')')).starts_with(") T");
}

// Both sides up, then side 1 stops itself and side 0 has sends that cannot leave. Returns the pid
// of the other side.
constexpr SendToken kStuck = 10;

pid_t fill_stopped_peer(Party& party, const TwoProcesses::Child& self,
                        std::span<const std::byte> payload) {
  REQUIRE(party.transport->send(party.peer, {to_bytes("up"), {}}, kNoToken).ok());
  REQUIRE(party.until([&] { return party.events.frames.size() == 1; }, std::chrono::seconds(10)));
  party.meet(self);
  const pid_t mine = ::getpid();
  pid_t other = 0;
  write_all(self.socket, &mine, sizeof mine);
  REQUIRE(read_all(self.socket, &other, sizeof other));
  if (self.side == 1) {
    ::raise(SIGSTOP);
    return other;
  }
  REQUIRE(party.until([&] { return has_stopped(other); }, std::chrono::seconds(30)));
  for (SendToken token = 1; token <= kStuck; ++token) {
    REQUIRE(party.transport->send(party.peer, {to_bytes("x"), payload}, token).ok());
  }
  return other;
}

// A daemon whose peer's heartbeat fell silent closes the link: its buffers come back at once, it
// sleeps, and the peer learns of it when it runs again.
int close_stopped_peer(const TwoProcesses::Child& self) {
  const std::vector<std::byte> payload(4 << 20);
  Party party(self);
  const pid_t other = fill_stopped_peer(party, self, payload);
  if (self.side == 1) {
    REQUIRE(party.until([&] { return party.events.downs.size() == 1; }, std::chrono::seconds(5)));
    party.meet(self);
    return 0;
  }
  (void)party.until([] { return false; }, std::chrono::milliseconds(200));
  REQUIRE(party.events.sent.size() < kStuck && party.events.downs.empty());
  party.transport->close(party.peer);
  REQUIRE(party.until([&] { return party.events.sent.size() == kStuck; }, std::chrono::seconds(3)));
  REQUIRE(party.events.sent.back().status.code() == StatusCode::kCANCELLED);
  int wakeups = 0;
  for (const auto end = Clock::now() + std::chrono::milliseconds(300); Clock::now() < end;) {
    REQUIRE(party.until([&] { return party.transport->arm(); }, std::chrono::seconds(3)));
    pollfd ready{.fd = party.transport->event_fd(), .events = POLLIN, .revents = 0};
    wakeups += ::poll(&ready, 1, 100) == 1;
  }
  REQUIRE(wakeups < 20);
  ::kill(other, SIGCONT);
  party.meet(self);  // when it has heard
  return 0;
}

int stall(const TwoProcesses::Child& self) {
  const std::vector<std::byte> payload(4 << 20);
  Party party(self, {.stalled_ms = 1000});
  (void)fill_stopped_peer(party, self, payload);
  if (self.side == 1) return 0;
  REQUIRE(party.until([&] { return party.events.downs.size() == 1; }, std::chrono::seconds(5)));
  REQUIRE(party.events.sent_before_down == kStuck);
  return 0;
}

class UcxProcesses : public ::testing::TestWithParam<Where> {
 protected:
  void SetUp() override {
    prepare_process();
    if (GetParam() == Where::kTwoNamespaces && !can_make_namespaces()) {
      GTEST_SKIP() << "network namespaces need root";
    }
  }
};

TEST_P(UcxProcesses, ExchangeWholeFramesOverTheNetwork) {
  const bool shows_bytes = GetParam() == Where::kTwoNamespaces;
  TwoProcesses processes(GetParam(), [&](const TwoProcesses::Child& self) {
    return exchange_frames(self, shows_bytes);
  });
  EXPECT_EQ(processes.wait(0), 0);
  EXPECT_EQ(processes.wait(1), 0);
}

TEST_P(UcxProcesses, KilledPeerIsReportedOnceWithinASecond) {
  TwoProcesses processes(GetParam(), lose_peer);
  EXPECT_EQ(processes.wait(1), 128 + SIGKILL);
  EXPECT_EQ(processes.wait(0), 0);
}

TEST_P(UcxProcesses, ClosingAStoppedPeerFreesItsBuffersAndSleeps) {
  TwoProcesses processes(GetParam(), close_stopped_peer);
  EXPECT_EQ(processes.wait(0), 0);
  EXPECT_EQ(processes.wait(1), 0);
}

TEST_P(UcxProcesses, AStalledConnectionIsCutInTime) {
  TwoProcesses processes(GetParam(), stall);
  EXPECT_EQ(processes.wait(0), 0);
}

INSTANTIATE_TEST_SUITE_P(In, UcxProcesses,
                         ::testing::Values(Where::kSameHost, Where::kTwoNamespaces),
                         [](const auto& info) {
                           return std::string(info.param == Where::kSameHost ? "OneHost"
                                                                             : "TwoNamespaces");
                         });

}  // namespace
}  // namespace cgx::transport
