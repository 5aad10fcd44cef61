// Making communicators and their tables: rendezvous, disagreement, closing.
#include <atomic>
#include <set>
#include <thread>

#include "client/checks.h"
#include "tests/client/ranks.h"

namespace cgx::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class CommunicatorTest : public RanksTest {
 protected:
  cgx_comm_options options(const char* name, uint32_t rank, uint32_t size) {
    cgx_comm_options result{.size = sizeof(result)};
    result.name = name;
    result.rank = rank;
    result.ranks = size;
    result.timeout_ms = 10'000;
    result.rendezvous = store_.callbacks();
    return result;
  }
  // What rank 0 settled lists with: the job's key.
  std::set<std::string> job_keys(const std::string& prefix) {
    std::set<std::string> keys;
    for (const auto& [key, value] : store_.values()) {
      if (key.starts_with(prefix) && key.ends_with("/key")) keys.insert(value.substr(0, 32));
    }
    return keys;
  }
};

TEST_F(CommunicatorTest, OneRankNeedsNoRendezvous) {
  Rank rank{.session = open_session()};
  cgx_comm_options alone{.size = sizeof(alone)};
  alone.name = "alone";
  ASSERT_OK(cgx_comm_create(rank.session, &alone, &rank.comm));
  float* data = arena_floats(rank, 4);
  data[2] = 2.5f;
  EXPECT_OK(cgx_allreduce(rank.comm, data, data, 4, CGX_F32, CGX_AVG));
  EXPECT_EQ(data[2], 2.5f);
  EXPECT_OK(cgx_close(rank.session));
}

TEST_F(CommunicatorTest, RefusesBadOptionsByName) {
  cgx_session* session = open_session();
  cgx_comm* comm = nullptr;
  auto bad = options("c", 2, 2);
  EXPECT_EQ(cgx_comm_create(session, &bad, &comm), CGX_INVALID_ARGUMENT);
  EXPECT_THAT(cgx_last_error(), HasSubstr("rank 2 must be below the number of ranks, 2"));
  bad = options("", 0, 1);
  EXPECT_EQ(cgx_comm_create(session, &bad, &comm), CGX_INVALID_ARGUMENT);
  bad = options("c", 0, 2);
  bad.rendezvous = {};
  EXPECT_EQ(cgx_comm_create(session, &bad, &comm), CGX_INVALID_ARGUMENT);
  EXPECT_THAT(cgx_last_error(), HasSubstr("CGX_LEADER"));
  const std::string long_name(513, 'x');
  bad = options(long_name.c_str(), 0, 1);
  EXPECT_EQ(cgx_comm_create(session, &bad, &comm), CGX_INVALID_ARGUMENT);
  EXPECT_EQ(cgx_comm_create(session, nullptr, &comm), CGX_INVALID_ARGUMENT);
  EXPECT_OK(cgx_close(session));
}

TEST_F(CommunicatorTest, PublishesAKeyOfThirtyTwoBytesUnderJobAndName) {
  open_ranks(2);
  const auto values = store_.values();
  EXPECT_TRUE(values.contains("cgx/test/world/member/1"));
  EXPECT_EQ(job_keys("cgx/test/world/").size(), 1u);
}

TEST_F(CommunicatorTest, CommunicatorsOfOneJobShareItsKey) {
  open_ranks(2);
  each_rank([&](uint32_t i, Rank& rank) {
    cgx_comm* other = nullptr;
    auto second = options("second", 1 - i, 2);
    EXPECT_OK(cgx_comm_create(rank.session, &second, &other));
  });
  EXPECT_EQ(job_keys("cgx/test/world/"), job_keys("cgx/test/second/"));
}

TEST_F(CommunicatorTest, NameCanBeUsedAgainAfterClosing) {
  NEEDS_FAKE_DAEMON();
  open_ranks(2);
  each_rank([&](uint32_t i, Rank& rank) {
    ASSERT_OK(cgx_comm_close(rank.comm));
    rank.comm = nullptr;
    while (daemon_->communicators() != 0) std::this_thread::yield();
    auto again = options("world", i, 2);
    ASSERT_OK(cgx_comm_create(rank.session, &again, &rank.comm));
  });
}

TEST_F(CommunicatorTest, RanksThatDisagreeOnTheSizeAreNamed) {
  ranks_.resize(2);
  for (Rank& rank : ranks_) rank.session = open_session();
  std::atomic<int> mismatches{0};
  each_rank([&](uint32_t i, Rank& rank) {
    auto sized = options("sizes", i, 2 + i);
    sized.timeout_ms = 100;
    const cgx_status status = cgx_comm_create(rank.session, &sized, &rank.comm);
    EXPECT_NE(status, CGX_OK);
    if (status == CGX_MISMATCH) {
      ++mismatches;
      EXPECT_THAT(cgx_last_error(), HasSubstr("ranks, this rank says"));
    }
  });
  EXPECT_GE(mismatches, 1);
}

