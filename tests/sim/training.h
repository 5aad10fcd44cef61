// What the simulated tests share: reference data, a policy that sends raw, and one whole step.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/sim/cluster.h"

namespace cgx::sim {

using Tensor = Cluster::Tensor;

inline scheduler::Policy raw_policy() {
  scheduler::Policy policy;
  policy.default_codec = {.codec = 0, .bucket = 512};
  policy.group_bytes = 16 * 1024;
  return policy;
}

// An integer hash, small enough that nothing overflows, with signs.
inline float value(uint64_t step, uint32_t rank, uint32_t tensor, uint64_t i) {
  uint64_t x =
      (step * 1315423911u + rank * 2654435761u + tensor * 40503u + i) * 0x9E3779B97F4A7C15ull;
  x ^= x >> 29;
  return static_cast<float>(static_cast<int64_t>(x & 0xffff) - 32768) / 4096.0f;
}

// Ranks of a machine in order, times fp32(1/n) for AVG, then machines in order.
inline float expected(const std::vector<uint32_t>& per_machine, ReduceOp op, uint64_t step,
                      uint32_t tensor, uint64_t i) {
  uint32_t rank = 0, n = 0;
  for (uint32_t count : per_machine) n += count;
  float total = 0.0f;
  for (uint32_t count : per_machine) {
    float sum = value(step, rank++, tensor, i);
    for (uint32_t k = 1; k < count; ++k) sum += value(step, rank++, tensor, i);
    if (op == ReduceOp::kAvg) sum *= 1.0f / static_cast<float>(n);
    total += sum;
  }
  return total;
}

inline std::vector<Tensor> some_tensors(ReduceOp op) {
  return {{.name = "embedding.weight", .op = op, .elements = 5000, .shape = {}},
          {.name = "bias", .op = op, .elements = 3, .shape = {}},
          {.name = "empty", .op = op, .elements = 0, .shape = {}},
          {.name = "linear.weight", .op = op, .elements = 20011, .shape = {}},
          {.name = "scalar", .op = op, .elements = 1, .shape = {}}};
}

inline void fill(Cluster& cluster, const std::vector<Tensor>& tensors, uint64_t step) {
  for (uint32_t r = 0; r < cluster.size(); ++r) {
    for (uint32_t t = 0; cluster.rank(r).alive && t < tensors.size(); ++t) {
      float* const data = cluster.rank(r).at<float>(tensors[t].offset);
      for (uint64_t i = 0; i < tensors[t].elements; ++i) data[i] = value(step, r, t, i);
    }
  }
}

inline void submit_all(Cluster& cluster, const std::vector<Tensor>& tensors, uint32_t rank,
                       uint64_t step) {
  const auto count = static_cast<uint32_t>(tensors.size());
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t tensor = (i * (count % 7 == 0 ? 5 : 7) + rank) % count;
    ASSERT_TRUE(cluster.submit(rank, step, tensor, tensors[tensor]).ok());
  }
  ASSERT_TRUE(cluster.end_step(rank, step).ok());
}

inline void submit_step(Cluster& cluster, const std::vector<Tensor>& tensors, uint64_t step) {
  fill(cluster, tensors, step);
  for (uint32_t r = 0; r < cluster.size(); ++r) {
    if (cluster.rank(r).alive) submit_all(cluster, tensors, r, step);
  }
}

inline void run_step(Cluster& cluster, const std::vector<Tensor>& tensors, uint64_t step) {
  submit_step(cluster, tensors, step);
  ASSERT_TRUE(cluster.run_until([&] { return cluster.all_ended(step); }));
  for (uint32_t r = 0; r < cluster.size(); ++r) {
    const auto* ended = cluster.rank(r).find(CGX_COMPLETE_STEP, step);
    ASSERT_EQ(ended->record.status, 0) << ended->text;
  }
}

inline void expect_reference(Cluster& cluster, const std::vector<Tensor>& tensors,
                             const std::vector<uint32_t>& per_machine, uint64_t step) {
  for (uint32_t r = 0; r < cluster.size(); ++r) {
    for (uint32_t t = 0; t < tensors.size(); ++t) {
      const float* const data = cluster.rank(r).at<float>(tensors[t].offset);
      for (uint64_t i = 0; i < tensors[t].elements; ++i) {
        ASSERT_EQ(data[i], expected(per_machine, tensors[t].op, step, t, i))
            << "step " << step << " rank " << r << " tensor " << t << " element " << i;
      }
    }
  }
}

inline void expect_agreement(Cluster& cluster, const std::vector<Tensor>& tensors) {
  for (uint32_t r = 1; r < cluster.size(); ++r) {
    for (const Tensor& tensor : tensors) {
      const float* const first = cluster.rank(0).at<float>(tensor.offset);
      EXPECT_TRUE(
          std::equal(first, first + tensor.elements, cluster.rank(r).at<float>(tensor.offset)))
          << "rank " << r << ", tensor " << tensor.name;
    }
  }
}

}  // namespace cgx::sim
