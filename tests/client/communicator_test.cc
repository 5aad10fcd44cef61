// Making communicators and their tables: rendezvous, disagreement, closing.
#include "tests/client/ranks.h"

namespace cgx::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class CommunicatorTest : public RanksTest {
 protected:
  cgx_comm_options options(const char* name, uint32_t rank, uint32_t size) {
    cgx_comm_options result{};
    result.name = name;
    result.rank = rank;
    result.size = size;
    result.timeout_ms = 10'000;
    result.rendezvous = store_.callbacks();
    return result;
  }
};

TEST_F(CommunicatorTest, OneRankNeedsNoRendezvous) {
  Rank rank{.session = open_session()};
  cgx_comm_options alone{};
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
  EXPECT_THAT(cgx_last_error(), HasSubstr("rank 2 must be below size 2"));
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
  ASSERT_TRUE(values.contains("cgx/test/world#1/key"));
  EXPECT_EQ(values.at("cgx/test/world#1/key").size(), 32u);
  EXPECT_TRUE(values.contains("cgx/test/world#1/member/1"));
}

TEST_F(CommunicatorTest, CommunicatorsOfOneJobShareItsKey) {
  open_ranks(2);
  each_rank([&](uint32_t i, Rank& rank) {
    cgx_comm* other = nullptr;
    auto second = options("second", 1 - i, 2);
    EXPECT_OK(cgx_comm_create(rank.session, &second, &other));
  });
  const auto values = store_.values();
  EXPECT_EQ(values.at("cgx/test/world#1/key"), values.at("cgx/test/second#1/key"));
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
  EXPECT_TRUE(store_.values().contains("cgx/test/world#2/key"));
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

TEST_F(CommunicatorTest, SecondRankWithTheSameNumberIsRefused) {
  open_ranks(2);
  cgx_session* intruder = open_session();
  cgx_comm* comm = nullptr;
  auto same = options("world", 1, 2);
  EXPECT_EQ(cgx_comm_create(intruder, &same, &comm), CGX_ALREADY_EXISTS);
  EXPECT_OK(cgx_close(intruder));
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

TEST_F(CommunicatorTest, RegistrationChecksEveryField) {
  open_ranks(1);
  cgx_comm* comm = ranks_[0].comm;
  uint32_t id = 0;
  const uint64_t huge[] = {1ull << 40, 1ull << 40};
  cgx_tensor_options bad{};
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
  EXPECT_THAT(cgx_last_error(), HasSubstr("home of tensor t is not in the arena"));
  bad.home = nullptr;
  EXPECT_OK(cgx_register(comm, &bad, &id));
  EXPECT_EQ(id, 0u);
  EXPECT_EQ(cgx_register(comm, &bad, &id), CGX_ALREADY_EXISTS);
}

TEST_F(CommunicatorTest, TablesThatDifferAreAMismatchOnEveryRank) {
  open_ranks(2);
  each_rank([&](uint32_t i, Rank& rank) {
    const uint64_t shape = 4;
    cgx_tensor_options tensor{};
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
      cgx_tensor_options tensor{};
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
