// Meeting through a store, without daemons: who is met, who is named when somebody is missing.
#include "client/rendezvous.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include "client/leader.h"

namespace cgx::client {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
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
    if (habits_.waits) changed_.wait_for(lock, 1s, [&] { return values_.contains(key); });
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
constexpr uint64_t kMeetingMs = 1'000;  // enough to see who is there

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
  const auto results = meet_all(store, {meeting(0, 4, kMeetingMs), meeting(2, 4, kMeetingMs)});
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
      {meeting(0, 3, kMeetingMs), meeting(1, 3, 2 * kMeetingMs)});  // rank 2's old entry is there
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

// A store as one rank sees it: from the moment it is to fail, keys that are not there are an error.
class FailingStore final : public Store {
 public:
  FailingStore(Store& store, std::string key_end, Status failure)
      : store_(store), key_end_(std::move(key_end)), failure_(std::move(failure)) {}
  Status put(const std::string& key, std::span<const std::byte> value) override {
    return store_.put(key, value);
  }
  Result<std::vector<std::byte>> get(const std::string& key) override {
    auto value = store_.get(key);
    if (!value.ok() && key.ends_with(key_end_)) return failure_;
    return value;
  }

 private:
  Store& store_;
  const std::string key_end_;
  const Status failure_;
};

void leave_entry_of_the_dead(Store& store, uint32_t rank, uint32_t size) {
  Meeting dead = meeting(rank, size);
  bool came = false;
  dead.go_on = [&] {
    return std::exchange(came, true) ? Status(StatusCode::kCANCELLED, "") : Status();
  };
  ASSERT_EQ(meet(dead, &store).status().code(), StatusCode::kCANCELLED);
}

TEST(RendezvousTest, TheOthersAreToldWhyRank0GaveUp) {
  for (const StatusCode code : {StatusCode::kTIMED_OUT, StatusCode::kUNAVAILABLE}) {
    for (const bool waits : {false, true}) {
      MemoryStore store({.waits = waits, .overwrites = true});
      leave_entry_of_the_dead(store, 2, 3);
      FailingStore failing(store, "/answer/2", {code, "the store said so"});
      const auto begin = Clock::now();
      Result<Agreement> leader = Status(), follower = Status();
      std::thread first([&] { leader = meet(meeting(0, 3), &failing); });
      follower = meet(meeting(1, 3), &store);
      first.join();
      EXPECT_LT(Clock::now() - begin, waits ? 8s : 5s);  // its own is 20 s
      EXPECT_EQ(leader.status().code(), code);
      EXPECT_EQ(follower.status().code(), code);
      EXPECT_EQ(follower.status().message(), "rank 0 gave up: " + leader.status().message());
      EXPECT_THAT(
          follower.status().message(),
          HasSubstr(code == StatusCode::kTIMED_OUT ? "missing: rank 2" : "the store said so"));
    }
  }
}

TEST(RendezvousTest, TheDaemonOfRank0IsAPeerToTheOthers) {
  MemoryStore store;
  leave_entry_of_the_dead(store, 2, 3);
  std::vector<Meeting> meetings = {meeting(0, 3), meeting(1, 3)};
  meetings[0].go_on = [&] {
    const bool listed = store.get("cgx/job/grads/list").ok();
    return listed ? Status(StatusCode::kDAEMON_LOST, "the daemon at /here is gone") : Status();
  };
  const auto results = meet_all(store, meetings);
  EXPECT_EQ(results[0].status().code(), StatusCode::kDAEMON_LOST);
  EXPECT_EQ(results[1].status().code(), StatusCode::kPEER_LOST);
  EXPECT_EQ(results[1].status().message(), "rank 0 gave up: the daemon at /here is gone");
}

// Until a rank has told where it is, its place in the store is not there.
void await_place_of(Store& store, uint32_t rank) {
  const std::string key = "cgx/job/grads/member/" + std::to_string(rank);
  while (!store.get(key).ok()) std::this_thread::yield();
}

Meeting second_process(uint32_t rank, uint32_t size) {
  Meeting result = meeting(rank, size);
  result.self.mesh_address = "10.9.9.9:1";
  return result;
}

TEST(RendezvousTest, ASecondProcessOfARankIsRefusedAndTheFirstMeets) {
  for (const uint32_t rank : {0u, 1u}) {
    MemoryStore store;
    std::vector<Result<Agreement>> results(3, Status(StatusCode::kINTERNAL, "none"));
    std::vector<std::thread> threads;
    for (const uint32_t each : {0u, 1u}) {
      threads.emplace_back([&, each] { results[each] = meet(meeting(each, 3), &store); });
      await_place_of(store, each);
    }
    const auto begin = Clock::now();
    const auto second = meet(second_process(rank, 3), &store);
    EXPECT_LT(Clock::now() - begin, 2s);
    EXPECT_EQ(second.status().code(), StatusCode::kALREADY_EXISTS);
    EXPECT_THAT(second.status().message(), HasSubstr("rank " + std::to_string(rank) +
                                                     " of communicator grads is another process"));
    results[2] = meet(meeting(2, 3), &store);
    for (std::thread& thread : threads) thread.join();
    number_of(results);
    EXPECT_EQ(results[2]->members[rank].mesh_address, meeting(rank, 3).self.mesh_address);
  }
}

