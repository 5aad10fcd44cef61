// Connecting, and daemons that are absent, broken, stopped or dying.
#include <dirent.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <thread>

#include "proto/wire/cores.h"
#include "proto/wire/session_messages.h"
#include "tests/client/ranks.h"

namespace cgx::testing {
namespace {

using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

size_t open_descriptors() {
  size_t count = 0;
  DIR* directory = ::opendir("/proc/self/fd");
  while (::readdir(directory)) ++count;
  ::closedir(directory);
  return count;
}

size_t mappings() {
  std::ifstream maps("/proc/self/maps");
  size_t count = 0;
  for (std::string line; std::getline(maps, line);)
    count += line.find("memfd:") != std::string::npos;
  return count;
}

cgx_status open_at(const std::string& path, cgx_session** session, uint32_t timeout_ms = 2'000) {
  cgx_open_options options{.size = sizeof(options)};
  options.socket = path.c_str();
  options.connect_timeout_ms = timeout_ms;
  return cgx_open(&options, session);
}

// Sets a variable for one test.
class Variable {
 public:
  Variable(const char* name, const std::string& value) : name_(name) {
    ::setenv(name, value.c_str(), 1);
  }
  ~Variable() { ::unsetenv(name_); }

 private:
  const char* name_;
};

TEST(NoDaemonTest, IsUnavailableAndSaysWhereItLooked) {
  cgx_session* session = nullptr;
  const auto start = Clock::now();
  EXPECT_EQ(open_at("/tmp/cgx-test-nobody.sock", &session, 200), CGX_UNAVAILABLE);
  EXPECT_THAT(cgx_last_error(), HasSubstr("/tmp/cgx-test-nobody.sock"));
  EXPECT_THAT(cgx_last_error(), HasSubstr("CGX_AUTOSTART"));
  EXPECT_GT(seconds_since(start), 0.1);
  EXPECT_LT(seconds_since(start), 5.0);  // 10 s are the default
  EXPECT_EQ(session, nullptr);
}

TEST(NoDaemonTest, RefusesBadOptionsAndVariables) {
  cgx_session* session = nullptr;
  EXPECT_EQ(cgx_open(nullptr, nullptr), CGX_INVALID_ARGUMENT);
  EXPECT_EQ(open_at("/tmp/" + std::string(200, 'x'), &session), CGX_INVALID_ARGUMENT);
  EXPECT_THAT(cgx_last_error(), HasSubstr("at most 107"));
  {
    const Variable spin("CGX_SPIN_US", "fast");
    EXPECT_EQ(open_at("/tmp/x", &session), CGX_INVALID_ARGUMENT);
    EXPECT_THAT(cgx_last_error(), HasSubstr("CGX_SPIN_US=fast must be a whole number"));
  }
  const std::string job(513, 'j');
  cgx_open_options options{.size = sizeof(options)};
  options.job = job.c_str();
  EXPECT_EQ(cgx_open(&options, &session), CGX_INVALID_ARGUMENT);
}

TEST(NoDaemonTest, CloseAcceptsNull) {
  EXPECT_OK(cgx_close(nullptr));
  EXPECT_OK(cgx_comm_close(nullptr));
  EXPECT_STREQ(cgx_status_name(CGX_STEP_OPEN), "STEP_OPEN");
  EXPECT_STREQ(cgx_status_name(9999), "UNKNOWN");
  EXPECT_STREQ(cgx_status_meaning(CGX_OK), "success");
}

TEST(NoDaemonTest, IsWaitedForWhileItComesUp) {
  const std::string path = fresh_socket_path();
  std::unique_ptr<FakeDaemon> daemon;
  std::thread late([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    daemon = std::make_unique<FakeDaemon>(FakeDaemon::Options{path});
    daemon->start();
  });
  cgx_session* session = nullptr;
  EXPECT_OK(open_at(path, &session));
  late.join();
  EXPECT_OK(cgx_close(session));
}

TEST(NoDaemonTest, OneThatKeepsThisUserOutIsNotWaitedFor) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become a user who may not";
  const std::string path = fresh_socket_path();
  FakeDaemon daemon(FakeDaemon::Options{path});
  daemon.start();
  ASSERT_EQ(::chown(path.c_str(), 0, 0), 0);
  ASSERT_EQ(::chmod(path.c_str(), 0600), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    if (::setresuid(12345, 12345, 12345) != 0) ::_exit(2);
    cgx_session* session = nullptr;
    const bool refused = open_at(path, &session) == CGX_PERMISSION_DENIED;
    const std::string why = cgx_last_error();
    const bool named = why.find("client.socket_group") != std::string::npos;
    ::_exit(refused && named && why.find("be a member") == std::string::npos ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

class BrokenDaemonTest : public ::testing::Test {
 protected:
  cgx_status open_with(FakeDaemon::Mood mood) {
    daemon_ = std::make_unique<FakeDaemon>(FakeDaemon::Options{path_, mood});
    daemon_->start();
    return open_at(path_, &session_, mood == FakeDaemon::Mood::kSilent ? 300 : 10'000);
  }
  ~BrokenDaemonTest() override { cgx_close(session_); }

  const std::string path_ = fresh_socket_path();
  std::unique_ptr<FakeDaemon> daemon_;
  cgx_session* session_ = nullptr;
};

TEST_F(BrokenDaemonTest, SilenceInTheHandshakeIsUnavailable) {
  EXPECT_EQ(open_with(FakeDaemon::Mood::kSilent), CGX_UNAVAILABLE);
  EXPECT_THAT(cgx_last_error(), HasSubstr("is it stopped?"));
}

TEST_F(BrokenDaemonTest, ARefusalAtTheDoorKeepsItsReason) {
  EXPECT_EQ(open_with(FakeDaemon::Mood::kRefuses), CGX_RESOURCE_EXHAUSTED);
  EXPECT_THAT(cgx_last_error(), HasSubstr("the fake daemon is full"));
}

TEST_F(BrokenDaemonTest, GarbageInTheHandshakeIsAProtocolError) {
  EXPECT_EQ(open_with(FakeDaemon::Mood::kGarbageWelcome), CGX_PROTOCOL_ERROR);
}

TEST_F(BrokenDaemonTest, AnotherVersionIsNamed) {
  EXPECT_EQ(open_with(FakeDaemon::Mood::kWrongVersion), CGX_VERSION_MISMATCH);
  EXPECT_THAT(cgx_last_error(),
              HasSubstr("the daemon speaks session protocol 99, this library speaks " +
                        std::to_string(wire::kSessionVersion)));
}

TEST_F(BrokenDaemonTest, WelcomeWithoutDescriptorsIsAProtocolError) {
  EXPECT_EQ(open_with(FakeDaemon::Mood::kNoDescriptors), CGX_PROTOCOL_ERROR);
  EXPECT_THAT(cgx_last_error(), HasSubstr("0 descriptors"));
}

TEST_F(BrokenDaemonTest, GarbageInAReplyFailsTheSession) {
  ASSERT_OK(open_with(FakeDaemon::Mood::kGarbageReply));
  void* memory = nullptr;
  EXPECT_EQ(cgx_arena_alloc(session_, 64, 0, &memory), CGX_PROTOCOL_ERROR);
}

class WildDaemonTest : public RanksTest {
 protected:
  WildDaemonTest() : RanksTest(FakeDaemon::Mood::kWildCompletions) {}
};

TEST_F(WildDaemonTest, CursorOutOfRangeIsAProtocolError) {
  open_ranks(1);
  float* data = arena_floats(ranks_[0], 8);
  EXPECT_EQ(cgx_allreduce(ranks_[0].comm, data, data, 8, CGX_F32, CGX_SUM), CGX_PROTOCOL_ERROR);
  EXPECT_EQ(cgx_allreduce(ranks_[0].comm, data, data, 8, CGX_F32, CGX_SUM), CGX_PROTOCOL_ERROR);
}

class EvictingDaemonTest : public RanksTest {
 protected:
  EvictingDaemonTest() : RanksTest(FakeDaemon::Mood::kEvicts) {}
};

TEST_F(EvictingDaemonTest, ReasonOfAnEvictionReachesTheWaiter) {
  open_ranks(1);
  float* data = arena_floats(ranks_[0], 8);
  EXPECT_EQ(cgx_allreduce(ranks_[0].comm, data, data, 8, CGX_F32, CGX_SUM), CGX_DAEMON_LOST);
  EXPECT_THAT(cgx_last_error(), HasSubstr("does not like this record"));
}

class DyingDaemonTest : public RanksTest {};

TEST_F(DyingDaemonTest, EveryWaiterHearsOfADeadDaemonWithinASecond) {
  NEEDS_FAKE_DAEMON();
  open_ranks(2);
  add_tensors(1, 4);
  daemon_->hold(true);
  std::atomic<int> woken{0};
  std::vector<std::thread> waiters;
  for (Rank& rank : ranks_) {
    ASSERT_OK(cgx_step_end(rank.comm, 0));
    float* data = arena_floats(rank, 8);
    uint64_t call = 0;
    ASSERT_OK(cgx_allreduce_async(rank.comm, data, data, 8, CGX_F32, CGX_SUM, &call));
    waiters.emplace_back([&] { woken += cgx_wait(rank.comm, 0, -1) == CGX_DAEMON_LOST; });
    waiters.emplace_back([&] { woken += cgx_wait_call(rank.comm, 0, -1) == CGX_DAEMON_LOST; });
    waiters.emplace_back([&] { woken += cgx_commit(rank.comm) == CGX_DAEMON_LOST; });
  }
  while (daemon_->waiting() < 2) std::this_thread::yield();
  const auto start = Clock::now();
  daemon_->die();
  for (std::thread& waiter : waiters) waiter.join();
  // With what a busy machine adds; by its still beat they would know after 3 s.
  EXPECT_LT(seconds_since(start), 2.5);
  EXPECT_GE(woken, 4);  // a commit may have been refused before
  EXPECT_EQ(cgx_submit(ranks_[0].comm, 1, ranks_[0].ids.data(), 1), CGX_DAEMON_LOST);
  void* memory = nullptr;
  EXPECT_EQ(cgx_arena_alloc(ranks_[0].session, 64 << 20, 0, &memory), CGX_DAEMON_LOST);
}

// A signal that is handled comes every 10 ms for as long as it lives.
class EveryTenMs {
 public:
  EveryTenMs() {
    struct sigaction handled {};
    handled.sa_handler = [](int) {};
    EXPECT_EQ(::sigaction(SIGALRM, &handled, &before_), 0);
    set(10'000);
  }
  ~EveryTenMs() {
    set(0);
    ::sigaction(SIGALRM, &before_, nullptr);
  }

 private:
  static void set(suseconds_t us) {
    const itimerval each{{0, us}, {0, us}};
    EXPECT_EQ(::setitimer(ITIMER_REAL, &each, nullptr), 0);
  }
  struct sigaction before_ {};
};

TEST_F(DyingDaemonTest, WhoOnlyLooksHearsOfItToo) {
  NEEDS_FAKE_DAEMON();
  using Look = std::function<cgx_status(Rank&)>;
  uint64_t seen = 0, call = 0;
  const std::pair<const char*, Look> looks[] = {
      {"cgx_test",
       [](Rank& rank) {
         size_t pending = 0;
         return cgx_test(rank.comm, 0, rank.ids.data(), 1, nullptr, &pending);
       }},
      {"cgx_test_call",
       [&](Rank& rank) {
         int done = 0;
         return cgx_test_call(rank.comm, call, &done);
       }},
      {"cgx_step_info",
       [](Rank& rank) {
         cgx_step_report report{.size = sizeof(report)};
         return cgx_step_info(rank.comm, 0, &report);
       }},
      {"cgx_poll of 20 ms", [&](Rank& rank) { return cgx_poll(rank.session, &seen, 20); }},
      {"cgx_poll of 0 ms", [&](Rank& rank) { return cgx_poll(rank.session, &seen, 0); }},
      {"cgx_wait of 1 ms", [](Rank& rank) { return cgx_wait(rank.comm, 0, 1); }},
      {"cgx_step_end", [](Rank& rank) { return cgx_step_end(rank.comm, 1); }},
      {"cgx_wait under a timer",
       [](Rank& rank) {
         const EveryTenMs signals;
         return cgx_wait(rank.comm, 0, 2'000);
       }},
  };
  for (const auto& [name, look] : looks) {
    SCOPED_TRACE(name);
    daemon_.reset();
    daemon_ = std::make_unique<FakeDaemon>(FakeDaemon::Options{path_});
    daemon_->start();
    open_ranks(1);
    Rank& rank = ranks_[0];
    add_tensors(1, 4);
    daemon_->hold(true);
    float* const data = arena_floats(rank, 8);
    ASSERT_OK(cgx_allreduce_async(rank.comm, data, data, 8, CGX_F32, CGX_SUM, &call));
    ASSERT_OK(cgx_submit(rank.comm, 0, rank.ids.data(), 1));
    ASSERT_OK(cgx_step_end(rank.comm, 0));
    daemon_->die();
    const auto start = Clock::now();
    // Results are no news of the daemon; by its still beat they would know after 4 s.
    while (look(rank) != CGX_DAEMON_LOST && seconds_since(start) < 2) {
    }
    EXPECT_LT(seconds_since(start), 2.0);
    EXPECT_OK(cgx_close(rank.session));
    ranks_.clear();
  }
}

TEST_F(DyingDaemonTest, ResultsFromBeforeItsDeathAreDelivered) {
  NEEDS_FAKE_DAEMON();
  open_ranks(1);
  add_tensors(1, 4);
  Rank& rank = ranks_[0];
  ASSERT_OK(cgx_submit(rank.comm, 0, rank.ids.data(), 1));
  ASSERT_OK(cgx_step_end(rank.comm, 0));
  cgx_step_report report{.size = sizeof(report)};
  while (!report.finished) ASSERT_OK(cgx_step_info(rank.comm, 0, &report));
  daemon_->die();
  uint64_t seen = 0;
  while (cgx_poll(rank.session, &seen, 1000) == CGX_OK) {
  }
  EXPECT_THAT(cgx_last_error(), HasSubstr("DAEMON_LOST"));
  EXPECT_OK(cgx_wait(rank.comm, 0, -1));
  EXPECT_OK(cgx_step_info(rank.comm, 0, &report));
}

TEST_F(DyingDaemonTest, StoppedDaemonIsFoundByItsStillBeat) {
  NEEDS_FAKE_DAEMON();
  open_ranks(1);
  add_tensors(1, 4);
  Rank leaving{.session = open_session("other")};
  cgx_comm_options alone{.size = sizeof(alone), .name = "alone"};
  ASSERT_OK(cgx_comm_create(leaving.session, &alone, &leaving.comm));
  daemon_->freeze();
  ASSERT_OK(cgx_step_end(ranks_[0].comm, 0));
  const auto start = Clock::now();
  std::thread closing([&] { EXPECT_OK(cgx_comm_close(leaving.comm)); });
  EXPECT_EQ(cgx_wait(ranks_[0].comm, 0, -1), CGX_DAEMON_LOST);
  EXPECT_THAT(cgx_last_error(), HasSubstr("is it stopped?"));
  EXPECT_GT(seconds_since(start), 3.0);
  EXPECT_LT(seconds_since(start), 8.0);
  closing.join();
  EXPECT_LT(seconds_since(start), 8.0);
  EXPECT_OK(cgx_close(leaving.session));
}

TEST_F(DyingDaemonTest, SilentPatienceOutlastsALateRank) {
  NEEDS_FAKE_DAEMON();
  open_ranks(1);
  add_tensors(1, 4);
  daemon_->hold(true);  // alive, but nothing completes
  ASSERT_OK(cgx_step_end(ranks_[0].comm, 0));
  EXPECT_EQ(cgx_wait(ranks_[0].comm, 0, 5'000), CGX_TIMED_OUT);
}

class SlowDaemonTest : public RanksTest {};

TEST_F(SlowDaemonTest, IsSentALargeTableHoweverShortItWasWaitedForAtFirst) {
  NEEDS_FAKE_DAEMON();
  constexpr uint32_t kTensors = 1000;  // some 600 KB
  ranks_.resize(1);
  Rank& rank = ranks_[0];
  const auto start = Clock::now();
  cgx_status opened = CGX_UNAVAILABLE;
  while (opened == CGX_UNAVAILABLE && seconds_since(start) < 10) {  // the machine may be busy
    opened = open_at(path_, &rank.session, 100);
  }
  ASSERT_OK(opened);
  cgx_comm_options options{.size = sizeof(options)};
  options.name = "world";
  ASSERT_OK(cgx_comm_create(rank.session, &options, &rank.comm));
  for (uint32_t i = 0; i < kTensors; ++i) {
    const std::string name = std::to_string(i) + std::string(500, 'x');
    const uint64_t elements = 1;
    cgx_tensor_options tensor{.size = sizeof(tensor)};
    tensor.name = name.c_str();
    tensor.dims = 1;
    tensor.shape = &elements;
    uint32_t id = 0;
    ASSERT_OK(cgx_register(rank.comm, &tensor, &id));
  }
  daemon_->read_every(std::chrono::milliseconds(200));
  EXPECT_OK(cgx_commit(rank.comm));
}

class ClosingTest : public RanksTest {};

TEST_F(ClosingTest, IsBoundedByTheCommunicatorsTimeOut) {
  NEEDS_FAKE_DAEMON();
  open_ranks(1, 0, /*timeout_ms=*/1);
  float* data = arena_floats(ranks_[0], 64);
  daemon_->hold(true);
  daemon_->keep_memory();
  uint64_t call = 0;
  ASSERT_OK(cgx_allreduce_async(ranks_[0].comm, data, data, 64, CGX_F32, CGX_SUM, &call));
  EXPECT_EQ(cgx_comm_close(ranks_[0].comm), CGX_TIMED_OUT);
  EXPECT_THAT(cgx_last_error(), HasSubstr("world was closed, but the daemon has not let go"));
  ASSERT_OK(cgx_arena_free(ranks_[0].session, data));
  for (int i = 0; i < 10; ++i) EXPECT_NE(arena_floats(ranks_[0], 64), data);
}

class SessionTest : public RanksTest {};

TEST_F(SessionTest, OpeningAndClosingLeaksNothing) {
  NEEDS_FAKE_DAEMON();
  const auto cycle = [this] {
    open_ranks(2);
    add_tensors(3, 1000);
    each_rank([](uint32_t, Rank& rank) {
      ASSERT_OK(cgx_submit(rank.comm, 0, rank.ids.data(), 3));
      ASSERT_OK(cgx_step_end(rank.comm, 0));
      ASSERT_OK(cgx_wait(rank.comm, 0, -1));
    });
    for (Rank& rank : ranks_) EXPECT_OK(cgx_close(rank.session));
    ranks_.clear();
    while (daemon_->sessions() != 0) std::this_thread::yield();
  };
  cycle();
  const size_t descriptors = open_descriptors(), mapped = mappings();
  for (int i = 0; i < 50; ++i) cycle();
  EXPECT_EQ(open_descriptors(), descriptors);
  EXPECT_EQ(mappings(), mapped);
}

TEST_F(SessionTest, FailedOpensLeakNothing) {
  cgx_session* session = nullptr;
  const size_t descriptors = open_descriptors();
  for (int i = 0; i < 20; ++i)
    EXPECT_EQ(open_at("/tmp/cgx-test-nobody.sock", &session, 1), CGX_UNAVAILABLE);
  EXPECT_EQ(open_descriptors(), descriptors);
}

TEST_F(SessionTest, ArenasGrowOnDemand) {
  cgx_session* session = open_session();  // first arena: 2 MiB
  void* memory = nullptr;
  for (int i = 0; i < 20; ++i) {
    ASSERT_OK(cgx_arena_alloc(session, 3 << 20, 4096, &memory));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(memory) % 4096, 0u);
    std::memset(memory, 1, 3 << 20);
  }
  EXPECT_EQ(cgx_arena_alloc(session, 1ull << 60, 0, &memory), CGX_RESOURCE_EXHAUSTED);
  EXPECT_EQ(cgx_arena_alloc(session, 1ull << 45, 0, &memory), CGX_RESOURCE_EXHAUSTED);
  EXPECT_THAT(cgx_last_error(), HasSubstr("bytes available"));
  EXPECT_EQ(cgx_arena_alloc(session, 64, 3, &memory), CGX_INVALID_ARGUMENT);
  EXPECT_EQ(cgx_arena_free(session, &session), CGX_INVALID_ARGUMENT);
  EXPECT_OK(cgx_close(session));
}

TEST_F(SessionTest, FileSizeLimitIsAnErrorAndNotASignal) {
  cgx_session* session = open_session();
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit tight{1 << 20, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &tight), 0);
  void* memory = nullptr;
  EXPECT_EQ(cgx_arena_alloc(session, 64, 0, &memory), CGX_RESOURCE_EXHAUSTED);
  EXPECT_THAT(cgx_last_error(), HasSubstr("ulimit -f"));
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_OK(cgx_arena_alloc(session, 64, 0, &memory));
  EXPECT_OK(cgx_close(session));
}

TEST_F(SessionTest, RetainedArenaOutlivesTheSession) {
  cgx_session* session = open_session();
  void* memory = nullptr;
  ASSERT_OK(cgx_arena_alloc(session, 4096, 0, &memory));
  cgx_arena* arena = nullptr;
  ASSERT_OK(cgx_arena_retain(session, memory, &arena));
  EXPECT_OK(cgx_close(session));
  std::memset(memory, 7, 4096);
  EXPECT_EQ(static_cast<char*>(memory)[4095], 7);
  cgx_arena_release(arena);
}

TEST_F(SessionTest, EventDescriptorBecomesReadable) {
  open_ranks(1);
  add_tensors(1, 4);
  Rank& rank = ranks_[0];
  int descriptor = -1;
  ASSERT_OK(cgx_event_fd(rank.session, &descriptor));
  uint64_t seen = 0;
  static_cast<void>(cgx_poll(rank.session, &seen, 0));
  pollfd entry{descriptor, POLLIN, 0};
  EXPECT_EQ(::poll(&entry, 1, 0), 0);
  ASSERT_OK(cgx_submit(rank.comm, 0, rank.ids.data(), 1));
  ASSERT_EQ(::poll(&entry, 1, 5'000), 1);
  ASSERT_OK(cgx_poll(rank.session, &seen, 0));
  EXPECT_EQ(::poll(&entry, 1, 0), 0);
  EXPECT_EQ(cgx_poll(rank.session, &seen, 0), CGX_TIMED_OUT);
  ASSERT_OK(cgx_step_end(rank.comm, 0));
  ASSERT_OK(cgx_poll(rank.session, &seen, 5'000));
  ASSERT_OK(cgx_wake(rank.session));
  ASSERT_OK(cgx_poll(rank.session, &seen, 0));
}

TEST_F(SessionTest, DoorbellRingsOnlyForASleepingDaemon) {
  NEEDS_FAKE_DAEMON();
  open_ranks(1);
  float* data = arena_floats(ranks_[0], 8);
  for (int i = 0; i < 10; ++i) {
    ASSERT_OK(cgx_allreduce(ranks_[0].comm, data, data, 8, CGX_F32, CGX_SUM));
  }
  EXPECT_LE(daemon_->doorbells(), 10u);
}

TEST_F(SessionTest, SpinningIsRefusedWhereCoresAreShort) {
  cgx_open_options options{.size = sizeof(options)};
  options.socket = path_.c_str();
  options.spin_us = 20;
  cpu_set_t before, one;
  ASSERT_EQ(::sched_getaffinity(0, sizeof(before), &before), 0);
  CPU_ZERO(&one);
  for (int core = 0; core < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++core) {
    if (CPU_ISSET(core, &before)) CPU_SET(core, &one);
  }
  ASSERT_EQ(::sched_setaffinity(0, sizeof(one), &one), 0);
  cgx_session* session = nullptr;
  EXPECT_EQ(cgx_open(&options, &session), CGX_RESOURCE_EXHAUSTED);
  EXPECT_THAT(cgx_last_error(), HasSubstr("1 ranks and the daemon need 2 cores"));
  ASSERT_EQ(::sched_setaffinity(0, sizeof(before), &before), 0);
  if (usable_cores() < 2) return;
  ASSERT_OK(cgx_open(&options, &session));
  cgx_comm_options alone{.size = sizeof(alone)};
  alone.name = "spinning";
  Rank rank{.session = session};
  ASSERT_OK(cgx_comm_create(session, &alone, &rank.comm));
  float* data = arena_floats(rank, 8);
  for (int i = 0; i < 20; ++i) {
    ASSERT_OK(cgx_allreduce(rank.comm, data, data, 8, CGX_F32, CGX_SUM));
  }
  EXPECT_OK(cgx_close(session));
}

class AutostartTest : public ::testing::Test {
 protected:
  AutostartTest() { EXPECT_NE(::mkdtemp(directory_), nullptr); }
  ~AutostartTest() override {
    for (const char* name : {"/d.sock", "/d.sock.log", "/d.sock.start"}) {
      ::unlink((directory_ + std::string(name)).c_str());
    }
    ::rmdir(directory_);
  }
  bool socket_exists() {
    struct stat info;
    return ::stat((directory_ + std::string("/d.sock")).c_str(), &info) == 0;
  }
  char directory_[32] = "/tmp/cgx-test-XXXXXX";
};

TEST_F(AutostartTest, RanksShareOneStartedDaemonThatEndsWithThem) {
  const Variable autostart("CGX_AUTOSTART", "1");
  const Variable binary("CGXD", FAKE_DAEMON_BINARY);
  const Variable socket("CGX_SOCKET", directory_ + std::string("/d.sock"));
  LocalStore store;
  std::vector<std::thread> ranks;
  std::vector<cgx_session*> sessions(3);
  for (uint32_t i = 0; i < 3; ++i) {
    ranks.emplace_back([&, i] {
      ASSERT_OK(cgx_open(nullptr, &sessions[i]));
      cgx_comm_options options{.size = sizeof(options)};
      options.name = "auto";
      options.rank = i;
      options.ranks = 3;
      options.rendezvous = store.callbacks();
      cgx_comm* comm = nullptr;
      ASSERT_OK(cgx_comm_create(sessions[i], &options, &comm));
    });
  }
  for (std::thread& rank : ranks) rank.join();
  for (cgx_session* session : sessions) EXPECT_OK(cgx_close(session));
  const auto start = Clock::now();
  while (socket_exists() && seconds_since(start) < 5) std::this_thread::yield();
  EXPECT_FALSE(socket_exists());
}

TEST_F(AutostartTest, MissingBinaryIsNamed) {
  const Variable autostart("CGX_AUTOSTART", "1");
  const Variable binary("CGXD", "/nonexistent/cgxd");
  cgx_session* session = nullptr;
  EXPECT_EQ(open_at(directory_ + std::string("/d.sock"), &session), CGX_UNAVAILABLE);
  EXPECT_THAT(cgx_last_error(), HasSubstr("CGXD=/nonexistent/cgxd is not an executable"));
}

TEST_F(AutostartTest, DaemonThatDoesNotComeUpIsReportedWithItsLog) {
  const Variable autostart("CGX_AUTOSTART", "1");
  const Variable binary("CGXD", "/bin/true");
  cgx_session* session = nullptr;
  EXPECT_EQ(open_at(directory_ + std::string("/d.sock"), &session, 300), CGX_UNAVAILABLE);
  EXPECT_THAT(cgx_last_error(), HasSubstr("d.sock.log"));
}

}  // namespace
}  // namespace cgx::testing
