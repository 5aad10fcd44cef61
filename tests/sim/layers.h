// Six layers, every other one a thousand times as loud, and what is shown of them.
#pragma once

#include <string>
#include <vector>

#include "scheduler/communicator/snapshot.h"
#include "tests/sim/training.h"

namespace cgx::sim {

inline std::vector<Tensor> six_layers() {
  std::vector<Tensor> layers;
  for (uint32_t i = 0; i < 6; ++i) {
    layers.push_back({.name = "layer" + std::to_string(i), .elements = 8192, .shape = {64, 128}});
  }
  return layers;
}

inline void fill_loud(Cluster& cluster, const std::vector<Tensor>& tensors, uint32_t rank,
                      uint64_t step) {
  for (uint32_t t = 0; t < tensors.size(); ++t) {
    float* const data = cluster.rank(rank).at<float>(tensors[t].offset);
    for (uint64_t i = 0; i < tensors[t].elements; ++i) {
      data[i] = value(step, rank, t, i) * (t % 2 == 0 ? 1000.0f : 1.0f);
    }
  }
}

// The only communicator of a machine, with reasons.
inline scheduler::CommunicatorSnapshot shown_whole(Cluster& cluster, uint32_t machine) {
  scheduler::Snapshot snapshot = cluster.engine(machine).snapshot(0);
  EXPECT_EQ(snapshot.communicators.size(), 1u);
  show_plan(snapshot.communicators[0]);
  show_reasons(snapshot.communicators[0]);
  return snapshot.communicators[0];
}

}  // namespace cgx::sim