TEST(RendezvousTest, OfTwoProcessesThatComeAtOnceOneIsRefused) {
  for (const uint32_t rank : {0u, 1u}) {
    MemoryStore store;
    std::vector<Meeting> meetings = {meeting(0, 3), meeting(1, 3), second_process(rank, 3)};
    std::atomic<uint32_t> refused{0};
    std::thread last([&] {
      while (refused == 0 && Clock::now() < meetings[0].deadline) std::this_thread::sleep_for(1ms);
      EXPECT_TRUE(meet(meeting(2, 3), &store).ok());
    });
    std::vector<Result<Agreement>> results(3, Status(StatusCode::kINTERNAL, "none"));
    std::vector<std::thread> threads;
    for (size_t i = 0; i < meetings.size(); ++i) {
      threads.emplace_back([&, i] {
        results[i] = meet(meetings[i], &store);
        refused += results[i].status().code() == StatusCode::kALREADY_EXISTS;
      });
    }
    for (std::thread& thread : threads) thread.join();
    last.join();
    EXPECT_EQ(refused, 1u);
    EXPECT_TRUE(results[1 - rank].ok()) << results[1 - rank].status().message();
    EXPECT_NE(results[rank].ok(), results[2].ok());
  }
}

TEST(RendezvousTest, ASecondProcessAfterTheMeetingDoesNotDisturbWhoStillReads) {
  MemoryStore store;
  std::atomic<bool> may_read{false};
  class SlowStore final : public Store {
   public:
    SlowStore(Store& store, std::atomic<bool>& go) : store_(store), go_(go) {}
    Status put(const std::string& key, std::span<const std::byte> value) override {
      return store_.put(key, value);
    }
    Result<std::vector<std::byte>> get(const std::string& key) override {
      while (key.ends_with("/key") && !go_) std::this_thread::yield();
      return store_.get(key);
    }

   private:
    Store& store_;
    std::atomic<bool>& go_;
  } slow(store, may_read);
  Result<Agreement> reader = Status();
  std::thread thread([&] { reader = meet(meeting(2, 3), &slow); });
  const auto results = meet_all(store, {meeting(0, 3), meeting(1, 3)});
  Meeting late = second_process(1, 3);
  late.deadline = deadline_in_ms(kShortMs);
  EXPECT_EQ(meet(late, &store).status().code(), StatusCode::kTIMED_OUT);
  may_read = true;
  thread.join();
  number_of({results[0], results[1], reader});
  EXPECT_EQ(reader->members[1].mesh_address, meeting(1, 3).self.mesh_address);
}

constexpr uint32_t kLooks = 5;  // between the first and the last lie more than 10 ms

// `ranks` meet in vain: when all of them have been waiting for a while, the daemon of the second
// one sees rank 1 die.
void expect_told_of_a_death(Store& store, const std::vector<uint32_t>& ranks) {
  std::vector<Meeting> meetings;
  std::vector<std::atomic<uint32_t>> looks(ranks.size());
  for (size_t i = 0; i < ranks.size(); ++i) {
    meetings.push_back(meeting(ranks[i], 4));
    meetings[i].go_on = [&, i] {
      ++looks[i];
      const bool dead = i == 1 && std::all_of(looks.begin(), looks.end(),
                                              [](const auto& each) { return each >= kLooks; });
      return dead ? Status(StatusCode::kRANK_LOST, "rank 1 is gone: it was killed") : Status();
    };
  }
  const auto begin = Clock::now();
  const auto results = meet_all(store, meetings);
  EXPECT_LT(Clock::now() - begin, 10s);
  for (const auto& result : results) {
    EXPECT_EQ(result.status().code(), StatusCode::kRANK_LOST);
    EXPECT_THAT(result.status().message(), EndsWith("rank 1 is gone: it was killed"));
  }
}

TEST(RendezvousTest, ARankThatADaemonSawDieIsToldToAllThatWaitEachTime) {
  MemoryStore store;
  for (int time = 0; time < 3; ++time) {
    expect_told_of_a_death(store, {0, 2, 3});
    number_of(meet_all(store, everybody(4)));  // to a later meeting that is no news
  }
}

