// Ranks: the ranks of a test, as sessions of one process, with an in-process rendezvous.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "client/include/cgx/cgx.h"
#include "tests/client/fake_daemon.h"

namespace cgx::testing {

#define EXPECT_OK(call) EXPECT_EQ((call), CGX_OK) << cgx_last_error()
#define ASSERT_OK(call) ASSERT_EQ((call), CGX_OK) << cgx_last_error()

// The smallest store that can serve cgx_rendezvous.
class LocalStore {
 public:
  cgx_rendezvous callbacks() { return {&LocalStore::put, &LocalStore::get, this}; }

  void set(const std::string& key, const std::string& value) {
    const std::lock_guard lock(mutex_);
    values_[key] = value;
    changed_.notify_all();
  }
  std::map<std::string, std::string> values() {
    const std::lock_guard lock(mutex_);
    return values_;
  }

 private:
  static int put(void* user, const char* key, const void* value, size_t bytes) {
    static_cast<LocalStore*>(user)->set(key, std::string(static_cast<const char*>(value), bytes));
    return 0;
  }
  static int get(void* user, const char* key, void* value, size_t capacity, size_t* bytes) {
    auto& self = *static_cast<LocalStore*>(user);
    std::unique_lock lock(self.mutex_);
    const bool there = self.changed_.wait_for(lock, std::chrono::seconds(10),
                                              [&] { return self.values_.contains(key); });
    if (!there) return 1;
    const std::string& found = self.values_[key];
    *bytes = found.size();
    std::memcpy(value, found.data(), std::min(capacity, found.size()));
    return 0;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
};

inline std::string fresh_socket_path() {
  static std::atomic<int> count{0};
  return "/tmp/cgx-test-" + std::to_string(::getpid()) + "-" + std::to_string(++count) + ".sock";
}

// One rank: a session, a communicator and what a test usually registers.
struct Rank {
  cgx_session* session = nullptr;
  cgx_comm* comm = nullptr;
  std::vector<uint32_t> ids;

  float* home(uint32_t id) const {
    void* memory = nullptr;
    EXPECT_OK(cgx_tensor_home(comm, id, &memory, nullptr));
    return static_cast<float*>(memory);
  }
};

// Submits the rank's tensor 0.
inline cgx_status submit_inout(const Rank& rank, uint64_t step, const void* in, void* out) {
  const uint32_t id = 0;
  return cgx_submit_inout(rank.comm, step, &id, &in, &out, 1);
}

// A daemon process: $CGX_TEST_CGXD, when the tests run against the real one.
class DaemonProcess {
 public:
  DaemonProcess(const char* binary, const std::string& socket_path) {
    EXPECT_NE(::mkdtemp(directory_), nullptr);
    std::string program = binary, path = socket_path;
    std::string socket = "--socket", set = "--set";
    std::string directory = std::string("run_directory=").append(directory_);
    char* const arguments[] = {program.data(), socket.data(),    path.data(),
                               set.data(),     directory.data(), nullptr};
    EXPECT_EQ(::posix_spawn(&pid_, binary, nullptr, nullptr, arguments, environ), 0);
    struct stat info;
    while (::stat(socket_path.c_str(), &info) != 0) std::this_thread::yield();
  }
  ~DaemonProcess() {
    ::kill(pid_, SIGTERM);
    ::waitpid(pid_, nullptr, 0);
    std::filesystem::remove_all(directory_);
  }

 private:
  char directory_[32] = "/tmp/cgx-test-XXXXXX";
  pid_t pid_ = -1;
};

// For tests that tell the daemon to misbehave or look into it.
#define NEEDS_FAKE_DAEMON() \
  if (!daemon_) GTEST_SKIP() << "needs the fake daemon"

// A daemon and `size` ranks of one communicator on it. The daemon is the fake one, unless
// CGX_TEST_CGXD names a cgxd: then daemon_ is null.
class RanksTest : public ::testing::Test {
 protected:
  explicit RanksTest(FakeDaemon::Mood mood = FakeDaemon::Mood::kGood) : path_(fresh_socket_path()) {
    const char* const cgxd = std::getenv("CGX_TEST_CGXD");
    if (cgxd && mood == FakeDaemon::Mood::kGood) {
      process_ = std::make_unique<DaemonProcess>(cgxd, path_);
      return;
    }
    daemon_ = std::make_unique<FakeDaemon>(FakeDaemon::Options{path_, mood});
    daemon_->start();
  }
  ~RanksTest() override {
    for (Rank& rank : ranks_) cgx_close(rank.session);
  }

  cgx_session* open_session(const char* job = "test") {
    cgx_open_options options{.size = sizeof(options)};
    options.socket = path_.c_str();
    options.job = job;
    options.arena_bytes = 1 << 20;
    cgx_session* session = nullptr;
    EXPECT_OK(cgx_open(&options, &session));
    return session;
  }

  // Runs `body` for every rank at the same time.
  void each_rank(const std::function<void(uint32_t, Rank&)>& body) {
    std::vector<std::thread> threads;
    for (uint32_t i = 0; i < ranks_.size(); ++i) {
      threads.emplace_back([&, i] { body(i, ranks_[i]); });
    }
    for (std::thread& thread : threads) thread.join();
  }

  void open_ranks(uint32_t size, uint64_t first_step = 0, uint64_t timeout_ms = 20'000) {
    ranks_.resize(size);
    for (Rank& rank : ranks_) rank.session = open_session();
    each_rank([&](uint32_t i, Rank& rank) {
      cgx_comm_options options{.size = sizeof(options)};
      options.name = "world";
      options.rank = i;
      options.ranks = size;
      options.first_step = first_step;
      options.timeout_ms = timeout_ms;
      options.rendezvous = store_.callbacks();
      EXPECT_OK(cgx_comm_create(rank.session, &options, &rank.comm));
    });
  }

  // Registers `count` fp32 tensors of `elements` each on every rank and commits them.
  void add_tensors(uint32_t count, uint64_t elements, cgx_op op = CGX_SUM) {
    each_rank([&](uint32_t, Rank& rank) {
      for (uint32_t i = 0; i < count; ++i) {
        const std::string name = std::string("t").append(std::to_string(rank.ids.size()));
        cgx_tensor_options options{.size = sizeof(options)};
        options.name = name.c_str();
        options.op = op;
        options.dims = 1;
        options.shape = &elements;
        uint32_t id = 0;
        ASSERT_OK(cgx_register(rank.comm, &options, &id));
        rank.ids.push_back(id);
      }
      ASSERT_OK(cgx_commit(rank.comm));
    });
  }

  float* arena_floats(Rank& rank, size_t count) {
    void* memory = nullptr;
    EXPECT_OK(cgx_arena_alloc(rank.session, count * sizeof(float), 0, &memory));
    return static_cast<float*>(memory);
  }

  const std::string path_;
  LocalStore store_;
  std::unique_ptr<FakeDaemon> daemon_;
  std::unique_ptr<DaemonProcess> process_;
  std::vector<Rank> ranks_;
};

}  // namespace cgx::testing
