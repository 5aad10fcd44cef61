// What a forked child may do with its parent's session.
#include <sys/wait.h>

#include "tests/client/ranks.h"

namespace cgx::testing {
namespace {

class ForkTest : public RanksTest {
 protected:
  // Runs `body` in a forked child; 0 is success.
  template <typename Body>
  int in_child(Body body) {
    const pid_t child = ::fork();
    if (child == 0) ::_exit(body());
    int status = -1;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
  }
};

TEST_F(ForkTest, EveryCallInTheChildAnswersForked) {
  open_ranks(1);
  add_tensors(1, 4);
  Rank& rank = ranks_[0];
  float* data = arena_floats(rank, 8);
  EXPECT_EQ(in_child([&] {
              uint64_t number = 0;
              void* memory = nullptr;
              uint32_t id = 0;
              size_t pending = 0;
              cgx_step_report report{.size = sizeof(report)};
              cgx_comm_options options{.size = sizeof(options)};
              options.name = "child";
              cgx_comm* comm = nullptr;
              cgx_tensor_options tensor{.size = sizeof(tensor)};
              tensor.name = "t";
              const cgx_status answers[] = {
                  cgx_submit(rank.comm, 0, rank.ids.data(), 1),
                  submit_inout(rank, 0, data, data),
                  cgx_absent(rank.comm, 0, rank.ids.data(), 1),
                  cgx_step_end(rank.comm, 0),
                  cgx_step_done(rank.comm, 0, CGX_KEPT),
                  cgx_step_redo(rank.comm, &number),
                  cgx_wait(rank.comm, 0, -1),
                  cgx_test(rank.comm, 0, rank.ids.data(), 1, nullptr, &pending),
                  cgx_step_info(rank.comm, 0, &report),
                  cgx_allreduce(rank.comm, data, data, 8, CGX_F32, CGX_SUM),
                  cgx_poll(rank.session, &number, -1),
                  cgx_wake(rank.session),
                  cgx_register(rank.comm, &tensor, &id),
                  cgx_commit(rank.comm),
                  cgx_tensor_home(rank.comm, 0, &memory, nullptr),
                  cgx_comm_create(rank.session, &options, &comm),
                  cgx_arena_alloc(rank.session, 64, 0, &memory),
              };
              int wrong = 0;
              for (const cgx_status answer : answers) wrong += answer != CGX_FORKED;
              return wrong;
            }),
            0);
}

TEST_F(ForkTest, ArenaStaysUsableInTheChildAndTheParentTrainsOn) {
  open_ranks(1);
  add_tensors(1, 4);
  Rank& rank = ranks_[0];
  rank.home(0)[0] = 1.0f;
  float* home = rank.home(0);
  EXPECT_EQ(in_child([&] {
              const bool reads = home[0] == 1.0f;
              home[1] = 2.0f;
              return reads ? 0 : 1;
            }),
            0);
  EXPECT_EQ(home[1], 2.0f);
  ASSERT_OK(cgx_submit(rank.comm, 0, rank.ids.data(), 1));
  ASSERT_OK(cgx_step_end(rank.comm, 0));
  ASSERT_OK(cgx_wait(rank.comm, 0, -1));
}

TEST_F(ForkTest, ClosingInTheChildLeavesTheParentAlone) {
  open_ranks(1);
  add_tensors(1, 4);
  Rank& rank = ranks_[0];
  EXPECT_EQ(in_child([&] { return static_cast<int>(cgx_close(rank.session)); }), 0);
  ASSERT_OK(cgx_submit(rank.comm, 0, rank.ids.data(), 1));
  ASSERT_OK(cgx_step_end(rank.comm, 0));
  ASSERT_OK(cgx_wait(rank.comm, 0, -1));
}

// Of threads that wait for the daemon's replies one reads the socket, the others wait for it.
TEST_F(ForkTest, ClosingInTheChildDoesNotWaitForThreadsOfTheParent) {
  NEEDS_FAKE_DAEMON();
  constexpr size_t kThreads = 3;
  open_ranks(2);
  std::vector<cgx_comm*> comms(kThreads);
  for (size_t i = 0; i < kThreads; ++i) {
    each_rank([&](uint32_t number, Rank& rank) {
      const std::string name = "c" + std::to_string(i);
      cgx_comm_options options{.size = sizeof(options)};
      options.name = name.c_str();
      options.rank = number;
      options.ranks = 2;
      options.rendezvous = store_.callbacks();
      cgx_comm* made = nullptr;
      EXPECT_OK(cgx_comm_create(rank.session, &options, &made));
      if (number == 0) comms[i] = made;
    });
  }
  std::vector<std::thread> waiting;
  for (cgx_comm* const comm : comms) {
    waiting.emplace_back([comm] { EXPECT_EQ(cgx_commit(comm), CGX_RANK_LOST); });
  }
  while (daemon_->committing() < kThreads) std::this_thread::yield();
  for (int again = 0; again < 3; ++again) {
    EXPECT_EQ(in_child([&] {
                ::alarm(5);
                return static_cast<int>(cgx_close(ranks_[0].session));
              }),
              0);
  }
  EXPECT_OK(cgx_close(ranks_[1].session));
  for (std::thread& thread : waiting) thread.join();
  ranks_.pop_back();
}

TEST_F(ForkTest, ChildOpensItsOwnSession) {
  open_ranks(1);
  EXPECT_EQ(in_child([&] {
              Rank own{.session = open_session()};
              cgx_comm_options options{.size = sizeof(options)};
              options.name = "child";
              if (cgx_comm_create(own.session, &options, &own.comm) != CGX_OK) return 1;
              float* data = arena_floats(own, 8);
              if (cgx_allreduce(own.comm, data, data, 8, CGX_F32, CGX_SUM) != CGX_OK) return 2;
              return static_cast<int>(cgx_close(own.session));
            }),
            0);
}

TEST_F(ForkTest, DaemonSeesTheEndOfAParentWhoseChildLivesOn) {
  NEEDS_FAKE_DAEMON();
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  EXPECT_EQ(in_child([&] {
              if (open_session() == nullptr) return 1;
              if (::fork() == 0) {  // the grandchild lives until this test ends
                char byte;
                ::close(ends[1]);
                static_cast<void>(::read(ends[0], &byte, 1) == 0);
                ::_exit(0);
              }
              while (daemon_->sessions() == 0 && false) {
              }
              return 0;
            }),
            0);
  // The child is gone without a goodbye; only the grandchild could hold its socket open.
  cgx_session* probe = open_session();
  while (daemon_->sessions() != 1) std::this_thread::yield();
  EXPECT_OK(cgx_close(probe));
  ::close(ends[0]);
  ::close(ends[1]);
}

}  // namespace
}  // namespace cgx::testing
