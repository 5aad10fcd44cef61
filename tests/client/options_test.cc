// Option structs of callers that are older or newer than the library, and what is not built yet.
#include <array>

#include "tests/client/ranks.h"

namespace cgx::testing {
namespace {

using ::testing::HasSubstr;

class OptionsTest : public RanksTest {
 protected:
  cgx_post_options allreduce(float* data) {
    cgx_post_options options{.size = sizeof(options)};
    options.in = options.out = data;
    options.count = 8;
    return options;
  }
  // Nothing else happens: the next call is the first.
  void expect_unbuilt(const cgx_post_options& options, const char* text) {
    uint64_t call = 77;
    EXPECT_EQ(cgx_post(ranks_[0].comm, &options, &call), CGX_UNIMPLEMENTED);
    EXPECT_THAT(cgx_last_error(), HasSubstr(text));
    EXPECT_EQ(call, 77u);
    EXPECT_EQ(cgx_wait_call(ranks_[0].comm, 0, 0), CGX_NOT_FOUND);
  }
};

TEST_F(OptionsTest, WithoutASizeAreRefusedByName) {
  open_ranks(1);
  cgx_session* session = ranks_[0].session;
  cgx_comm* comm = ranks_[0].comm;
  uint32_t id = 0;
  void* memory = nullptr;
  const cgx_open_options open{};
  EXPECT_EQ(cgx_open(&open, &session), CGX_INVALID_ARGUMENT);
  EXPECT_THAT(cgx_last_error(), HasSubstr("cgx_open_options.size is 0"));
  const cgx_comm_options world{};
  EXPECT_EQ(cgx_comm_create(session, &world, &comm), CGX_INVALID_ARGUMENT);
  EXPECT_THAT(cgx_last_error(), HasSubstr("set it to sizeof(cgx_comm_options), which is 80"));
  const cgx_tensor_options tensor{};
  EXPECT_EQ(cgx_register(comm, &tensor, &id), CGX_INVALID_ARGUMENT);
  EXPECT_THAT(cgx_last_error(), HasSubstr("cgx_tensor_options.size"));
  const cgx_arena_options arena{};
  EXPECT_EQ(cgx_arena_alloc_at(session, &arena, &memory), CGX_INVALID_ARGUMENT);
  EXPECT_THAT(cgx_last_error(), HasSubstr("cgx_arena_options.size"));
  const cgx_post_options post{};
  EXPECT_EQ(cgx_post(comm, &post, nullptr), CGX_INVALID_ARGUMENT);
  EXPECT_THAT(cgx_last_error(), HasSubstr("cgx_post_options.size"));
  cgx_step_report report{};
  EXPECT_EQ(cgx_step_info(comm, 0, &report), CGX_INVALID_ARGUMENT);
  EXPECT_THAT(cgx_last_error(), HasSubstr("cgx_step_report.size"));
}

TEST_F(OptionsTest, SpinningForMoreThanASecondIsRefused) {
  cgx_open_options options{.size = sizeof(options)};
  options.socket = path_.c_str();
  options.spin_us = 1'000'001;
  cgx_session* session = nullptr;
  EXPECT_EQ(cgx_open(&options, &session), CGX_INVALID_ARGUMENT);
  EXPECT_THAT(cgx_last_error(), HasSubstr("spin_us is 1000001; at most 1000000"));
}

TEST_F(OptionsTest, OfASizeNoVersionHadAreRefused) {
  std::array<size_t, 600> bytes{};
  auto* const options = reinterpret_cast<cgx_open_options*>(bytes.data());
  cgx_session* session = nullptr;
  for (const size_t size : {size_t{4}, sizeof(cgx_open_options) - 4, sizeof(cgx_open_options) + 1,
                            size_t{4104}, SIZE_MAX}) {
    bytes[0] = size;
    EXPECT_EQ(cgx_open(options, &session), CGX_INVALID_ARGUMENT) << size;
    EXPECT_THAT(cgx_last_error(), HasSubstr(std::to_string(size)));
  }
}

TEST_F(OptionsTest, AReportIsWrittenAsFarAsTheCallerKnowsIt) {
  open_ranks(1);
  add_tensors(1, 4);
  Rank& rank = ranks_[0];
  ASSERT_OK(cgx_submit(rank.comm, 0, rank.ids.data(), 1));
  ASSERT_OK(cgx_step_end(rank.comm, 0));
  ASSERT_OK(cgx_wait(rank.comm, 0, -1));
  cgx_step_report report{.size = offsetof(cgx_step_report, epoch)};
  report.epoch = 99;
  ASSERT_OK(cgx_step_info(rank.comm, 0, &report));
  EXPECT_EQ(report.size, offsetof(cgx_step_report, epoch));
  EXPECT_EQ(report.finished, 1u);
  EXPECT_EQ(report.epoch, 99u);
}

TEST_F(OptionsTest, PostHandsOverCallsAndTensors) {
  open_ranks(2);
  add_tensors(2, 8);
  each_rank([&](uint32_t i, Rank& rank) {
    float* data = arena_floats(rank, 8);
    float* out = arena_floats(rank, 8);
    data[7] = rank.home(0)[7] = static_cast<float>(i + 1);
    uint64_t call = 77;
    const cgx_post_options options = allreduce(data);
    ASSERT_OK(cgx_post(rank.comm, &options, &call));
    ASSERT_OK(cgx_wait_call(rank.comm, call, -1));
    EXPECT_EQ(data[7], 3.0f);
    cgx_post_options tensor{.size = sizeof(tensor), .kind = CGX_POST_TENSOR};
    ASSERT_OK(cgx_post(rank.comm, &tensor, nullptr));
    tensor.tensor = rank.ids[1];
    tensor.in = data;
    tensor.out = out;
    ASSERT_OK(cgx_post(rank.comm, &tensor, nullptr));
    ASSERT_OK(cgx_step_end(rank.comm, 0));
    ASSERT_OK(cgx_wait(rank.comm, 0, -1));
    EXPECT_EQ(rank.home(0)[7], 3.0f);
    EXPECT_EQ(out[7], 6.0f);
  });
}

TEST_F(OptionsTest, WhatIsNotBuiltYetIsAnsweredByName) {
  open_ranks(1);
  float* data = arena_floats(ranks_[0], 8);
  cgx_post_options options = allreduce(data);
  options.collective = CGX_BROADCAST;
  expect_unbuilt(options, "cgx_post: the collective broadcast is not built yet");
  options = allreduce(data);
  options.root = 1;
  expect_unbuilt(options, "root 1");
  options = allreduce(data);
  options.peer = 2;
  expect_unbuilt(options, "peer 2");
  options = allreduce(data);
  options.tag = 3;
  expect_unbuilt(options, "tag 3");
  uint32_t word = 0;
  options = allreduce(data);
  options.word = &word;
  expect_unbuilt(options, "timeline word");
  options = allreduce(data);
  options.word_value = 4;
  expect_unbuilt(options, "timeline word");
  options = allreduce(data);
  options.kind = CGX_POST_TENSOR;
  options.indices = data;
  expect_unbuilt(options, "rows named by indices");
  options.indices = nullptr;
  options.rows = 5;
  expect_unbuilt(options, "rows named by indices");
  options = allreduce(data);
  options.collective = 77;
  EXPECT_EQ(cgx_post(ranks_[0].comm, &options, nullptr), CGX_INVALID_ARGUMENT);
  options = allreduce(data);
  options.kind = 9;
  EXPECT_EQ(cgx_post(ranks_[0].comm, &options, nullptr), CGX_INVALID_ARGUMENT);
  EXPECT_THAT(cgx_last_error(), HasSubstr("kind 9"));
}

TEST_F(OptionsTest, ArenasAreWhereTheOptionsSay) {
  open_ranks(1);
  cgx_session* session = ranks_[0].session;
  void* memory = nullptr;
  cgx_arena_options options{.size = sizeof(options), .bytes = 100, .alignment = 4096};
  ASSERT_OK(cgx_arena_alloc_at(session, &options, &memory));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(memory) % 4096, 0u);
  options.kind = CGX_ARENA_DEVICE;
  EXPECT_EQ(cgx_arena_alloc_at(session, &options, &memory), CGX_INVALID_ARGUMENT);
  EXPECT_THAT(cgx_last_error(), HasSubstr("names the GPU"));
  options.device[3] = 1;
  EXPECT_EQ(cgx_arena_alloc_at(session, &options, &memory), CGX_NOT_FOUND);  // tests/gpu has one
  EXPECT_THAT(cgx_last_error(), HasSubstr("no CUDA driver"));
  EXPECT_EQ(cgx_arena_import(session, &options, memory), CGX_INVALID_ARGUMENT);
  EXPECT_THAT(cgx_last_error(), HasSubstr("alignment 0"));
  options.alignment = 0;
  EXPECT_EQ(cgx_arena_import(session, &options, memory), CGX_NOT_FOUND);
  EXPECT_EQ(cgx_arena_import(session, &options, nullptr), CGX_INVALID_ARGUMENT);
  EXPECT_EQ(cgx_arena_end_import(session, memory, 0), CGX_INVALID_ARGUMENT);
  EXPECT_THAT(cgx_last_error(), HasSubstr("cgx_arena_import"));
  options.kind = CGX_ARENA_HOST;
  EXPECT_EQ(cgx_arena_alloc_at(session, &options, &memory), CGX_INVALID_ARGUMENT);
  options.kind = 2;
  EXPECT_EQ(cgx_arena_alloc_at(session, &options, &memory), CGX_INVALID_ARGUMENT);
}

TEST_F(OptionsTest, TensorsAreDenseSoFar) {
  open_ranks(1);
  uint32_t id = 77;
  cgx_tensor_options options{.size = sizeof(options), .name = "embedding"};
  options.kind = CGX_TENSOR_ROWS;
  EXPECT_EQ(cgx_register(ranks_[0].comm, &options, &id), CGX_UNIMPLEMENTED);
  EXPECT_THAT(cgx_last_error(), HasSubstr("tensor embedding: tensors of rows"));
  options.kind = 3;
  EXPECT_EQ(cgx_register(ranks_[0].comm, &options, &id), CGX_INVALID_ARGUMENT);
  options.kind = CGX_TENSOR_DENSE;
  EXPECT_OK(cgx_register(ranks_[0].comm, &options, &id));
  EXPECT_EQ(id, 0u);
}

}  // namespace
}  // namespace cgx::testing
