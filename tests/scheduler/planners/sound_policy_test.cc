#include "scheduler/planners/sound_policy.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "kernels/codec.h"
#include "scheduler/planners/ceilings.h"
#include "scheduler/planners/plan_question.h"
#include "scheduler/planners/planner.h"

namespace cgx::scheduler {
namespace {

constexpr CodecSpec kFourNearest{.codec = 3, .bits = 4, .bucket = 512};

struct Unsound {
  const char* key;
  std::function<void(Policy&)> change;
};

std::vector<Unsound> unsound_policies() {
  std::vector<Unsound> all;
  for (const CodecSpec& spec : {CodecSpec{.codec = 200, .bits = 4, .bucket = 512},
                                CodecSpec{.codec = 3, .bits = 4, .bucket = 0},
                                CodecSpec{.codec = 3, .bits = 200, .bucket = 512}}) {
    all.push_back({"codec: ", [spec](Policy& policy) { policy.default_codec = spec; }});
    all.push_back({"rack_codec: ", [spec](Policy& policy) { policy.rack_codec = spec; }});
    all.push_back({"rules: ", [spec](Policy& policy) { policy.rules = {{"x", spec}}; }});
    all.push_back({"menu: ", [spec](Policy& policy) { policy.menu = {kFourNearest, spec}; }});
  }
  all.push_back({"menu: ", [](Policy& policy) { policy.menu.assign(kMenuMax + 1, kFourNearest); }});
  all.push_back({"gravac_min: ", [](Policy& policy) {
                   policy.gravac_min = std::numeric_limits<float>::quiet_NaN();
                 }});
  all.push_back({"ceilings: gravac", [](Policy& policy) {
                   policy.ceilings = CeilingPlanner::kgravac;
                   policy.default_codec = kFourNearest;
                 }});
  all.push_back({"layerwise_alpha: ", [](Policy& policy) {
                   policy.ceilings = CeilingPlanner::klayerwise;
                   policy.layerwise_alpha = 0;
                 }});
  return all;
}

TEST(SoundPolicy, NamesTheKeyOfWhatIsNot) {
  EXPECT_TRUE(check_sound({}).ok());
  for (const Unsound& unsound : unsound_policies()) {
    Policy policy;
    unsound.change(policy);
    const Status status = check_sound(policy);
    EXPECT_EQ(status.code(), StatusCode::kINVALID_ARGUMENT) << unsound.key;
    EXPECT_EQ(status.message().find(unsound.key), 0u) << status.message();
  }
}

// Of the plan nothing is wrong: what was said of its policy alone decides.
TEST(SoundPolicy, IsWhatPlansOfOtherMachinesNeed) {
  const auto table = std::make_shared<TensorTable>(
      TensorTable{{.name = "weight", .elements = 4096, .shape = {64, 64}}});
  const std::vector<uint32_t> order = reverse_registration(table->size());
  const Result<Plan> plan = make_plan({*table, {}, 1, 1, order, 2});
  ASSERT_TRUE(plan.ok()) << plan.status().to_string();
  PlanQuestion question{.table = table, .epoch = 1, .encoded_plan = encode_plan(*plan)};
  question.machines = 2;
  question.slab_bytes = 256 * 1024;
  EXPECT_TRUE(make_facts(question).ok());
  for (const CeilingPlanner planner :
       {CeilingPlanner::kpolicy, CeilingPlanner::klayerwise, CeilingPlanner::kgravac}) {
    for (const Unsound& unsound : unsound_policies()) {
      question.policy = {.mode = PlanMode::kAuto, .ceilings = planner};
      unsound.change(question.policy);
      EXPECT_EQ(make_facts(question).status().code(), StatusCode::kINVALID_ARGUMENT) << unsound.key;
    }
  }
}

}  // namespace
}  // namespace cgx::scheduler
