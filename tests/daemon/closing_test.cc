// What ends while its daemon is busy: libcgx waits for a slow site, and then its memory is its own;
// a daemon ends while its link breaks.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "config/config.h"
#include "daemon/base/clock.h"
#include "daemon/daemon.h"
#include "daemon/transports.h"
#include "tests/client/ranks.h"
#include "tests/daemon/base/scratch_directory.h"
#include "tests/sim/slow_site.h"

namespace cgx::daemon {
namespace {

using testing::LocalStore;

constexpr uint64_t kTakesNs = 800 * kMillisecond;  // no hurry makes it less
constexpr size_t kCount = 4096;

// Where somebody holds it, the thread that has something to say waits.
class Events final : public scheduler::EventSink {
 public:
  void event(scheduler::EventLevel, std::string_view) override {
    waiting_ = true;
    while (held_) std::this_thread::yield();
    waiting_ = false;
  }
  void hold() { held_ = true; }
  void let_go() { held_ = false; }
  void await_somebody() const {
    while (!waiting_) std::this_thread::yield();
  }

 private:
  std::atomic<bool> held_ = false, waiting_ = false;
};

TransportFactory tcp() {
  v1::Config config;
  config::fill_defaults(config);
  Result<TransportChoice> choice = choose_transport(config);
  CGX_ASSERT(choice.ok() && choice->name == "tcp");
  return std::move(choice->make);
}

// On loopback, with others to make links to. Its site needs kTakesNs for a job.
class SlowDaemon {
 public:
  SlowDaemon() {
    DaemonOptions options;
    options.name = "slow";
    options.ipc.socket.path = socket();
    options.mesh_listen = "127.0.0.1:0";
    options.site = [this](std::unique_ptr<scheduler::Site> host) {
      const auto takes_ns = [this](const auto&, const auto&) {
        asked_ns_ = monotonic_ns();
        return static_cast<int64_t>(kTakesNs);
      };
      return std::make_unique<sim::SlowSite>(
          std::move(host), sim::SlowSiteOptions{.takes_ns = takes_ns}, monotonic_ns);
    };
    auto started = Daemon::start(options, tcp(), events_);
    CGX_ASSERT(started.ok());
    daemon_ = std::move(started).value();
    CGX_ASSERT(daemon_->serve().ok());
  }
  std::string socket() const { return scratch_.path() + "/cgxd.sock"; }
  uint64_t asked_ns() const { return asked_ns_; }  // when its site got its last job; 0: none yet
  Events& events() { return events_; }
  void end() { daemon_.reset(); }

 private:
  ScratchDirectory scratch_;
  Events events_;
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
  void reduce() const {
    uint64_t call = 0;
    ASSERT_OK(cgx_allreduce_async(comm, data, data, kCount, CGX_F32, CGX_SUM, &call));
  }
};

TEST(SlowSiteClosing, WaitsForTheSiteAndThenNothingIsWritten) {
  SlowDaemon daemon;
  LocalStore store;
  Client leaving, staying;
  std::thread other([&] { staying.join(daemon.socket(), store, 1); });
  leaving.join(daemon.socket(), store, 0);
  other.join();
  for (const Client* client : {&leaving, &staying}) client->reduce();
  while (daemon.asked_ns() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_OK(cgx_comm_close(leaving.comm));
  EXPECT_GE(monotonic_ns(), daemon.asked_ns() + kTakesNs);
  std::fill_n(leaving.data, kCount, -7.0f);
  EXPECT_EQ(cgx_wait_call(staying.comm, 0, -1), CGX_RANK_LOST) << cgx_last_error();
  EXPECT_OK(cgx_comm_close(staying.comm));
  EXPECT_EQ(std::count(leaving.data, leaving.data + kCount, -7.0f), static_cast<int64_t>(kCount));
  for (const Client* client : {&leaving, &staying}) EXPECT_OK(cgx_close(client->session));
}

// The data thread learns that its peer has gone when the agents of the edges have stopped.
TEST(Ending, WhileALinkBreaksEndsInOrder) {
  SlowDaemon daemon, other_daemon;
  const std::string socket = daemon.socket();
  LocalStore store;
  Client client, other_client;
  std::thread other([&] { other_client.join(other_daemon.socket(), store, 1); });
  client.join(daemon.socket(), store, 0);
  other.join();
  daemon.events().hold();
  std::thread coming([&] {  // the data thread says that a job begins
    cgx_session* session = nullptr;
    cgx_open_options open{.size = sizeof(open), .socket = socket.c_str(), .job = "another"};
    open.connect_timeout_ms = 500;
    (void)cgx_open(&open, &session);
    cgx_close(session);
  });
  daemon.events().await_somebody();
  other_daemon.end();
  std::thread ending([&] { daemon.end(); });
  std::this_thread::sleep_for(std::chrono::nanoseconds(kTakesNs));
  daemon.events().let_go();
  ending.join();
  coming.join();
  cgx_close(client.session);
  cgx_close(other_client.session);
}

}  // namespace
}  // namespace cgx::daemon