TEST(RendezvousTest, ADeathIsToldToThoseThatWaitForRank0WhereItHasMetThemBefore) {
  MemoryStore store;
  std::atomic<uint32_t> looks{0};
  Meeting first = meeting(0, 4);
  first.go_on = [&] {
    ++looks;
    return Status();
  };
  Result<Agreement> leader = Status();
  std::thread waiting([&] { leader = meet(first, &store); });
  while (looks < 2) std::this_thread::yield();  // it has not found the others
  auto results = meet_all(store, {meeting(1, 4), meeting(2, 4), meeting(3, 4)});
  waiting.join();
  results.insert(results.begin(), leader);
  number_of(results);
  for (int time = 0; time < 2; ++time) expect_told_of_a_death(store, {2, 3});
}

TEST(RendezvousTest, WhoMayNotMeetLeavesNothingInTheStore) {
  MemoryStore store;
  Meeting refused = meeting(1, 2);
  refused.go_on = [] { return Status(StatusCode::kALREADY_EXISTS, "rank 1 is alive"); };
  EXPECT_EQ(meet(refused, &store).status().code(), StatusCode::kALREADY_EXISTS);
  EXPECT_EQ(store.get("cgx/job/grads/member/1").status().code(), StatusCode::kNOT_FOUND);
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

// Serves in a process that may have few descriptors more.
class LeaderWithFewDescriptors {
 public:
  explicit LeaderWithFewDescriptors(rlim_t more) {
    int ports[2], ends[2];
    EXPECT_EQ(::pipe2(ports, O_CLOEXEC), 0);
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    end_.reset(ends[1]);
    process_ = ::fork();
    if (process_ == 0) {
      end_.reset();
      serve(more, ports[1], ends[0]);
    }
    ::close(ends[0]);
    ::close(ports[1]);
    EXPECT_EQ(::read(ports[0], &port_, sizeof port_), ssize_t{sizeof port_});
    ::close(ports[0]);
  }
  ~LeaderWithFewDescriptors() {
    end_.reset();
    int status = -1;
    EXPECT_EQ(::waitpid(process_, &status, 0), process_);
    EXPECT_EQ(status, 0);
  }
  std::string address() const { return "127.0.0.1:" + std::to_string(ntohs(port_)); }
  std::unique_ptr<LeaderStore> connect() const {
    return LeaderStore::connect(address(), deadline_in_ms(kLongMs), [] { return Status(); })
        .value();
  }
  std::chrono::nanoseconds cpu_time() const {
    clockid_t clock;
    timespec used{};
    EXPECT_EQ(::clock_getcpuclockid(process_, &clock), 0);
    EXPECT_EQ(::clock_gettime(clock, &used), 0);
    return std::chrono::seconds(used.tv_sec) + std::chrono::nanoseconds(used.tv_nsec);
  }

 private:
  [[noreturn]] static void serve(rlim_t more, int port, int end) {
    const int next = ::dup(end);
    ::close(next);
    const rlimit few{static_cast<rlim_t>(next) + more, static_cast<rlim_t>(next) + more};
    bool good = ::setrlimit(RLIMIT_NOFILE, &few) == 0;
    {
      const auto server = LeaderServer::open("127.0.0.1:0").value();
      sockaddr_in address{};
      socklen_t bytes = sizeof address;
      good &=
          ::getsockname(server->listening(), reinterpret_cast<sockaddr*>(&address), &bytes) == 0;
      good &= ::write(port, &address.sin_port, sizeof address.sin_port) > 0;
      char nothing;
      good &= ::read(end, &nothing, 1) == 0;
    }
    ::_exit(good ? 0 : 1);
  }

  UniqueFd end_;
  pid_t process_ = -1;
  in_port_t port_ = 0;
};

TEST(FullLeaderTest, MoreRanksMeetThanItMayHaveConnections) {
  constexpr uint32_t kRanks = 16;
  const LeaderWithFewDescriptors leader(8);
  std::vector<Result<Agreement>> results(kRanks, Status(StatusCode::kINTERNAL, "none"));
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      const auto store = leader.connect();
      results[rank] = meet(meeting(rank, kRanks), store.get());
    });
  }
  for (std::thread& thread : threads) thread.join();
  number_of(results);
}

TEST(FullLeaderTest, WaitsWithoutWorkWhereItHasNoRoom) {
  const LeaderWithFewDescriptors leader(8);
  std::vector<std::unique_ptr<LeaderStore>> silent;
  for (int i = 0; i < 16; ++i) silent.push_back(leader.connect());
  const auto used_before = leader.cpu_time();
  std::this_thread::sleep_for(300ms);
  EXPECT_LT(leader.cpu_time() - used_before, 100ms);
  silent.resize(1);
  const auto store = leader.connect();
  EXPECT_EQ(store->get("anything").status().code(), StatusCode::kNOT_FOUND);
}

}  // namespace
}  // namespace cgx::client
