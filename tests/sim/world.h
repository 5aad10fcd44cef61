// A committed cluster with its tensors, and what tests of bad days ask of it.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "tests/sim/training.h"

namespace cgx {

inline void PrintTo(StatusCode code, std::ostream* out) {
  *out << status_name(code);
}

}  // namespace cgx

namespace cgx::sim {

constexpr int64_t kSecond = 1'000'000'000;

struct World {
  std::vector<uint32_t> shape;
  Cluster cluster;
  std::vector<Tensor> tensors = some_tensors(ReduceOp::kSum);

  explicit World(std::vector<uint32_t> ranks_per_machine, ClusterOptions options = {},
                 bool raw = true)
      : shape(std::move(ranks_per_machine)), cluster([&] {
          options.ranks_per_machine = shape;
          if (raw) options.policy = raw_policy();
          return options;
        }()) {
    cluster.create();
    cluster.commit(tensors);
  }
  StatusCode step_status(uint32_t rank, uint64_t step) {
    const auto* ended = cluster.rank(rank).find(CGX_COMPLETE_STEP, step);
    return ended == nullptr ? StatusCode::kBUSY : static_cast<StatusCode>(ended->record.status);
  }
  std::string step_text(uint32_t rank, uint64_t step) {
    const auto* ended = cluster.rank(rank).find(CGX_COMPLETE_STEP, step);
    return ended == nullptr ? "" : ended->text;
  }
  StatusCode call_status(uint32_t rank, uint64_t call) {
    const auto* ended = cluster.rank(rank).find(CGX_COMPLETE_CALL, call);
    return ended == nullptr ? StatusCode::kBUSY : static_cast<StatusCode>(ended->record.status);
  }
  std::string call_text(uint32_t rank, uint64_t call) {
    const auto* ended = cluster.rank(rank).find(CGX_COMPLETE_CALL, call);
    return ended == nullptr ? "" : ended->text;
  }
  // A tensor submitted again in an open step: the rank's backward pass was abandoned.
  void abandon(uint32_t rank, uint64_t step) {
    ASSERT_TRUE(cluster.submit(rank, step, 0, tensors[0]).ok());
    ASSERT_TRUE(cluster.submit(rank, step, 0, tensors[0]).ok());
  }
  void take_attempt(uint32_t rank) {
    ASSERT_EQ(cluster.rank(rank).replies.count(Cluster::kRedo), 1u);
    cluster.rank(rank).attempt =
        static_cast<uint32_t>(cluster.rank(rank).replies[Cluster::kRedo].value0);
  }
  // All living ranks redo `step` under the new attempt and must get the reference bits.
  void expect_redo(uint64_t step) {
    ASSERT_NO_FATAL_FAILURE(ask_for_redo(step));
    ASSERT_NO_FATAL_FAILURE(run_step(cluster, tensors, step));
    expect_reference(cluster, tensors, shape, step);
  }
  void ask_for_redo(uint64_t step) {
    for (uint32_t r = 0; r < cluster.size(); ++r) cluster.request_redo(r);
    ASSERT_TRUE(cluster.run_until([&] {
      for (uint32_t r = 0; r < cluster.size(); ++r) {
        if (cluster.rank(r).replies.count(Cluster::kRedo) == 0) return false;
      }
      return true;
    }));
    for (uint32_t r = 0; r < cluster.size(); ++r) {
      const wire::Reply& reply = cluster.rank(r).replies[Cluster::kRedo];
      ASSERT_EQ(reply.code, StatusCode::kOK) << reply.message;
      ASSERT_EQ(reply.value1, step);
      cluster.rank(r).attempt = static_cast<uint32_t>(reply.value0);
      cluster.rank(r).completions.clear();
    }
  }
};

}  // namespace cgx::sim
