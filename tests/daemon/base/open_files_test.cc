#include "daemon/base/open_files.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <vector>

#include "daemon/net/packet_socket.h"
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
  // So many are free, and none of them is of the reserve.
  void has_room_for(int descriptors) {
    const UniqueFd next(::fcntl(door_.get(), F_DUPFD_CLOEXEC, 0));
    const auto files = static_cast<rlim_t>(next.get() + descriptors);
    rlim_t limit = files;
    while (limit - std::min<rlim_t>(limit / 8, 64) < files) ++limit;
    const rlimit few{.rlim_cur = limit, .rlim_max = before_.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  }
  Answer ask(uint64_t now_ns, size_t descriptors = 1, bool is_in = false) {
    return admission_.ask(door_.get(), now_ns, descriptors, is_in);
  }

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

TEST_F(AdmissionTest, WhoNeedsManyWaitsUntilAllOfThemAreFree) {
  has_room_for(4);
  EXPECT_EQ(ask(kNow, 5), Answer::kWait);
  EXPECT_EQ(ask(kNow, 4), Answer::kLetIn);
  has_room_for(5);
  EXPECT_EQ(ask(kNow, 5), Answer::kLetIn);
}

TEST_F(AdmissionTest, WhoIsInMayTakeHalfOfTheReserve) {
  std::vector<UniqueFd> held;  // so many that there is a reserve
  while (held.size() < 100) held.emplace_back(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  has_room_for(0);
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlim_t reserve = std::min<rlim_t>(limit.rlim_cur / 8, 64);
  size_t free = 0;
  for (rlim_t fd = 0; fd < limit.rlim_cur - reserve / 2; ++fd) {
    free += ::fcntl(static_cast<int>(fd), F_GETFD) < 0;
  }
  ASSERT_GT(free, 0u);
  EXPECT_EQ(ask(kNow), Answer::kWait);
  EXPECT_EQ(ask(kNow, free, /*is_in=*/true), Answer::kLetIn);
  EXPECT_EQ(ask(kNow, free + 1, /*is_in=*/true), Answer::kWait);
}

TEST(UnreadDescriptors, AreCountedWhereTheyWait) {
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  const UniqueFd ours(ends[0]), theirs(ends[1]);
  EXPECT_EQ(unread_descriptors(ours.get()), 0u);
  for (int i = 0; i < 2; ++i) {
    const std::byte byte{};
    ASSERT_TRUE(send_packet(theirs.get(), {&byte, 1}, {ours.get(), ours.get(), ours.get()}).ok());
  }
  EXPECT_EQ(unread_descriptors(ours.get()), 6u);
  const UniqueFd none(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  EXPECT_EQ(unread_descriptors(none.get()), std::nullopt);
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
