// Several threads of one process on one session. Most useful under ThreadSanitizer.
#include "tests/client/ranks.h"

namespace cgx::testing {
namespace {

class ThreadsTest : public RanksTest {};

TEST_F(ThreadsTest, SubmitsOfOneStepComeFromSeveralThreads) {
  constexpr uint32_t kThreads = 4, kTensors = 40;
  open_ranks(2);
  add_tensors(kTensors, 8);
  each_rank([&](uint32_t, Rank& rank) {
    for (uint64_t step = 0; step < 30; ++step) {
      std::vector<std::thread> threads;
      for (uint32_t t = 0; t < kThreads; ++t) {
        threads.emplace_back([&, t] {
          for (uint32_t id = t; id < kTensors; id += kThreads) {
            rank.home(id)[0] = static_cast<float>(id + step);
            EXPECT_OK(cgx_submit(rank.comm, step, &id, 1));
          }
        });
      }
      for (std::thread& thread : threads) thread.join();
      ASSERT_OK(cgx_step_end(rank.comm, step));
      ASSERT_OK(cgx_wait(rank.comm, step, -1));
      for (uint32_t id = 0; id < kTensors; ++id) {
        ASSERT_EQ(rank.home(id)[0], 2.0f * static_cast<float>(id + step));
      }
    }
  });
}

TEST_F(ThreadsTest, SeveralWaitersSeeOneStep) {
  NEEDS_FAKE_DAEMON();
  open_ranks(1);
  add_tensors(1, 8);
  Rank& rank = ranks_[0];
  daemon_->hold(true);
  ASSERT_OK(cgx_step_end(rank.comm, 0));
  std::vector<std::thread> waiters;
  for (int i = 0; i < 6; ++i) {
    waiters.emplace_back([&] { EXPECT_OK(cgx_wait(rank.comm, 0, -1)); });
  }
  daemon_->hold(false);
  for (std::thread& waiter : waiters) waiter.join();
}

TEST_F(ThreadsTest, PollerSeesEveryStepOfATrainer) {
  open_ranks(1);
  add_tensors(4, 8);
  Rank& rank = ranks_[0];
  constexpr uint64_t kSteps = 200;
  std::thread poller([&] {
    uint64_t seen = 0;
    for (uint64_t step = 0; step < kSteps;) {
      ASSERT_OK(cgx_poll(rank.session, &seen, 10'000));
      for (; step < kSteps; ++step) {
        cgx_step_report report{.size = sizeof(report)};
        const cgx_status known = cgx_step_info(rank.comm, step, &report);
        if (known == CGX_NOT_FOUND) continue;  // finished so long ago that it is forgotten
        if (known != CGX_OK || !report.finished) break;
      }
    }
  });
  for (uint64_t step = 0; step < kSteps; ++step) {
    ASSERT_OK(cgx_submit(rank.comm, step, rank.ids.data(), 4));
    ASSERT_OK(cgx_step_end(rank.comm, step));
    ASSERT_OK(cgx_wait(rank.comm, step, -1));
  }
  ASSERT_OK(cgx_wake(rank.session));
  poller.join();
}

TEST_F(ThreadsTest, StepsCallsAndAllocationsRunSideBySide) {
  open_ranks(2);
  add_tensors(2, 8);
  each_rank([&](uint32_t, Rank& rank) {
    std::thread steps([&] {
      for (uint64_t step = 0; step < 100; ++step) {
        ASSERT_OK(cgx_submit(rank.comm, step, rank.ids.data(), 2));
        ASSERT_OK(cgx_step_end(rank.comm, step));
        ASSERT_OK(cgx_wait(rank.comm, step, -1));
      }
    });
    std::thread calls([&] {
      float* data = arena_floats(rank, 8);
      for (int i = 0; i < 100; ++i) {
        ASSERT_OK(cgx_allreduce(rank.comm, data, data, 8, CGX_F32, CGX_SUM));
      }
    });
    std::thread allocations([&] {
      for (int i = 0; i < 100; ++i) {
        void* memory = nullptr;
        ASSERT_OK(cgx_arena_alloc(rank.session, static_cast<size_t>(i) << 14, 0, &memory));
        ASSERT_OK(cgx_arena_free(rank.session, memory));
      }
    });
    steps.join();
    calls.join();
    allocations.join();
  });
}

TEST_F(ThreadsTest, ClosingASessionReleasesItsPoller) {
  NEEDS_FAKE_DAEMON();
  cgx_session* session = open_session();
  std::thread poller([&] {
    uint64_t seen = 0;
    EXPECT_EQ(cgx_poll(session, &seen, -1), CGX_CANCELLED);
  });
  while (daemon_->waiting() == 0) std::this_thread::yield();
  EXPECT_OK(cgx_close(session));
  poller.join();
}

}  // namespace
}  // namespace cgx::testing
