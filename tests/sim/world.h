// A committed cluster with its tensors, and what tests of bad days ask of it.
#pragma once

#include <ostream>
#include <string>
#include <utility>
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
  std::vector<Tensor> tensors;

  explicit World(std::vector<uint32_t> ranks_per_machine, ClusterOptions options = {},
                 bool raw = true, std::vector<Tensor> its = some_tensors(ReduceOp::kSum))
      : shape(std::move(ranks_per_machine)),
        cluster([&] {
          options.ranks_per_machine = shape;
          if (raw) options.policy = raw_policy();
          return options;
        }()),
        tensors(std::move(its)) {
    cluster.create();
    cluster.commit(tensors);
  }
  StatusCode step_status(uint32_t rank, uint64_t step) {
    return status_of(cluster.rank(rank).find(CGX_COMPLETE_STEP, step));
  }
  std::string step_text(uint32_t rank, uint64_t step) {
    return text_of(cluster.rank(rank).find(CGX_COMPLETE_STEP, step));
  }
  StatusCode call_status(uint32_t rank, uint64_t call) {
    return status_of(cluster.rank(rank).find(CGX_COMPLETE_CALL, call));
  }
  std::string call_text(uint32_t rank, uint64_t call) {
    return text_of(cluster.rank(rank).find(CGX_COMPLETE_CALL, call));
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

 private:
  static StatusCode status_of(const Rank::Completion* ended) {
    return ended == nullptr ? StatusCode::kBUSY : static_cast<StatusCode>(ended->record.status);
  }
  static std::string text_of(const Rank::Completion* ended) {
    return ended == nullptr ? "" : ended->text;
  }
};

// One link may become slow, in one direction. Set before a World is made with its options.
struct SlowLink {
  uint32_t from = 0, to = 0;
  int64_t slow_ns = 0;
  bool slow = false;

  ClusterOptions options() {
    ClusterOptions options;
    options.link_latency_ns = [this](uint32_t a, uint32_t b) {
      return slow && a == from && b == to ? slow_ns : 20'000;
    };
    return options;
  }
};

}  // namespace cgx::sim
