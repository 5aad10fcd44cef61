#include "daemon/data/snapshot_board.h"

#include <gtest/gtest.h>

#include <future>
#include <thread>

#include "daemon/base/clock.h"

namespace cgx::daemon {
namespace {

class SnapshotBoardTest : public ::testing::Test {
 protected:
  using Answer = std::future<Result<SnapshotBoard::Shown>>;
  Answer ask() {
    return std::async(std::launch::async, [this] { return board_.ask(20 * kSecond); });
  }
  void wait_until_wanted() {
    while (!board_.wanted()) std::this_thread::yield();
  }
  void make(uint64_t links) {
    board_.begin();
    put_up(links);
  }
  void put_up(uint64_t links) {
    scheduler::Snapshot made;
    made.links = static_cast<uint32_t>(links);
    board_.put_up(std::move(made));
  }
  std::atomic<int> woken_{0};
  SnapshotBoard board_{[this] { ++woken_; }};
};

TEST_F(SnapshotBoardTest, WantsNothingBeforeSomebodyAsks) {
  EXPECT_FALSE(board_.wanted());
  Answer answer = ask();
  wait_until_wanted();
  make(7);
  const auto shown = answer.get();
  ASSERT_TRUE(shown.ok()) << shown.status().to_string();
  EXPECT_EQ((*shown)->links, 7u);
  EXPECT_FALSE(board_.wanted());
  EXPECT_EQ(woken_, 1);
}

// What an asker did before it asked may be missing in a snapshot that was begun before.
TEST_F(SnapshotBoardTest, GivesNobodyWhatWasBegunBeforeTheyAsked) {
  Answer first = ask();
  wait_until_wanted();
  board_.begin();
  Answer second = ask();
  wait_until_wanted();
  put_up(1);
  EXPECT_EQ((*first.get())->links, 1u);
  EXPECT_TRUE(board_.wanted());
  make(2);
  EXPECT_EQ((*second.get())->links, 2u);
}

TEST_F(SnapshotBoardTest, GivesAllWhoWaitTheSameOneAndKeepsNone) {
  std::vector<Answer> answers;
  for (int i = 0; i < 8; ++i) answers.push_back(ask());
  wait_until_wanted();
  std::weak_ptr<const scheduler::Snapshot> last;
  int made = 0;
  for (Answer& answer : answers) {
    while (answer.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
      if (board_.wanted()) make(static_cast<uint64_t>(++made));
      std::this_thread::yield();
    }
    last = *answer.get();
  }
  EXPECT_LE(made, 8);
  EXPECT_TRUE(last.expired()) << "plans of the past are not held";
}

TEST_F(SnapshotBoardTest, SaysWhenNothingComesInTime) {
  EXPECT_EQ(board_.ask(1).status().code(), StatusCode::kTIMED_OUT);
}

TEST_F(SnapshotBoardTest, SaysWhenNothingWillCome) {
  Answer answer = ask();
  wait_until_wanted();
  board_.close();
  EXPECT_EQ(answer.get().status().code(), StatusCode::kCANCELLED);
  EXPECT_EQ(board_.ask(kSecond).status().code(), StatusCode::kBUSY);
}

}  // namespace
}  // namespace cgx::daemon
