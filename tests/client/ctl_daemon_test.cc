// cgxctl against a real cgxd: the operators' edge as main() puts it together.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include "proto/messages/control.grpc.pb.h"
#include "tests/client/ctl_process.h"
#include "tests/daemon/operators/control_harness.h"

namespace cgx::ctl {
namespace {

using ::testing::HasSubstr;

class CtlOfARealDaemon : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string run_directory = "run_directory=" + directory_ / "run";
    const std::string audit = "control.audit_file=" + directory_ / "audit";
    daemon_ = ::fork();
    if (daemon_ == 0) {
      ::execl(CGXD, "cgxd", "--set", run_directory.c_str(), "--set", audit.c_str(), nullptr);
      ::_exit(127);
    }
    ASSERT_TRUE(daemon::eventually([&] { return run({"status"}).code == 0; }));
  }
  void TearDown() override {
    if (daemon_ > 0) stop(SIGKILL);
  }
  int stop(int signal) {
    int status = -1;
    ::kill(daemon_, signal);
    EXPECT_EQ(::waitpid(daemon_, &status, 0), daemon_);
    daemon_ = 0;
    return status;
  }
  std::string socket_path() const { return directory_ / "run/control.sock"; }
  Ran run(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"--address", socket_path()});
    return run_ctl(arguments);
  }

  daemon::OpenDirectory directory_;
  pid_t daemon_ = 0;
};

TEST_F(CtlOfARealDaemon, ShowsAnIdleDaemon) {
  EXPECT_THAT(run({"status"}).out, HasSubstr("sessions            0"));
  EXPECT_EQ(run({"jobs"}).out, "no jobs\n");
  EXPECT_EQ(run({"peers"}).out, "no peers\n");
  EXPECT_EQ(
      run({"policy", "get"}).err,
      "cgxctl: NOT_FOUND: no job trains on this machine now; start one, or ask on a machine where "
      "one trains\n");
}

TEST_F(CtlOfARealDaemon, CountsJunkInItsCounters) {
  const cgx::UniqueFd fd = daemon::connect_unix(socket_path());
  ASSERT_GT(::send(fd.get(), "garbage", 7, MSG_NOSIGNAL), 0);
  EXPECT_TRUE(daemon::eventually(
      [&] { return run({"counters"}).out.find("control_junk") != std::string::npos; }));
}

// Its daemon was not started again after an upgrade.
TEST(CtlOfAnOlderDaemon, IsToldThatItDoesNotKnowTheQuestion) {
  daemon::OpenDirectory directory;
  const std::string path = directory / "older.sock";
  v1::Control::Service knows_nothing;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("unix:" + path, grpc::InsecureServerCredentials());
  builder.RegisterService(&knows_nothing);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  ASSERT_NE(server, nullptr);
  const Ran ran = run_ctl({"--address", "unix:" + path, "plan", "profile"});
  EXPECT_EQ(ran.code, 1);
  EXPECT_THAT(ran.err, HasSubstr("at " + path + " does not know this question"));
  server->Shutdown();
}

TEST_F(CtlOfARealDaemon, AuditsARefusedChange) {
  const std::string file = directory_ / "policy.yaml";
  std::ofstream(file) << "window: 5\n";
  EXPECT_EQ(run({"policy", "apply", file, "--reason", "why not"}).code, 1);
  EXPECT_THAT(daemon::read_file(directory_ / "audit"), HasSubstr("\"reason\":\"why not\""));
}

TEST_F(CtlOfARealDaemon, NamesADaemonThatDoesNotAnswer) {
  const std::string file = directory_ / "policy.yaml";
  std::ofstream(file) << "window: 5\n";
  ::kill(daemon_, SIGSTOP);
  int how = 0;
  ASSERT_EQ(::waitpid(daemon_, &how, WUNTRACED), daemon_);  // all its threads have stopped
  ASSERT_TRUE(WIFSTOPPED(how));
  const std::string said =
      "the daemon at " + socket_path() + " has not answered within 0.3 s (--timeout)\n";
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{{"status"},
                                             {"status", "--all"},
                                             {"jobs"},
                                             {"peers"},
                                             {"counters"},
                                             {"tensors"},
                                             {"events"},
                                             {"codecs"},
                                             {"policy", "get"},
                                             {"policy", "apply", file},
                                             {"plan", "history"},
                                             {"drain"},
                                             {"drain", "--wait", "3"}}) {
    std::vector<std::string> arguments{"--timeout", "0.3"};
    arguments.insert(arguments.end(), words.begin(), words.end());
    const auto began = std::chrono::steady_clock::now();
    const Ran ran = run(arguments);
    EXPECT_EQ(ran.code, 3) << words[0];
    EXPECT_EQ(ran.err, "cgxctl: " + said) << words[0];
    EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(3)) << words[0];
  }
  const Ran doctor = run({"--timeout", "0.3", "doctor"});
  EXPECT_EQ(doctor.code, 1);
  EXPECT_THAT(doctor.out, HasSubstr(": " + said));
}

TEST_F(CtlOfARealDaemon, SaysThatADaemonOnLoopbackServesOneMachine) {
  EXPECT_THAT(run({"doctor"}).out, HasSubstr("nothing is wrong on this machine; this daemon "
                                             "listens on loopback only"));
}

TEST_F(CtlOfARealDaemon, GoesAwayWithItsSocket) {
  const int status = stop(SIGTERM);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  EXPECT_EQ(run({"status"}).code, 3);
  EXPECT_NE(::access(socket_path().c_str(), F_OK), 0);
}

}  // namespace
}  // namespace cgx::ctl
