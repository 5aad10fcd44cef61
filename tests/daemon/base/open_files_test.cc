#include "daemon/base/open_files.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include "proto/wire/unique_fd.h"

namespace cgx::daemon {
namespace {

using Answer = Admission::Answer;

class AdmissionTest : public ::testing::Test {
 protected:
  AdmissionTest() { ::getrlimit(RLIMIT_NOFILE, &before_); }
  ~AdmissionTest() override { has_room(); }
  void has_room() { ::setrlimit(RLIMIT_NOFILE, &before_); }
  void is_full() {
    const rlimit none{.rlim_cur = 0, .rlim_max = before_.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  }
  Answer ask(uint64_t now_ns) { return admission_.ask(door_.get(), now_ns); }

  static constexpr uint64_t kNow = 1000, kLater = kNow + Admission::kPatienceNs;

 private:
  rlimit before_{};
  UniqueFd door_{::open("/dev/null", O_RDONLY | O_CLOEXEC)};
  Admission admission_;
};

TEST_F(AdmissionTest, WhoComesWaitsUntilSomebodyLetsGo) {
  EXPECT_EQ(ask(kNow), Answer::kLetIn);
  is_full();
  EXPECT_EQ(ask(kNow), Answer::kWait);
  EXPECT_EQ(ask(kLater - 1), Answer::kWait);
  has_room();
  EXPECT_EQ(ask(kLater - 1), Answer::kLetIn);
  is_full();
  EXPECT_EQ(ask(kLater), Answer::kWait) << "another wait has begun";
}

TEST_F(AdmissionTest, WhereWaitingWasInVainNobodyWaitsAgain) {
  is_full();
  EXPECT_EQ(ask(kNow), Answer::kWait);
  EXPECT_EQ(ask(kLater), Answer::kTurnAway);
  EXPECT_EQ(ask(kLater + 1), Answer::kTurnAway);
  has_room();
  EXPECT_EQ(ask(kLater + 2), Answer::kLetIn);
  is_full();
  EXPECT_EQ(ask(kLater + 3), Answer::kWait);
}

}  // namespace
}  // namespace cgx::daemon
