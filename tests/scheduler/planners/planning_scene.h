// Random questions for planners: tables, arrivals, costs.
#pragma once

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "scheduler/plan/way.h"
#include "scheduler/planners/proposal.h"
#include "tests/scheduler/exchange/built_group.h"

namespace cgx::scheduler {

constexpr CodecSpec kEightBits{.codec = 3, .bits = 8, .bucket = 512};

struct Scene {
  TensorTable table;
  Policy policy;
  std::vector<uint32_t> order;
  std::vector<double> arrivals;
  Conditions conditions;
  std::vector<CodecSpec> menu = default_menu();
  uint32_t machines = 2;
  double tolerance = 0.01;

  PlanInputs inputs() const {
    return {.table = table, .policy = policy, .order = order, .machines = machines};
  }
  PlannerQuestion question() const { return {inputs(), arrivals, conditions, menu, tolerance}; }
};

// Groups of a planner go their ways as those of a policy would.
inline void expect_fitted_ways(const Scene& scene, const Proposal& proposal) {
  for (const Group& group : proposal.groups) {
    const WayQuestion question{.wish = wish_for(group.way.collective), .machines = scene.machines};
    const Way way = choose_way(question, group, scene.table);
    EXPECT_EQ(group.way.ahead, way.ahead);
    EXPECT_EQ(group.way.exact, way.exact);
  }
}

// Dyadic figures: sums of them are exact, in whichever order.
inline Scene random_scene(std::mt19937& random, size_t tensors) {
  const auto among = [&](auto... values) {
    const double all[] = {static_cast<double>(values)...};
    return all[random() % sizeof...(values)];
  };
  Scene scene;
  for (size_t i = 0; i < tensors; ++i) {
    const uint64_t elements = uint64_t{512} << (random() % 12);
    const char* name = random() % 4 == 0 ? "pinned" : "layer";
    scene.table.push_back(
        {.name = name + std::to_string(i), .elements = elements, .shape = {elements / 512, 512}});
    scene.order.push_back(static_cast<uint32_t>(i));
    const double before = i == 0 ? 0 : scene.arrivals.back();
    scene.arrivals.push_back(before + 1024.0 * static_cast<double>(1 + random() % 64));
  }
  if (random() % 2) scene.policy.rules = {{"pinned", kEightBits}};
  if (random() % 8 == 0) scene.policy.collective = CollectiveWish::kAllgather;
  scene.machines = 2 + random() % 5;
  scene.policy.window = 1 + random() % 4;
  Conditions& conditions = scene.conditions;
  conditions.share = among(0, 0.5, 1);
  conditions.link = {.ns_per_byte = among(0.0625, 0.5, 2), .trip_ns = among(0, 4096, 65536)};
  MachineCosts& costs = conditions.costs;
  costs.operation_ns = among(512, 16384);
  costs.segment_ns = 256;
  costs.frame_ns = among(0, 2048);
  costs.wire_ns_per_byte = among(0, 0.125);
  costs.codecs = {{kRaw, {64, among(0.0625, 0.25)}, {64, 0.0625}},
                  {kEightBits, {128, among(0.125, 1)}, {64, 0.125}},
                  {kFourBits, {128, among(0.125, 2)}, {64, 0.25}}};
  return scene;
}

}  // namespace cgx::scheduler