TEST_F(CommunicatorTest, ASecondProcessOfARankIsRefusedBeforeItWritesToTheStore) {
  open_ranks(2);
  const auto before = store_.values();
  cgx_session* intruder = open_session();
  for (const uint32_t rank : {0u, 1u}) {
    cgx_comm* comm = nullptr;
    const auto same = options("world", rank, 2);
    EXPECT_EQ(cgx_comm_create(intruder, &same, &comm), CGX_ALREADY_EXISTS);
    EXPECT_THAT(cgx_last_error(), HasSubstr("rank " + std::to_string(rank) + " of "));
    EXPECT_THAT(cgx_last_error(), HasSubstr("is alive"));
  }
  EXPECT_EQ(store_.values(), before);
  EXPECT_OK(cgx_close(intruder));
}

TEST_F(CommunicatorTest, ARankStartedAnewMeetsTheOthersAgain) {
  open_ranks(2);
  for (const uint32_t anew : {1u, 0u}) {
    each_rank([&](uint32_t i, Rank& rank) {  // it has met less often than the other one
      ASSERT_OK(i == anew ? cgx_close(rank.session) : cgx_comm_close(rank.comm));
      if (i == anew) rank.session = open_session();
    });
    if (daemon_) {
      while (daemon_->communicators() != 0) std::this_thread::yield();
    }
    each_rank([&](uint32_t i, Rank& rank) {
      auto again = options("world", i, 2);
      ASSERT_OK(cgx_comm_create(rank.session, &again, &rank.comm));
    });
  }
}

TEST(MembersTest, MoreThanAPacketHoldsAreRefusedByName) {
  wire::CreateCommunicator message{.name = "crowd"};
  const auto check = [&](size_t ranks) {
    message.members.assign(ranks, {.mesh_address = "10.11.12.13:7070"});
    return client::check_members(message);
  };
  const Status refused = check(4000);
  EXPECT_EQ(refused.code(), StatusCode::kRESOURCE_EXHAUSTED);
  EXPECT_THAT(refused.message(), HasSubstr("communicator crowd has 4000 ranks"));
  const std::string words = "there can be ";
  const size_t at = refused.message().find(words);
  ASSERT_NE(at, std::string::npos) << refused.message();
  const size_t most = std::stoul(refused.message().substr(at + words.size()));
  EXPECT_GT(most, 1500u);
  EXPECT_TRUE(check(most).ok());
  EXPECT_FALSE(check(most + 1).ok());
}

TEST_F(CommunicatorTest, FailingRendezvousIsReported) {
  cgx_session* session = open_session();
  auto broken = options("broken", 0, 2);
  broken.rendezvous.get = [](void*, const char*, void*, size_t, size_t*) { return 17; };
  cgx_comm* comm = nullptr;
  EXPECT_EQ(cgx_comm_create(session, &broken, &comm), CGX_UNAVAILABLE);
  EXPECT_THAT(cgx_last_error(), HasSubstr("returned 17"));
  broken.rendezvous.get = [](void*, const char*, void* value, size_t, size_t* bytes) {
    std::memset(value, 0x5a, 20);
    *bytes = 20;
    return 0;
  };
  EXPECT_EQ(cgx_comm_create(session, &broken, &comm), CGX_PROTOCOL_ERROR);
  broken.rendezvous.get = [](void*, const char*, void*, size_t, size_t* bytes) {
    *bytes = SIZE_MAX;
    return 0;
  };
  EXPECT_EQ(cgx_comm_create(session, &broken, &comm), CGX_PROTOCOL_ERROR);
  EXPECT_OK(cgx_close(session));
}

TEST_F(CommunicatorTest, ClosingWakesWaitersWithCancelled) {
  NEEDS_FAKE_DAEMON();
  open_ranks(1);
  add_tensors(1, 4);
  Rank& rank = ranks_[0];
  daemon_->hold(true);
  ASSERT_OK(cgx_step_end(rank.comm, 0));
  std::thread waiter([&] { EXPECT_EQ(cgx_wait(rank.comm, 0, -1), CGX_CANCELLED); });
  while (daemon_->waiting() == 0) std::this_thread::yield();
  EXPECT_OK(cgx_comm_close(rank.comm));
  waiter.join();
}

TEST_F(CommunicatorTest, ClosingRightAfterASubmitKeepsTheSessionAlive) {
  open_ranks(1);
  Rank& rank = ranks_[0];
  float* data = arena_floats(rank, 1 << 16);
  for (int round = 0; round < 20; ++round) {
    uint64_t call = 0;
    ASSERT_OK(cgx_allreduce_async(rank.comm, data, data, 1 << 16, CGX_F32, CGX_SUM, &call));
    ASSERT_OK(cgx_comm_close(rank.comm));
    auto again = options("again", 0, 1);
    ASSERT_OK(cgx_comm_create(rank.session, &again, &rank.comm));
  }
}

