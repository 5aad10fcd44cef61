#include "scheduler/planners/merge.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

namespace cgx::scheduler {
namespace {

// Layers of 256 KiB, last first.
struct Scene {
  explicit Scene(int layers = 60) {
    for (int i = 0; i < layers; ++i) {
      table.push_back(
          {.name = "layer" + std::to_string(i), .elements = 1 << 16, .shape = {256, 256}});
    }
    order = reverse_registration(table.size());
  }
  PlanInputs inputs(const Policy& of) const {
    return {.table = table, .policy = of, .order = order, .machines = 2};
  }
  std::vector<Group> groups_of(uint64_t bytes) const {
    Policy cut = policy;
    cut.group_bytes = bytes;
    const Result<Plan> plan = make_plan(inputs(cut));
    EXPECT_TRUE(plan.ok());
    return plan->groups;
  }
  // Plays the search where a step takes what `truth` says; how many trials it took.
  int search(std::vector<Group>& running,
             const std::function<double(const std::vector<Group>&)>& truth) const {
    std::vector<std::vector<Group>> lost;
    int trials = 0;
    for (;; ++trials) {
      EXPECT_LT(trials, 50);
      const auto candidates = merge_candidates(inputs(policy), running, lost);
      EXPECT_TRUE(candidates.ok());
      if (!candidates.ok() || candidates->empty() || trials >= 50) return trials;
      const std::vector<Group>& next = candidates->front().groups;
      const bool faster = truth(next) < 0.99 * truth(running);
      lost.push_back(faster ? running : next);
      if (faster) running = next;
    }
  }
  TensorTable table;
  Policy policy;
  std::vector<uint32_t> order;
};

TEST(Merge, FindsTheSizeThatStepsAreShortestWith) {
  const Scene scene;
  for (const uint64_t best : {uint64_t{256} << 10, uint64_t{1} << 20, uint64_t{4} << 20}) {
    const auto count = static_cast<double>(scene.groups_of(best).size());
    std::vector<Group> running = scene.groups_of(scene.policy.group_bytes);
    const int trials = scene.search(running, [&](const std::vector<Group>& groups) {
      const auto now = static_cast<double>(groups.size());
      return 100 * std::max(now / count, count / now);
    });
    EXPECT_EQ(running, scene.groups_of(best)) << best;
    EXPECT_LE(trials, 10) << best;
  }
}

TEST(Merge, FindsSmallGroupsWhereLargeOnesBeatThoseBetween) {
  const Scene scene(240);
  const size_t most = scene.groups_of(uint64_t{256} << 10).size();
  std::vector<Group> running = scene.groups_of(uint64_t{4} << 20);
  const size_t between = running.size();
  const int trials = scene.search(running, [&](const std::vector<Group>& groups) {
    if (groups.size() >= most) return 60.0;
    return groups.size() < between ? 90.0 + static_cast<double>(groups.size()) : 150.0;
  });
  EXPECT_EQ(running.size(), most);
  EXPECT_LE(trials, 12);
}

TEST(Merge, EndsWhereNothingIsFaster) {
  const Scene scene;
  std::vector<Group> running = scene.groups_of(scene.policy.group_bytes);
  const std::vector<Group> before = running;
  const int trials = scene.search(running, [](const std::vector<Group>&) { return 100.0; });
  EXPECT_EQ(running, before);
  EXPECT_LE(trials, 7);
}

TEST(Merge, HalvesTheLastGroupInTheEnd) {
  const Scene scene;
  std::vector<Group> running = scene.groups_of(scene.policy.group_bytes);
  const size_t count = running.size();
  // Nobody hides the last group.
  scene.search(running, [&](const std::vector<Group>& groups) {
    const bool many = groups.size() > count + 3 || groups.size() < count;
    return (many ? 200.0 : 100.0) + 10.0 * static_cast<double>(groups.back().segments.size());
  });
  EXPECT_GT(running.size(), count);
  EXPECT_LT(running.back().segments.size(), 12u);
  size_t segments = 0;
  for (const Group& group : running) segments += group.segments.size();
  EXPECT_EQ(segments, scene.table.size());
}

TEST(Merge, HasNothingToOfferWhereOneTensorIsAll) {
  Scene scene;
  scene.table.resize(1);
  scene.order = {0};
  const std::vector<Group> running = scene.groups_of(4096);
  const auto candidates = merge_candidates(scene.inputs(scene.policy), running, {});
  ASSERT_TRUE(candidates.ok());
  EXPECT_TRUE(candidates->empty());
}

}  // namespace
}  // namespace cgx::scheduler
