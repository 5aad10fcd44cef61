// Meeting through a store, without daemons: who is met, who is named when somebody is missing.
#include "client/rendezvous.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <map>
#include <mutex>
#include <set>
#include <thread>

namespace cgx::client {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using namespace std::chrono_literals;

// What stores differ in.
struct Habits {
  bool waits = false;  // get waits for the key instead of saying NOT_FOUND
  bool overwrites = true;
};

class MemoryStore final : public Store {
 public:
  explicit MemoryStore(Habits habits = {}) : habits_(habits) {}

  Status put(const std::string& key, std::span<const std::byte> value) override {
    const std::lock_guard lock(mutex_);
    if (habits_.overwrites || !values_.contains(key)) values_[key] = {value.begin(), value.end()};
    changed_.notify_all();
    return {};
  }
  Result<std::vector<std::byte>> get(const std::string& key) override {
    std::unique_lock lock(mutex_);
    if (habits_.waits) changed_.wait_for(lock, 5s, [&] { return values_.contains(key); });
    const auto found = values_.find(key);
    if (found == values_.end()) return Status(StatusCode::kNOT_FOUND, key);
    return found->second;
  }

 private:
  const Habits habits_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::vector<std::byte>> values_;
};

constexpr uint64_t kLongMs = 20'000;
constexpr uint64_t kShortMs = 200;

Meeting meeting(uint32_t rank, uint32_t size, uint64_t timeout_ms = kLongMs) {
  Meeting result{.prefix = "cgx/job/grads", .name = "grads", .rank = rank, .size = size};
  result.self = {{rank, 7}, "10.0.0." + std::to_string(rank) + ":1"};
  result.key_if_first[0] = static_cast<std::byte>(rank + 1);
  result.deadline = deadline_in_ms(timeout_ms);
  return result;
}

std::vector<Result<Agreement>> meet_all(Store& store, const std::vector<Meeting>& meetings) {
  std::vector<Result<Agreement>> results(meetings.size(), Status(StatusCode::kINTERNAL, "none"));
  std::vector<std::thread> threads;
  for (size_t i = 0; i < meetings.size(); ++i) {
    threads.emplace_back([&, i] { results[i] = meet(meetings[i], &store); });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

std::vector<Meeting> everybody(uint32_t size) {
  std::vector<Meeting> meetings;
  for (uint32_t rank = 0; rank < size; ++rank) meetings.push_back(meeting(rank, size));
  return meetings;
}

// The number of a meeting of which every rank knows the same.
uint32_t number_of(const std::vector<Result<Agreement>>& results) {
  for (const auto& result : results) {
    EXPECT_TRUE(result.ok()) << result.status().message();
    if (!result.ok()) return 0;
    EXPECT_EQ(result->number, results[0]->number);
    EXPECT_EQ(result->job_key[0], std::byte{1});  // rank 0's
    EXPECT_EQ(result->members.size(), results.size());
    for (uint32_t rank = 0; rank < result->members.size(); ++rank) {
      EXPECT_EQ(result->members[rank].instance[0], rank);
    }
  }
  return results[0]->number;
}

TEST(RendezvousTest, RanksMeetAgainAndAgainUnderOneName) {
  MemoryStore store;
  std::set<uint32_t> numbers;
  for (int time = 0; time < 5; ++time) numbers.insert(number_of(meet_all(store, everybody(4))));
  EXPECT_EQ(numbers.size(), 5u);
}

TEST(RendezvousTest, RanksMeetInAStoreWhoseGetWaits) {
  MemoryStore store({.waits = true, .overwrites = true});
  EXPECT_NE(number_of(meet_all(store, everybody(3))), number_of(meet_all(store, everybody(3))));
}

TEST(RendezvousTest, MoreRanksThanOneLookHoldsMeet) {
  MemoryStore store;
  number_of(meet_all(store, everybody(80)));
}

TEST(RendezvousTest, EntriesOfTheDeadAreNotBelieved) {
  MemoryStore store;
  number_of(meet_all(store, everybody(3)));  // a larger world, all of it gone since
  auto meetings = everybody(2);
  // Rank 0 comes long after rank 1 has read the old list, and after a rank 1 that is dead again.
  ASSERT_EQ(meet(meeting(1, 2, kShortMs), &store).status().code(), StatusCode::kTIMED_OUT);
  number_of(meet_all(store, meetings));
}

TEST(RendezvousTest, ALateRankIsTakenForWhoItIsNow) {
  for (const bool waits : {false, true}) {
    MemoryStore store({.waits = waits, .overwrites = true});
    number_of(meet_all(store, everybody(3)));
    const auto before = store.get("cgx/job/grads/list").value();
    // Ranks 0 and 2 find rank 1's old entry; rank 1 comes when they already wait for its answer.
    std::vector<Result<Agreement>> results(3, Status(StatusCode::kINTERNAL, "none"));
    std::vector<std::thread> threads;
    for (const uint32_t rank : {0u, 2u}) {
      threads.emplace_back([&, rank] { results[rank] = meet(meeting(rank, 3), &store); });
    }
    threads.emplace_back([&] {
      while (store.get("cgx/job/grads/list").value() == before) std::this_thread::yield();
      results[1] = meet(meeting(1, 3), &store);
    });
    for (std::thread& thread : threads) thread.join();
    number_of(results);
  }
}

TEST(RendezvousTest, MissingRanksAreNamedInTime) {
  MemoryStore store;
  const auto begin = Clock::now();
  const auto results = meet_all(store, {meeting(0, 4, kShortMs), meeting(2, 4, kShortMs)});
  EXPECT_LT(Clock::now() - begin, 5s);
  for (const auto& result : results) {
    EXPECT_EQ(result.status().code(), StatusCode::kTIMED_OUT);
    EXPECT_THAT(result.status().message(), HasSubstr("missing: rank 1, rank 3"));
  }
  const auto alone = meet(meeting(1, 2, kShortMs), &store);
  EXPECT_THAT(alone.status().message(), HasSubstr("communicator grads as rank 1 of 2"));
}

TEST(RendezvousTest, ARankThatCameAndDiedIsNamed) {
  MemoryStore store;
  number_of(meet_all(store, everybody(3)));
  const auto results = meet_all(
      store,
      {meeting(0, 3, kShortMs), meeting(1, 3, 2 * kShortMs)});  // rank 2's old entry is there
  for (const auto& result : results) EXPECT_EQ(result.status().code(), StatusCode::kTIMED_OUT);
  EXPECT_THAT(results[0].status().message(),
              AllOf(HasSubstr("missing: rank 2"), Not(HasSubstr("rank 1"))));
}

TEST(RendezvousTest, RanksThatDisagreeOnTheirNumberAreAllTold) {
  MemoryStore store;
  const auto results = meet_all(store, {meeting(0, 2), meeting(1, 3)});
  for (const auto& result : results) {
    EXPECT_EQ(result.status().code(), StatusCode::kMISMATCH);
    EXPECT_THAT(result.status().message(), HasSubstr("ranks, this rank says"));
  }
}

TEST(RendezvousTest, AStoreThatKeepsFirstValuesServesOneMeeting) {
  MemoryStore store({.waits = false, .overwrites = false});
  number_of(meet_all(store, everybody(3)));
  for (const auto& result : meet_all(store, everybody(3))) {
    EXPECT_EQ(result.status().code(), StatusCode::kINVALID_ARGUMENT);
    EXPECT_THAT(result.status().message(), HasSubstr("kept an earlier value of cgx/job/grads"));
  }
}

TEST(RendezvousTest, WaitingEndsWhenTheSessionDoes) {
  MemoryStore store;
  Meeting lonely = meeting(0, 2);
  lonely.go_on = [] { return Status(StatusCode::kDAEMON_LOST, "gone"); };
  EXPECT_EQ(meet(lonely, &store).status().code(), StatusCode::kDAEMON_LOST);
}

TEST(RendezvousTest, EntriesCutShortAreRefused) {
  for (const char* const key : {"member/1", "list"}) {
    MemoryStore store;
    number_of(meet_all(store, everybody(2)));
    const std::string path = std::string("cgx/job/grads/") + key;
    auto value = store.get(path).value();
    value.pop_back();
    ASSERT_TRUE(store.put(path, value).ok());
    const uint32_t reader = path.ends_with("list") ? 1 : 0;
    EXPECT_EQ(meet(meeting(reader, 2), &store).status().code(), StatusCode::kPROTOCOL_ERROR) << key;
  }
}

}  // namespace
}  // namespace cgx::client