// The daemon is in the middle of writing results when a rank closes.
TEST_F(CommunicatorTest, MemoryIsTheCallersOwnOnceItIsClosed) {
  if (daemon_) GTEST_SKIP() << "needs cgxd";
  constexpr size_t kCount = 1 << 20;
  open_ranks(2);
  std::vector<float*> data;
  for (Rank& rank : ranks_) data.push_back(arena_floats(rank, kCount));
  for (int round = 0; round < 12; ++round) {
    each_rank([&](uint32_t i, Rank& rank) {
      auto about = options(("round " + std::to_string(round)).c_str(), i, 2);
      cgx_comm* comm = nullptr;
      ASSERT_OK(cgx_comm_create(rank.session, &about, &comm));
      uint64_t call = 0;
      ASSERT_OK(cgx_allreduce_async(comm, data[i], data[i], kCount, CGX_F32, CGX_SUM, &call));
      if (i == 0) static_cast<void>(cgx_wait_call(comm, call, -1));  // done, or CGX_RANK_LOST
      for (int k = 0; i == 1 && k < 100 * round; ++k) std::this_thread::yield();
      EXPECT_OK(cgx_comm_close(comm));
      if (i == 1) std::fill_n(data[i], kCount, -7.0f);
    });
    EXPECT_EQ(std::count(data[1], data[1] + kCount, -7.0f), static_cast<int64_t>(kCount)) << round;
  }
}

TEST_F(CommunicatorTest, RegistrationChecksEveryField) {
  open_ranks(1);
  cgx_comm* comm = ranks_[0].comm;
  uint32_t id = 0;
  const uint64_t huge[] = {1ull << 40, 1ull << 40};
  cgx_tensor_options bad{.size = sizeof(bad)};
  EXPECT_EQ(cgx_register(comm, &bad, &id), CGX_INVALID_ARGUMENT);
  bad.name = "t";
  bad.dims = 2;
  EXPECT_EQ(cgx_register(comm, &bad, &id), CGX_INVALID_ARGUMENT);
  bad.shape = huge;
  EXPECT_EQ(cgx_register(comm, &bad, &id), CGX_INVALID_ARGUMENT);
  EXPECT_THAT(cgx_last_error(), HasSubstr("tensor t"));
  bad.dims = 9;
  EXPECT_EQ(cgx_register(comm, &bad, &id), CGX_INVALID_ARGUMENT);
  bad.dims = 0;
  bad.dtype = CGX_I64;
  bad.op = CGX_AVG;
  EXPECT_EQ(cgx_register(comm, &bad, &id), CGX_INVALID_ARGUMENT);
  bad.op = CGX_SUM;
  int64_t outside = 0;
  bad.home = &outside;
  EXPECT_EQ(cgx_register(comm, &bad, &id), CGX_INVALID_ARGUMENT);
  EXPECT_THAT(cgx_last_error(), HasSubstr("tensor t of 1 int64: its home is not in the arena"));
  bad.home = nullptr;
  EXPECT_OK(cgx_register(comm, &bad, &id));
  EXPECT_EQ(id, 0u);
  EXPECT_EQ(cgx_register(comm, &bad, &id), CGX_ALREADY_EXISTS);
}

TEST_F(CommunicatorTest, ClosingEndsACommitThatWaitsForOthers) {
  NEEDS_FAKE_DAEMON();
  open_ranks(2);
  Rank& rank = ranks_[0];
  uint32_t id = 0;
  cgx_tensor_options options{.size = sizeof(options)};
  options.name = "t";
  ASSERT_OK(cgx_register(rank.comm, &options, &id));
  std::thread committing([&] { EXPECT_EQ(cgx_commit(rank.comm), CGX_CANCELLED); });
  while (daemon_->committing() == 0) std::this_thread::yield();
  EXPECT_OK(cgx_comm_close(rank.comm));
  committing.join();
}

TEST_F(CommunicatorTest, NothingIsSaidOfAStepWhileATableIsCommitted) {
  NEEDS_FAKE_DAEMON();
  open_ranks(2);
  add_tensors(1, 8);
  Rank& rank = ranks_[0];
  while (daemon_->committing() > 0) std::this_thread::yield();  // it has answered, and counts later
  std::thread committing([&] { EXPECT_OK(cgx_commit(rank.comm)); });
  while (daemon_->committing() == 0) std::this_thread::yield();
  EXPECT_EQ(cgx_submit(rank.comm, 0, rank.ids.data(), 1), CGX_BUSY);
  EXPECT_THAT(cgx_last_error(), HasSubstr("is being committed"));
  EXPECT_EQ(cgx_absent(rank.comm, 0, rank.ids.data(), 1), CGX_BUSY);
  EXPECT_EQ(cgx_step_end(rank.comm, 0), CGX_BUSY);
  EXPECT_OK(cgx_commit(ranks_[1].comm));
  committing.join();
  EXPECT_OK(cgx_submit(rank.comm, 0, rank.ids.data(), 1));
}

