// A job whose steps were measured: what they take follows from the timeline under conditions that a
// test chooses.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "scheduler/planners/fit.h"
#include "scheduler/planners/plan_question.h"
#include "scheduler/planners/planner.h"

namespace cgx::scheduler {

// Eight layers of 1 MiB that arrive a millisecond apart, uncompressed at first.
struct MeasuredJob {
  static constexpr CodecSpec kRaw{.codec = 0, .bucket = 512};

  explicit MeasuredJob(Policy wanted = auto_policy()) : policy(std::move(wanted)) {
    TensorTable tensors;
    for (int i = 0; i < 8; ++i) {
      tensors.push_back(
          {.name = "layer" + std::to_string(i), .elements = 1 << 18, .shape = {512, 512}});
    }
    table = std::make_shared<TensorTable>(std::move(tensors));
    order = reverse_registration(table->size());
    MachineCosts here;
    here.codecs = {{kRaw, {0, 0.06}, {0, 0.07}},
                   {{.codec = 3, .bits = 8, .bucket = 512}, {0, 0.05}, {0, 0.05}},
                   {policy.default_codec, {0, 0.04}, {0, 0.05}}};
    here.operation_ns = 12'000;
    here.segment_ns = 1'500;
    here.frame_ns = 3'000;
    here.wire_ns_per_byte = 0.14;
    costs = std::make_shared<const MachineCosts>(here);
    running = facts_of({});
  }
  static Policy auto_policy() {
    Policy policy;
    policy.mode = PlanMode::kAuto;
    policy.group_bytes = 2u << 20;
    return policy;
  }
  FactsPtr facts_of(std::vector<Group> groups) const {
    const auto facts = make_facts({.table = table,
                                   .policy = policy,
                                   .epoch = 1,
                                   .policy_version = 1,
                                   .order = order,
                                   .groups = std::move(groups),
                                   .machines = 2,
                                   .slab_bytes = 256 * 1024});
    EXPECT_TRUE(facts.ok()) << facts.status().to_string();
    return *facts;
  }
  // What steps take here in truth, by the timeline itself.
  SurveyQuestion question(const Conditions& truth) const {
    StepSample measured;
    for (size_t t = 0; t < table->size(); ++t) {
      measured.arrival_ns.push_back(1e6f * static_cast<float>(table->size() - 1 - t));
    }
    const std::vector<double> arrivals(measured.arrival_ns.begin(), measured.arrival_ns.end());
    const auto timeline = timeline_of(running->plan, *table, arrivals, truth);
    EXPECT_TRUE(timeline.ok());
    measured.step_ns = timeline->step_ns();
    return {.running = running,
            .measured = measured,
            .order = order,
            .machines = 2,
            .slab_bytes = 256 * 1024,
            .trip_ns = truth.link.trip_ns,
            .costs = costs};
  }
  Policy policy;
  std::shared_ptr<const TensorTable> table;
  std::vector<uint32_t> order;
  std::shared_ptr<const MachineCosts> costs;
  FactsPtr running;
};

}  // namespace cgx::scheduler
