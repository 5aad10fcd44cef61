// libcgx closes while its daemon's site is slow: it waits for the site, and then its memory is its
// own.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "daemon/base/clock.h"
#include "daemon/daemon.h"
#include "tests/client/ranks.h"
#include "tests/daemon/base/scratch_directory.h"
#include "tests/sim/slow_site.h"

namespace cgx::daemon {
namespace {

using testing::LocalStore;

constexpr uint64_t kTakesNs = 300 * kMillisecond;
constexpr size_t kCount = 4096;

class Quiet final : public scheduler::EventSink {
  void event(scheduler::EventLevel, std::string_view) override {}
};

class SlowDaemon {
 public:
  SlowDaemon() {
    DaemonOptions options;
    options.name = "slow";
    options.ipc.socket.path = socket();
    options.site = [this](std::unique_ptr<scheduler::Site> host) {
      const auto takes_ns = [this](const auto&, const auto&) {
        asked_ns_ = monotonic_ns();
        return static_cast<int64_t>(kTakesNs);
      };
      return std::make_unique<sim::SlowSite>(
          std::move(host), sim::SlowSiteOptions{.takes_ns = takes_ns}, monotonic_ns);
    };
    auto started = Daemon::start(options, {}, events_);
    CGX_ASSERT(started.ok());
    daemon_ = std::move(started).value();
  }
  std::string socket() const { return scratch_.path() + "/cgxd.sock"; }
  uint64_t asked_ns() const { return asked_ns_; }  // when its site got its last job; 0: none yet

 private:
  ScratchDirectory scratch_;
  Quiet events_;
  std::atomic<uint64_t> asked_ns_ = 0;
  std::unique_ptr<Daemon> daemon_;
};

struct Client {
  cgx_session* session = nullptr;
  cgx_comm* comm = nullptr;
  float* data = nullptr;

  void join(const std::string& socket, LocalStore& store, uint32_t rank) {
    cgx_open_options open{.size = sizeof(open), .socket = socket.c_str(), .arena_bytes = 1 << 20};
    ASSERT_OK(cgx_open(&open, &session));
    cgx_comm_options about{.size = sizeof(about), .name = "world", .rank = rank, .ranks = 2};
    about.rendezvous = store.callbacks();
    ASSERT_OK(cgx_comm_create(session, &about, &comm));
    void* memory = nullptr;
    ASSERT_OK(cgx_arena_alloc(session, kCount * sizeof(float), 0, &memory));
    data = static_cast<float*>(memory);
  }
};

TEST(SlowSiteClosing, WaitsForTheSiteAndThenNothingIsWritten) {
  SlowDaemon daemon;
  LocalStore store;
  Client leaving, staying;
  std::thread other([&] { staying.join(daemon.socket(), store, 1); });
  leaving.join(daemon.socket(), store, 0);
  other.join();
  for (const Client* client : {&leaving, &staying}) {
    uint64_t call = 0;
    ASSERT_OK(cgx_allreduce_async(client->comm, client->data, client->data, kCount, CGX_F32,
                                  CGX_SUM, &call));
  }
  while (daemon.asked_ns() == 0) std::this_thread::yield();
  EXPECT_OK(cgx_comm_close(leaving.comm));
  EXPECT_GE(monotonic_ns(), daemon.asked_ns() + kTakesNs);
  std::fill_n(leaving.data, kCount, -7.0f);
  EXPECT_EQ(cgx_wait_call(staying.comm, 0, -1), CGX_RANK_LOST) << cgx_last_error();
  EXPECT_OK(cgx_comm_close(staying.comm));
  EXPECT_EQ(std::count(leaving.data, leaving.data + kCount, -7.0f), static_cast<int64_t>(kCount));
  for (const Client* client : {&leaving, &staying}) EXPECT_OK(cgx_close(client->session));
}

}  // namespace
}  // namespace cgx::daemon