TEST_F(CommunicatorTest, CancelledOneAnswersUntilItIsClosed) {
  NEEDS_FAKE_DAEMON();
  open_ranks(1);
  Rank& rank = ranks_[0];
  float* data = arena_floats(rank, 8);
  daemon_->hold(true);
  std::thread waiting(
      [&] { EXPECT_EQ(cgx_allreduce(rank.comm, data, data, 8, CGX_F32, CGX_SUM), CGX_CANCELLED); });
  while (daemon_->waiting() == 0) std::this_thread::yield();
  EXPECT_OK(cgx_comm_cancel(rank.comm));
  waiting.join();
  EXPECT_EQ(cgx_commit(rank.comm), CGX_CANCELLED);
  EXPECT_EQ(cgx_wait_call(rank.comm, 0, -1), CGX_CANCELLED);
  EXPECT_OK(cgx_comm_cancel(rank.comm));
  EXPECT_OK(cgx_comm_close(rank.comm));
}

TEST_F(CommunicatorTest, TablesThatDifferAreAMismatchOnEveryRank) {
  open_ranks(2);
  each_rank([&](uint32_t i, Rank& rank) {
    const uint64_t shape = 4;
    cgx_tensor_options tensor{.size = sizeof(tensor)};
    tensor.name = i == 0 ? "weight" : "bias";
    tensor.dims = 1;
    tensor.shape = &shape;
    uint32_t id = 0;
    ASSERT_OK(cgx_register(rank.comm, &tensor, &id));
    EXPECT_EQ(cgx_commit(rank.comm), CGX_MISMATCH);
    EXPECT_THAT(cgx_last_error(),
                AllOf(HasSubstr("weight"), HasSubstr("bias"), HasSubstr("rank 1")));
  });
}

TEST_F(CommunicatorTest, LargeTablesTravelInBatches) {
  open_ranks(2);
  each_rank([&](uint32_t, Rank& rank) {
    const uint64_t shape[] = {1, 2};
    for (int i = 0; i < 1500; ++i) {
      const std::string name = std::string(200, 'n').append(std::to_string(i));
      cgx_tensor_options tensor{.size = sizeof(tensor)};
      tensor.name = name.c_str();
      tensor.dims = 2;
      tensor.shape = shape;
      uint32_t id = 0;
      ASSERT_OK(cgx_register(rank.comm, &tensor, &id));
    }
    ASSERT_OK(cgx_commit(rank.comm));
    ASSERT_OK(cgx_step_end(rank.comm, 0));
    ASSERT_OK(cgx_wait(rank.comm, 0, -1));
  });
}

TEST_F(CommunicatorTest, SeveralCommunicatorsRunAtOnce) {
  open_ranks(2);
  each_rank([&](uint32_t i, Rank& rank) {
    std::vector<std::thread> threads;
    for (int k = 0; k < 3; ++k) {
      threads.emplace_back([&, k] {
        const std::string name = std::string("side").append(std::to_string(k));
        cgx_comm* comm = nullptr;
        auto side = options(name.c_str(), i, 2);
        ASSERT_OK(cgx_comm_create(rank.session, &side, &comm));
        float* data = arena_floats(rank, 16);
        for (int call = 0; call < 50; ++call) {
          data[5] = static_cast<float>(k + 1);
          ASSERT_OK(cgx_allreduce(comm, data, data, 16, CGX_F32, CGX_SUM));
          ASSERT_EQ(data[5], 2.0f * static_cast<float>(k + 1));
        }
        ASSERT_OK(cgx_comm_close(comm));
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
}

TEST_F(CommunicatorTest, LostRankIsNamedToTheOthers) {
  NEEDS_FAKE_DAEMON();  // e2e/ kills ranks of cgxd
  open_ranks(2);
  add_tensors(1, 4);
  ASSERT_OK(cgx_submit(ranks_[0].comm, 0, ranks_[0].ids.data(), 1));
  ASSERT_OK(cgx_step_end(ranks_[0].comm, 0));
  EXPECT_OK(cgx_close(ranks_[1].session));
  ranks_[1].session = nullptr;
  EXPECT_EQ(cgx_wait(ranks_[0].comm, 0, -1), CGX_RANK_LOST);
  EXPECT_THAT(cgx_last_error(), HasSubstr("rank 1"));
}

}  // namespace
}  // namespace cgx::testing
