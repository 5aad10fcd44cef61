// The cgxd program: its command line, its signals, its end. CGXD is the binary under test.
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

#include <fstream>
#include <thread>

#include "proto/wire/run_directory.h"
#include "tests/daemon/base/scratch_directory.h"
#include "tests/daemon/ipc/mini_rank.h"

extern char** environ;

namespace cgx::daemon {
namespace {

using Words = std::vector<std::string>;

std::string read_file(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

class Process {
 public:
  Process(const Words& arguments, const std::string& output, const Words& variables = {}) {
    Words words = {CGXD};
    words.insert(words.end(), arguments.begin(), arguments.end());
    Words environment = variables;
    for (char** each = environ; *each != nullptr; ++each) environment.emplace_back(*each);
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_addopen(&actions, 1, output.c_str(), O_CREAT | O_WRONLY | O_TRUNC,
                                       0600);
    ::posix_spawn_file_actions_adddup2(&actions, 1, 2);
    EXPECT_EQ(::posix_spawn(&pid_, CGXD, &actions, nullptr, pointers(words).data(),
                            pointers(environment).data()),
              0);
    ::posix_spawn_file_actions_destroy(&actions);
  }
  ~Process() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
  }

  void signal(int number) { ::kill(pid_, number); }
  bool alive() { return ::waitpid(pid_, &status_, WNOHANG) == 0; }
  // The exit status, or -1 if it has not ended within 20 s.
  int wait() {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (std::chrono::steady_clock::now() < deadline) {
      const pid_t ended = ::waitpid(pid_, &status_, WNOHANG);
      if (ended == pid_) {
        pid_ = -1;
        return WIFEXITED(status_) ? WEXITSTATUS(status_) : 128 + WTERMSIG(status_);
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return -1;
  }
  pid_t pid() const { return pid_; }

 private:
  static std::vector<char*> pointers(Words& words) {
    std::vector<char*> result;
    for (std::string& word : words) result.push_back(word.data());
    result.push_back(nullptr);
    return result;
  }
  pid_t pid_ = -1;
  int status_ = 0;
};

class CgxdTest : public testing::Test {
 protected:
  std::string path(const std::string& name) const { return scratch.path() + "/" + name; }
  std::string output() const { return read_file(path("output")); }
  Process start(const Words& arguments, const Words& variables = {}) {
    return Process(arguments, path("output"), variables);
  }
  // A daemon that answers at path("cgxd.sock").
  std::unique_ptr<Process> serve(Words more = {}, const Words& variables = {}) {
    Words arguments = {"--socket", path("cgxd.sock")};
    arguments.insert(arguments.end(), more.begin(), more.end());
    auto process = std::make_unique<Process>(arguments, path("output"), variables);
    wait_for([&] { return output().find("serves") != std::string::npos; });
    return process;
  }
  template <typename Condition>
  void wait_for(Condition condition) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!condition()) {
      ASSERT_LT(std::chrono::steady_clock::now(), deadline) << output();
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }
  std::string write(const std::string& name, const std::string& text) {
    std::ofstream(path(name)) << text;
    return path(name);
  }

  ScratchDirectory scratch;
};

TEST_F(CgxdTest, ServesWithoutAnyConfigurationAndEndsOnSigterm) {
  auto daemon = serve();
  {
    MiniRank rank(path("cgxd.sock"), "train");
    rank.start_joining(0, 1);
    EXPECT_EQ(rank.finish_joining().code, StatusCode::kOK);
    rank.client().send(wire::Goodbye{}, 0);
  }
  daemon->signal(SIGTERM);
  EXPECT_EQ(daemon->wait(), 0) << output();
  EXPECT_NE(::access(path("cgxd.sock").c_str(), F_OK), 0);
}

TEST_F(CgxdTest, ServesAgainWithTheWordsThatRecordedPlansBefore) {
  for (const std::string& file : {path("plans"), path("plans.1"), path("plans.2")}) {
    auto daemon = serve({"--record-plans", path("plans")});
    daemon->signal(SIGTERM);
    EXPECT_EQ(daemon->wait(), 0) << output();
    EXPECT_NE(read_file(file), "") << file;
  }
  EXPECT_NE(output().find("plans are recorded in " + path("plans.2")), std::string::npos);
}

TEST_F(CgxdTest, ServesAndReloadsWithAFileOfCommentsOnly) {
  const std::string sample = read_file(CGX_SOURCE_DIR "/config/cgxd.sample.yaml");
  ASSERT_NE(sample, "");
  auto daemon = serve({"--config", write("sample.yaml", sample)});
  daemon->signal(SIGHUP);
  wait_for([&] { return output().find("reloaded changed=0 waiting=0") != std::string::npos; });
  write("sample.yaml", "");
  daemon->signal(SIGHUP);
  wait_for([&] { return output().rfind("changed=0") != output().find("changed=0"); });
  daemon->signal(SIGTERM);
  EXPECT_EQ(daemon->wait(), 0) << output();
}

TEST_F(CgxdTest, EndsOnSigtermThoughIdleSessionsAreOpen) {
  auto daemon = serve();
  MiniRank rank(path("cgxd.sock"), "train");
  daemon->signal(SIGTERM);
  EXPECT_EQ(daemon->wait(), 0);
  const wire::Reply last_words = rank.client().receive_reply();
  EXPECT_EQ(last_words.code, StatusCode::kUNAVAILABLE);
  EXPECT_NE(last_words.message.find("is being stopped (SIGTERM of process"), std::string::npos);
  EXPECT_TRUE(rank.client().hung_up());
}

TEST_F(CgxdTest, ASecondOneOnTheSameSocketIsRefusedWithTheProcessNamed) {
  auto first = serve();
  const std::string second_output = path("second");
  Process second({"--socket", path("cgxd.sock")}, second_output);
  EXPECT_EQ(second.wait(), 1);
  EXPECT_NE(read_file(second_output).find("process " + std::to_string(first->pid())),
            std::string::npos)
      << read_file(second_output);
  EXPECT_TRUE(first->alive());
}

TEST_F(CgxdTest, APrivateOneEndsWhenItsLastSessionHasGone) {
  auto daemon = serve({"--private"});
  {
    MiniRank first(path("cgxd.sock"), "train");
    MiniRank second(path("cgxd.sock"), "train");
  }
  EXPECT_EQ(daemon->wait(), 0) << output();
}

TEST_F(CgxdTest, ChecksAConfigurationAndPrintsWhatIsInEffect) {
  Process good = start({"--check-config", write("good.yaml", "policy: {window: 7}\n")});
  EXPECT_EQ(good.wait(), 0);
  EXPECT_NE(output().find("window: 7"), std::string::npos) << output();
  Process both =
      start({"--config", write("other.yaml", "policy: {window: 6}\n"), "--check-config"});
  EXPECT_EQ(both.wait(), 0);
  EXPECT_NE(output().find("window: 6"), std::string::npos) << output();
  Process bad = start({"--check-config", write("bad.yaml", "policy:\n  window: 9999\n")});
  EXPECT_EQ(bad.wait(), 1);
  EXPECT_NE(output().find("policy.window"), std::string::npos) << output();
  EXPECT_NE(output().find("bad.yaml:2"), std::string::npos) << output();
}

TEST_F(CgxdTest, WrongUsageIsTwo) {
  EXPECT_EQ(start({"--no-such-option"}).wait(), 2);
  EXPECT_EQ(start({"--netwrk", "10.1.0.0/24"}).wait(), 2);
  EXPECT_NE(output().find("cgxd: no option --netwrk; did you mean --network?"), std::string::npos)
      << output();
  EXPECT_EQ(start({"--version"}).wait(), 0);
  EXPECT_EQ(start({"--help"}).wait(), 0);
  EXPECT_NE(output().find("trusted_networks"), std::string::npos);
}

TEST_F(CgxdTest, RunGivesTheCommandItsDaemonAndEndsWithItsStatus) {
  const Words place = {"XDG_RUNTIME_DIR=" + scratch.path()};
  Process run = start({"run", "--set", "run_directory=" + path("run"), "--", "sh", "-c",
                       "test -S \"$CGX_SOCKET\" && test -S \"$CGX_CONTROL\" && exit 7"},
                      place);
  EXPECT_EQ(run.wait(), 7) << output();
}

TEST_F(CgxdTest, RunTellsACommandThatCannotRunFromOneThatFails) {
  const std::string place = "run_directory=" + path("run"), text = write("text", "no program\n");
  ::chmod(text.c_str(), 0644);
  EXPECT_EQ(start({"run", "--set", place, "--", "/nowhere"}).wait(), 127) << output();
  EXPECT_NE(output().find("cannot run /nowhere: No such file"), std::string::npos) << output();
  EXPECT_EQ(start({"run", "--set", place, "--", text}).wait(), 126) << output();
  EXPECT_EQ(start({"run", "--set", place, "--", "false"}).wait(), 1) << output();
}

TEST_F(CgxdTest, KeysGivenBeforeRunAndBehindItAllCount) {
  Process run = start({"--set", "log.format=json", "run", "--set", "log.level=debug", "--set",
                       "run_directory=" + path("run"), "--", "true"});
  EXPECT_EQ(run.wait(), 0) << output();
  EXPECT_EQ(output().find("{"), 0u) << output();
  Process networks = start({"--network", "10.1.0.0/33", "run", "--network", "10.2.0.0/33", "--set",
                            "run_directory=" + path("run"), "--", "true"});
  EXPECT_EQ(networks.wait(), 1);
  EXPECT_NE(output().find("10.1.0.0/33"), std::string::npos) << output();
}

TEST_F(CgxdTest, AFileGivenBeforeRunAndAnotherBehindItAreRefused) {
  const std::string one = write("one.yaml", "{}"), other = write("other.yaml", "{}");
  for (const std::string option : {"--config", "--record-plans", "--replay-plans"}) {
    EXPECT_EQ(start({option, one, "run", option, other, "--", "true"}).wait(), 2) << option;
    EXPECT_NE(output().find(option + ": is given twice, as "), std::string::npos) << output();
  }
  Process same = start({"--config", one, "run", "--config", one, "--set",
                        "run_directory=" + path("run"), "--", "true"});
  EXPECT_EQ(same.wait(), 0) << output();
}

TEST_F(CgxdTest, OptionsThatRunHasNoUseForAreRefused) {
  for (const Words& options : {Words{"--private"}, Words{"--socket", path("other.sock")}}) {
    Words words = options;
    words.insert(words.end(), {"run", "--set", "run_directory=" + path("run"), "--", "true"});
    EXPECT_EQ(start(words).wait(), 2) << output();
    EXPECT_NE(output().find("run excludes " + options.front()), std::string::npos) << output();
  }
}

TEST_F(CgxdTest, RunEndsWithItsCommandThoughItsParentIgnoredChildren) {
  const std::string place = "run_directory=" + path("run");
  // A cgxd hands on none of UCX's variables, and without this one ThreadSanitizer breaks the inner.
  Process run =
      start({"run", "--set", place, "--", "env", "--ignore-signal=CHLD", "UCX_MEM_EVENTS=n", CGXD,
             "run", "--set", place, "--", "sh", "-c", "exit 7"});
  EXPECT_EQ(run.wait(), 7) << output();
}

TEST_F(CgxdTest, OneThatIsRefusedTellsTrainersWhy) {
  const std::string file = write("typo.yaml", "polcy: {window: 7}\n");
  const std::string refusal = path("run") + "/cgxd.sock.refused";
  const mode_t before = ::umask(077);
  Process daemon = start(
      {"--config", file, "--set", "run_directory=" + path("run"), "--set", "policy.window=9999"});
  ::umask(before);
  EXPECT_EQ(daemon.wait(), 1) << output();
  EXPECT_NE(read_file(refusal).find("polcy"), std::string::npos) << output();
  struct stat found {};
  ASSERT_EQ(::stat(refusal.c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 07777, mode_t{0644});
}

TEST_F(CgxdTest, AReloadReadsNoFileThatItDoesNotTakeOver) {
  const std::string key(32, 'k'), config = path("config.yaml");
  const auto configure = [&](const std::string& key_file, int drain_ms) {
    write("config.yaml", "mesh: {key_file: " + key_file +
                             "}\ntimeouts: {drain_ms: " + std::to_string(drain_ms) + "}\n");
  };
  configure(write("old.key", key), 7000);
  auto daemon = serve({"--config", config});
  ASSERT_EQ(::rename(path("old.key").c_str(), path("new.key").c_str()), 0);
  configure(path("new.key"), 8000);
  daemon->signal(SIGHUP);
  wait_for([&] {
    return output().find("reloaded") != std::string::npos ||
           output().find("reload refused") != std::string::npos;
  });
  EXPECT_EQ(output().find("reload refused"), std::string::npos) << output();
  EXPECT_NE(output().find("key=timeouts.drain_ms"), std::string::npos) << output();
  EXPECT_NE(output().find("until the daemon is restarted key=mesh.key_file"), std::string::npos)
      << output();
}

// As whoever renews certificates does.
TEST_F(CgxdTest, AReloadNamesFilesThatHaveChangedUnderTheirNames) {
  const std::string key_file = write("mesh.key", std::string(32, 'k'));
  write("config.yaml", "mesh: {key_file: " + key_file + "}\n");
  auto daemon = serve({"--config", path("config.yaml")});
  daemon->signal(SIGHUP);
  wait_for([&] { return output().find("waiting=0") != std::string::npos; });
  write("mesh.key", std::string(32, 'l'));
  daemon->signal(SIGHUP);
  wait_for([&] { return output().find("waiting=1") != std::string::npos; });
  EXPECT_NE(
      output().find("leaves a file as it was until the daemon is restarted key=mesh.key_file"),
      std::string::npos)
      << output();
}

// It does not get as far as the socket: its port is taken.
TEST_F(CgxdTest, ASecondStartAtTheSamePortNamesTheFirstAndLeavesNoReasonForTrainers) {
  auto first = serve();
  const std::string said = output();
  const size_t at = said.find("mesh=127.0.0.1:") + 5;
  const std::string address = said.substr(at, said.find(' ', at) - at);
  Process second = start({"--socket", path("cgxd.sock"), "--set", "mesh.listen=" + address});
  EXPECT_EQ(second.wait(), 1);
  wait_for([&] { return output().find("Address already in use") != std::string::npos; });
  EXPECT_NE(output().find("is already served by process " + std::to_string(first->pid())),
            std::string::npos)
      << output();
  EXPECT_EQ(read_file(refusal_path(path("cgxd.sock"))), "");
}

// As nohup does, and a shell for what it starts in the background.
TEST_F(CgxdTest, RunLeavesIgnoredWhatWhoeverStartedItIgnores) {
  struct sigaction before {};
  ::sigaction(SIGHUP, nullptr, &before);
  ::signal(SIGHUP, SIG_IGN);
  Process run = start({"run", "--", "sh", "-c", "echo up; exec sleep 60"});
  ::sigaction(SIGHUP, &before, nullptr);
  wait_for([&] { return output().find("up") != std::string::npos; });
  run.signal(SIGHUP);
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  EXPECT_TRUE(run.alive()) << output();
  run.signal(SIGTERM);
  EXPECT_EQ(run.wait(), 128 + SIGTERM);
}

TEST_F(CgxdTest, RunForwardsSignalsAndReportsDeathsBySignal) {
  Process run =
      start({"run", "--", "sh", "-c", "trap 'exit 3' TERM; echo up; while :; do sleep 0.05; done"});
  wait_for([&] { return output().find("up") != std::string::npos; });
  run.signal(SIGTERM);
  EXPECT_EQ(run.wait(), 3);
  EXPECT_EQ(start({"run", "--", "sh", "-c", "kill -9 $$"}).wait(), 128 + SIGKILL);
  EXPECT_EQ(start({"run", "--", "/no/such/command"}).wait(), 127);
}

// The soft limit of descriptors of what is started while it lives.
class FewOpenFiles {
 public:
  explicit FewOpenFiles(rlim_t files) {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    const rlimit few{files, before_.rlim_max};
    ::setrlimit(RLIMIT_NOFILE, &few);
  }
  ~FewOpenFiles() { ::setrlimit(RLIMIT_NOFILE, &before_); }
  rlim_t most() const { return before_.rlim_max; }

 private:
  rlimit before_{};
};

TEST_F(CgxdTest, LosesLinesOfItsLogAndNotItsLifeWhereFilesMayGrowNoFurther) {
  auto daemon = serve();
  rlimit before{};
  ASSERT_EQ(::prlimit(daemon->pid(), RLIMIT_FSIZE, nullptr, &before), 0);
  const rlimit few{1, before.rlim_max};
  ASSERT_EQ(::prlimit(daemon->pid(), RLIMIT_FSIZE, &few, nullptr), 0);
  daemon->signal(SIGTERM);
  EXPECT_EQ(daemon->wait(), 0) << "it has written a line about its end";
  EXPECT_EQ(output().find("stopping"), std::string::npos);
}

TEST_F(CgxdTest, OpensAsManyFilesAsItMayAndSaysSo) {
  const FewOpenFiles few(256);
  auto daemon = serve();
  rlimit limit{};
  ASSERT_EQ(::prlimit(daemon->pid(), RLIMIT_NOFILE, nullptr, &limit), 0);
  EXPECT_EQ(limit.rlim_cur, few.most());
  const std::string said = std::to_string(few.most());
  EXPECT_NE(output().find(said), std::string::npos) << output();
}

TEST_F(CgxdTest, RunLeavesTheCommandItsLimitOfOpenFiles) {
  const FewOpenFiles few(256);
  Process run = start({"run", "--", "sh", "-c", "test $(ulimit -Sn) = 256 && exit 7"});
  EXPECT_EQ(run.wait(), 7) << output();
}

TEST_F(CgxdTest, UcxSettingsOfTheEnvironmentDoNotCount) {
  auto daemon = serve({}, {"UCX_TLS=nonsense", "UCX_LOG_LEVEL=nonsense"});
  EXPECT_TRUE(daemon->alive());
  EXPECT_EQ(output().find("nonsense"), std::string::npos) << output();
}

TEST_F(CgxdTest, AnIdleOneUsesLessThanHalfAPercentOfACore) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer has a thread of its own, which is not idle";
#endif
  auto daemon = serve();
  MiniRank rank(path("cgxd.sock"), "train");
  rank.start_joining(0, 1);
  rank.finish_joining();
  clockid_t clock{};
  ASSERT_EQ(::clock_getcpuclockid(daemon->pid(), &clock), 0);
  const auto cpu_ns = [&] {
    timespec used{};
    EXPECT_EQ(::clock_gettime(clock, &used), 0);
    return static_cast<double>(used.tv_sec) * 1e9 + static_cast<double>(used.tv_nsec);
  };
  constexpr double kLimitNs = 2e9 * 0.005;
  double used_ns = kLimitNs;
  // More than once: what it does after its start may fall into the first time.
  for (int attempt = 0; attempt < 3 && used_ns >= kLimitNs; ++attempt) {
    const double before = cpu_ns();
    std::this_thread::sleep_for(std::chrono::seconds(2));  // the thing measured is time
    used_ns = cpu_ns() - before;
  }
  EXPECT_LT(used_ns, kLimitNs);
}

TEST_F(CgxdTest, LivesThroughGarbageOnItsSockets) {
  auto daemon = serve({"--set", "mesh.listen=127.0.0.1:0"});
  for (int i = 0; i < 100; ++i) {
    RawClient junk(path("cgxd.sock"));
    const std::string bytes(1 + i * 700, static_cast<char>(i));
    junk.send_bytes(std::as_bytes(std::span(bytes)));
    EXPECT_TRUE(junk.receive().has_value());
  }
  MiniRank rank(path("cgxd.sock"), "train");
  rank.start_joining(0, 1);
  EXPECT_EQ(rank.finish_joining().code, StatusCode::kOK);
}

}  // namespace
}  // namespace cgx::daemon
