// Tensors of a communicator: their names and their homes in the arena.
#include <atomic>
#include <thread>

#include "tests/client/ranks.h"

namespace cgx::testing {
namespace {

using ::testing::HasSubstr;

class RegisteringTest : public RanksTest {};

TEST_F(RegisteringTest, ANameIsRegisteredOnceWhicheverThreadsTryTo) {
  constexpr int kNames = 200;
  open_ranks(1);
  std::atomic<int> registered{0}, refused{0};
  const auto register_all = [&] {
    for (int i = 0; i < kNames; ++i) {
      const std::string name = "t" + std::to_string(i);
      cgx_tensor_options options{.size = sizeof(options)};
      options.name = name.c_str();
      uint32_t id = 0;
      const int code = cgx_register(ranks_[0].comm, &options, &id);
      registered += code == CGX_OK;
      refused += code == CGX_ALREADY_EXISTS;
    }
  };
  std::thread other(register_all);
  register_all();
  other.join();
  EXPECT_EQ(registered, kNames);
  EXPECT_EQ(refused, kNames);
}

TEST_F(RegisteringTest, HomesMustHoldTheirTensor) {
  open_ranks(1);
  Rank& rank = ranks_[0];
  const uint64_t shape[] = {4, 5};
  cgx_tensor_options options{.size = sizeof(options)};
  options.name = "layer.weight";
  options.dims = 2;
  options.shape = shape;
  options.home = arena_floats(rank, 19);
  uint32_t id = 0;
  EXPECT_EQ(cgx_register(rank.comm, &options, &id), CGX_INVALID_ARGUMENT);
  EXPECT_THAT(cgx_last_error(), HasSubstr("tensor layer.weight of 20 fp32: its home needs 80 bytes "
                                          "and has 76 to the end of its allocation of 76"));
  options.dtype = CGX_F16;
  EXPECT_OK(cgx_register(rank.comm, &options, &id));
}

TEST_F(RegisteringTest, CancellingReachesWhoMakesMemory) {
  NEEDS_FAKE_DAEMON();
  open_ranks(1);
  Rank& rank = ranks_[0];
  daemon_->read_every(std::chrono::milliseconds(500));  // the next is the arena's
  const uint64_t elements = 4 << 20;
  cgx_tensor_options options{.size = sizeof(options)};
  options.name = "t";
  options.dims = 1;
  options.shape = &elements;
  std::thread other([&] {
    uint32_t id = 0;
    EXPECT_EQ(cgx_register(rank.comm, &options, &id), CGX_CANCELLED);
  });
  while (daemon_->reading() == 0) std::this_thread::yield();
  EXPECT_OK(cgx_comm_cancel(rank.comm));
  other.join();
  daemon_->read_every(std::chrono::milliseconds(0));
  EXPECT_OK(cgx_comm_close(rank.comm));
  void* memory = nullptr;
  EXPECT_OK(cgx_arena_alloc(rank.session, elements * sizeof(float), 0, &memory));
}

TEST_F(RegisteringTest, FreedHomesStayWithTheirCommunicator) {
  open_ranks(1);
  Rank& rank = ranks_[0];
  const uint64_t elements = 64;
  cgx_tensor_options options{.size = sizeof(options)};
  options.name = "t";
  options.dims = 1;
  options.shape = &elements;
  options.home = arena_floats(rank, elements);
  uint32_t id = 0;
  ASSERT_OK(cgx_register(rank.comm, &options, &id));
  ASSERT_OK(cgx_arena_free(rank.session, options.home));
  EXPECT_NE(arena_floats(rank, elements), options.home);
  ASSERT_OK(cgx_comm_close(rank.comm));
  EXPECT_EQ(arena_floats(rank, elements), options.home);
}

}  // namespace
}  // namespace cgx::testing
