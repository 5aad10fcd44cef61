#include "scheduler/planners/ceilings.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <random>
#include <tuple>

#include "kernels/codec.h"
#include "scheduler/planners/plan_question.h"
#include "scheduler/planners/planner.h"
#include "scheduler/planners/proposal.h"
#include "tests/scheduler/planners/maxmin_error.h"

namespace cgx::scheduler {
namespace {

constexpr CodecSpec kUniform{.codec = 3, .bits = 4, .flags = CodecSpec::kStochastic, .bucket = 512};

Policy layerwise_policy() {
  Policy policy;
  policy.default_codec = kUniform;
  policy.ceilings = CeilingPlanner::klayerwise;
  return policy;
}

// Layers whose gradients differ by orders of magnitude, a bias, and one layer with a rule.
struct Layers {
  explicit Layers(Policy wanted = layerwise_policy()) : policy(std::move(wanted)) {
    policy.rules = {{.match = "pinned", .codec = {.codec = 3, .bits = 8, .bucket = 512}}};
    TensorTable tensors;
    for (int i = 0; i < 12; ++i) {
      tensors.push_back(
          {.name = "layer" + std::to_string(i), .elements = 1u << (12 + i % 4), .shape = {64, 64}});
    }
    tensors.push_back({.name = "pinned", .elements = 1 << 14, .shape = {128, 128}});
    tensors.push_back({.name = "bias", .elements = 64, .shape = {64}});
    table = std::make_shared<TensorTable>(std::move(tensors));
    const auto facts = make_facts({.table = table,
                                   .policy = policy,
                                   .epoch = 1,
                                   .policy_version = 1,
                                   .order = reverse_registration(table->size()),
                                   .machines = 2,
                                   .slab_bytes = 256 * 1024});
    EXPECT_TRUE(facts.ok()) << facts.status().to_string();
    running = *facts;
  }
  // As if measured: what max-min loses of uniform values of the tensor's range.
  CeilingQuestion question(const std::map<std::string, double>& ranges = {}) const {
    CeilingQuestion question{.running = running};
    const std::vector<CodecSpec> strengths = strengths_of(policy);
    question.strengths = std::make_shared<const std::vector<CodecSpec>>(strengths);
    for (uint32_t t = 0; t < table->size(); ++t) {
      const auto found = ranges.find((*table)[t].name);
      const double range = found != ranges.end() ? found->second : std::pow(10.0, t % 3);
      LossSample& loss = question.losses.emplace_back();
      loss.values = static_cast<double>((*table)[t].elements);
      loss.intended = loss.values * range * range / 3;
      for (size_t s = 0; s < strengths.size(); ++s) {
        loss.lost[s] = maxmin_squared_error(loss.values * range * range, strengths[s].bits);
      }
    }
    return question;
  }
  Policy policy;
  std::shared_ptr<const TensorTable> table;
  FactsPtr running;
};

struct Total {
  double bytes = 0, error = 0;
};
Total total_of(const Layers& layers, const CeilingQuestion& question,
               const std::vector<CodecSpec>& specs) {
  Total total;
  for (uint32_t t = 0; t < 12; ++t) {
    total.bytes += static_cast<double>(
        kernels::encoded_bytes(specs[t], DType::kF32, (*layers.table)[t].elements));
    for (size_t s = 0; s < question.strengths->size(); ++s) {
      if ((*question.strengths)[s] == specs[t]) total.error += question.losses[t].lost[s];
    }
  }
  return total;
}

CeilingAnswer answer_to(const CeilingQuestion& question) {
  Result<CeilingAnswer> answer = make_ceilings(question);
  EXPECT_TRUE(answer.ok()) << answer.status().to_string();
  return *answer;
}

TEST(Layerwise, SendsFewerBytesWithinTheErrorOfTheUniformCodec) {
  for (const LayerSolver solver : {LayerSolver::kExact, LayerSolver::kKmeans}) {
    for (const float alpha : {0.25f, 1.0f, 4.0f}) {
      Policy policy = layerwise_policy();
      policy.layerwise_solver = solver;
      policy.layerwise_alpha = alpha;
      const Layers layers(policy);
      const CeilingQuestion question = layers.question();
      const CeilingAnswer answer = answer_to(question);
      ASSERT_TRUE(answer.changes);
      const Total ours = total_of(layers, question, answer.ceilings);
      const Total uniform =
          total_of(layers, question, std::vector<CodecSpec>(layers.table->size(), kUniform));
      EXPECT_LE(ours.error, alpha * uniform.error * (1 + 1e-9));
      EXPECT_LT(ours.bytes, (alpha >= 1 ? 0.9 : 2.0) * uniform.bytes) << answer.why;
    }
  }
}

TEST(Layerwise, GivesLoudLayersMoreBitsThanQuietOnes) {
  const Layers layers;
  const CeilingAnswer answer = answer_to(layers.question());
  EXPECT_GT(answer.ceilings[2].bits, answer.ceilings[0].bits);
  EXPECT_NE(answer.why.find("times fewer bytes than maxmin:4"), std::string::npos) << answer.why;
}

TEST(Layerwise, StaysWhereNothingIsToBeGained) {
  const Layers layers;
  CeilingQuestion question = layers.question();
  question.now = answer_to(question).ceilings;
  EXPECT_FALSE(answer_to(question).changes);
  std::map<std::string, double> alike;
  for (const TensorDesc& tensor : *layers.table) alike[tensor.name] = 1.0;
  EXPECT_FALSE(answer_to(layers.question(alike)).changes) << "all layers lose alike";
}

TEST(Layerwise, ChangesWhenErrorsHaveGrownBeyondTheBound) {
  const Layers layers;
  CeilingQuestion question = layers.question();
  question.now = answer_to(question).ceilings;
  std::map<std::string, double> turned;
  for (uint32_t t = 0; t < layers.table->size(); ++t) {
    turned[(*layers.table)[t].name] = std::pow(10.0, 2 - t % 3);
  }
  CeilingQuestion later = layers.question(turned);
  later.now = question.now;
  const CeilingAnswer answer = answer_to(later);
  EXPECT_TRUE(answer.changes);
  EXPECT_GT(answer.ceilings[0].bits, answer.ceilings[2].bits);
}

TEST(Layerwise, KeepsTheCodecOfTensorsThatNobodyMeasured) {
  const Layers layers;
  CeilingQuestion question = layers.question();
  question.losses[5] = {};
  EXPECT_EQ(answer_to(question).ceilings[5], kUniform);
  for (LossSample& each : question.losses) each = {};
  EXPECT_FALSE(answer_to(question).changes);
}

// An expert that no step has asked, a gate that is closed: what it will be is not known.
TEST(Layerwise, KeepsTheCodecOfTensorsThatHadNothingButZeros) {
  const Layers layers;
  CeilingQuestion question = layers.question();
  question.losses[2] = {.values = question.losses[2].values};
  EXPECT_EQ(answer_to(question).ceilings[2], kUniform);
}

TEST(Ceilings, ArePartOfPlansAndRulesGoBeforeThem) {
  const Layers layers;
  const CeilingAnswer answer = answer_to(layers.question());
  const auto facts = make_facts({.table = layers.table,
                                 .policy = layers.policy,
                                 .epoch = 2,
                                 .policy_version = 1,
                                 .order = reverse_registration(layers.table->size()),
                                 .ceilings = answer.ceilings,
                                 .machines = 2,
                                 .slab_bytes = 256 * 1024});
  ASSERT_TRUE(facts.ok()) << facts.status().to_string();
  for (uint32_t t = 0; t < 12; ++t) EXPECT_EQ((*facts)->spec_of(t), answer.ceilings[t]) << t;
  EXPECT_EQ((*facts)->spec_of(12).bits, 8) << "the rule's";
  EXPECT_EQ((*facts)->spec_of(13).codec, 0) << "a bias stays as it is";
}

TEST(Ceilings, BoundWhatPlannersForShortStepsChoose) {
  const std::vector<CodecSpec> levels = {
      kUniform, {.codec = 3, .bits = 8, .bucket = 512}, {.codec = 0, .bucket = 512}};
  CodecSpec two = kUniform, eight = kUniform;
  two.bits = 2;
  eight.bits = 8;
  const PlannedSegment strong{{0, two}, true}, weak{{0, eight}, true}, ruled{{0, two}, false};
  EXPECT_EQ(at_level(strong, levels, 0, {}).spec, two);
  EXPECT_EQ(at_level(strong, levels, 2, {}).spec.codec, 0);
  EXPECT_EQ(at_level(weak, levels, 0, {}).spec, eight);
  EXPECT_EQ(at_level(weak, levels, 1, {}).spec, eight);
  EXPECT_EQ(at_level(ruled, levels, 2, {}).spec, two) << "a rule decides";
}

TEST(Ceilings, OfACompressedPlanFollowNewOnes) {
  const Layers layers;
  Policy searching = layers.policy;
  searching.mode = PlanMode::kAuto;
  std::vector<CodecSpec> ceilings(layers.table->size(), kUniform);
  ceilings[0].bits = 2;
  std::vector<Group> groups = layers.running->plan.groups;
  const auto raw_at = [&](uint32_t tensor) -> CodecSpec& {
    const auto place = layers.running->places[tensor].front();
    return groups[place.group].segments[place.segment].spec;
  };
  raw_at(1) = {.codec = 0, .bucket = 512};
  const auto facts = make_facts({.table = layers.table,
                                 .policy = searching,
                                 .epoch = 2,
                                 .policy_version = 1,
                                 .order = reverse_registration(layers.table->size()),
                                 .groups = groups,
                                 .ceilings = ceilings,
                                 .under_new_ceilings = true,
                                 .machines = 2,
                                 .slab_bytes = 256 * 1024});
  ASSERT_TRUE(facts.ok()) << facts.status().to_string();
  EXPECT_EQ((*facts)->spec_of(0).bits, 2);
  EXPECT_EQ((*facts)->spec_of(1).codec, 0) << "what is not compressed stays so";
  EXPECT_EQ((*facts)->spec_of(12).bits, 8);
}

// The last piece of a tensor ends within one of the old buckets, which were larger.
TEST(Ceilings, OfATensorInPiecesMayHaveSmallerBuckets) {
  Policy policy;
  policy.default_codec = {.codec = 12, .bucket = 65536, .amount = 0.01f};
  policy.mode = PlanMode::kAuto;
  policy.segment_bytes = 256 * 1024;
  const auto table = std::make_shared<TensorTable>(
      TensorTable{{.name = "weight", .elements = 100'000, .shape = {100'000}}});
  PlanQuestion question{.table = table,
                        .policy = policy,
                        .epoch = 1,
                        .policy_version = 1,
                        .order = reverse_registration(1),
                        .machines = 2,
                        .slab_bytes = 1 << 20};
  question.policy.mode = PlanMode::kFixed;
  const Result<FactsPtr> running = make_facts(question);
  ASSERT_TRUE(running.ok()) << running.status().to_string();
  ASSERT_EQ((*running)->places[0].size(), 2u);
  question.policy = policy;
  question.epoch = 2;
  question.groups = (*running)->plan.groups;
  question.ceilings = {exact_for(policy.default_codec)};
  question.under_new_ceilings = true;
  const Result<FactsPtr> exact = make_facts(question);
  ASSERT_TRUE(exact.ok()) << exact.status().to_string();
  EXPECT_EQ((*exact)->spec_of(0).codec, 0);
}

// The search has kept a weaker codec, whose buckets do not fill the larger ones: 5,001 of them.
TEST(Ceilings, OfATensorInPiecesMayHaveLargerBuckets) {
  constexpr CodecSpec kWeaker{.codec = 3, .bits = 8, .bucket = 512};
  const auto table = std::make_shared<TensorTable>(
      TensorTable{{.name = "weight", .elements = 512 * 5001, .shape = {512 * 5001}}});
  const CodecSpec four{.codec = 3, .bits = 4, .bucket = 1024};
  const CodecSpec sparse{
      .codec = 12, .flags = CodecSpec::kFeedback, .bucket = 65536, .amount = 0.01f};
  for (const auto& [codec, planner, ceiling] :
       {std::tuple(four, CeilingPlanner::klayerwise, four),
        std::tuple(sparse, CeilingPlanner::kgravac, exact_for(sparse))}) {
    PlanQuestion question{.table = table,
                          .policy = {},
                          .epoch = 1,
                          .policy_version = 1,
                          .order = reverse_registration(1),
                          .machines = 2,
                          .slab_bytes = 1 << 20};
    question.policy.segment_bytes = 384 * 1024;
    question.policy.default_codec = kWeaker;
    const Result<FactsPtr> running = make_facts(question);
    ASSERT_TRUE(running.ok()) << running.status().to_string();
    ASSERT_GT((*running)->places[0].size(), 10u);
    question.policy.default_codec = codec;
    question.policy.mode = PlanMode::kAuto;
    question.policy.ceilings = planner;
    question.epoch = 2;
    question.groups = (*running)->plan.groups;
    question.ceilings = {ceiling};
    question.under_new_ceilings = true;
    const Result<FactsPtr> under = make_facts(question);
    ASSERT_TRUE(under.ok()) << under.status().to_string();
    EXPECT_EQ((*under)->spec_of(0), ceiling);
  }
}

TEST(Ceilings, NameWhatIsWrongWithAPolicy) {
  Policy policy;
  EXPECT_TRUE(check_ceilings(policy).ok());
  policy.ceilings = CeilingPlanner::klayerwise;
  EXPECT_TRUE(check_ceilings(policy).ok());
  policy.layerwise_alpha = 0;
  EXPECT_NE(check_ceilings(policy).message().find("layerwise_alpha: 0"), std::string::npos);
  policy.layerwise_alpha = 1;
  policy.default_codec = {.codec = 1, .bucket = 512};
  const std::string why = check_ceilings(policy).message();
  EXPECT_NE(why.find("fp16"), std::string::npos) << why;
}

// The row `gravac`.

Policy gravac_policy() {
  Policy policy;
  policy.default_codec = {
      .codec = 12, .flags = CodecSpec::kFeedback, .bucket = kSparseBucket, .amount = 0.01f};
  policy.ceilings = CeilingPlanner::kgravac;
  return policy;
}

// By strength, weakest first.
CeilingQuestion gains_are(const Layers& layers, const std::vector<double>& gains, int level = 0) {
  CeilingQuestion question = layers.question();
  question.level = level;
  question.everywhere = {.values = 1000, .intended = 50};
  for (size_t i = 0; i < gains.size(); ++i) question.everywhere.lost[i] = 50 * (1 - gains[i]);
  for (LossSample& loss : question.losses) loss.lost = {};
  return question;
}

TEST(Gravac, TriesSharesBetweenItsFactors) {
  Policy policy = gravac_policy();
  const std::vector<CodecSpec> strengths = strengths_of(policy);
  ASSERT_EQ(strengths.size(), 7u);
  EXPECT_FLOAT_EQ(strengths.front().amount, 0.1f);
  EXPECT_FLOAT_EQ(strengths.back().amount, 0.001f);
  policy.gravac_max = policy.gravac_min = 20;
  ASSERT_EQ(strengths_of(policy).size(), 1u);
}

TEST(Gravac, BecomesStrongerAStepAtATimeWhereMoreThanEnoughIsKept) {
  const Layers layers(gravac_policy());
  const std::vector<CodecSpec> strengths = strengths_of(layers.policy);
  const CeilingAnswer answer = answer_to(gains_are(layers, {1, 0.99, 0.95, 0.9, 0.8, 0.75, 0.7}));
  EXPECT_TRUE(answer.changes);
  EXPECT_EQ(answer.level, 1);
  EXPECT_EQ(answer.ceilings[0], strengths[1]);
  EXPECT_EQ(answer_to(gains_are(layers, {1, 0.99, 0.98, 0.95, 0.9, 0.75, 0.7}, 3)).level, 4);
  const CeilingAnswer stays = answer_to(gains_are(layers, {1, 0.97, 0.93, 0.9, 0.85, 0.6, 0.5}, 3));
  EXPECT_FALSE(stays.changes) << "a little more than enough is no reason";
  CeilingQuestion blind = gains_are(layers, {1, 1, 1, 1, 1, 1, 1});
  blind.everywhere = {.nonfinite = 100};
  EXPECT_FALSE(answer_to(blind).changes) << "nothing was seen";
}

TEST(Gravac, GoesBackAsFarAsItTakes) {
  const Layers layers(gravac_policy());
  const CeilingAnswer back =
      answer_to(gains_are(layers, {0.9, 0.55, 0.45, 0.4, 0.35, 0.3, 0.2}, 5));
  EXPECT_TRUE(back.changes);
  EXPECT_EQ(back.level, 1);
  const CeilingAnswer dense = answer_to(gains_are(layers, {0.45, 0.4, 0.35, 0.3, 0.2, 0.1, 0}, 1));
  EXPECT_EQ(dense.level, -1);
  EXPECT_EQ(dense.ceilings[0].codec, 0);
  EXPECT_NE(dense.why.find("uncompressed"), std::string::npos) << dense.why;
  EXPECT_EQ(answer_to(gains_are(layers, {0.95, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4}, -1)).level, 0);
}

// Without residuals every share seems to keep more than it does once it runs.
TEST(Gravac, ComesBackLaterAfterEachFall) {
  const Layers layers(gravac_policy());
  const std::vector<double> seems = {0.95, 0.4, 0.3, 0.2, 0.1, 0.1, 0.1};
  const std::vector<double> is = {0.45, 0.3, 0.2, 0.1, 0.1, 0.1, 0.1};
  CeilingQuestion question = gains_are(layers, is, 0);
  std::vector<int> waits;
  while (waits.size() < 9) {
    CeilingAnswer answer = answer_to(question);
    ASSERT_EQ(answer.level, -1);
    waits.push_back(0);
    while (answer.level < 0) {
      question = gains_are(layers, seems, answer.level);
      question.climb = answer.climb;
      answer = answer_to(question);
      ++waits.back();
    }
    question = gains_are(layers, is, answer.level);
    question.climb = answer.climb;
  }
  EXPECT_EQ(waits, (std::vector<int>{2, 3, 5, 9, 17, 33, 65, 65, 65}));
}

TEST(Gravac, BeginsWithTheWeakestShare) {
  const Layers layers(gravac_policy());
  EXPECT_FLOAT_EQ(layers.running->spec_of(0).amount, 0.1f);
}

TEST(Gravac, NamesWhatIsWrongWithAPolicy) {
  const auto why = [](auto change) {
    Policy policy = gravac_policy();
    change(policy);
    return check_ceilings(policy).message();
  };
  EXPECT_EQ(why([](Policy&) {}), "");
  EXPECT_NE(why([](Policy& p) { p.gravac_min = 2000; }).find("gravac_min: 2000 is above"),
            std::string::npos);
  EXPECT_NE(why([](Policy& p) {
              p.ceilings = CeilingPlanner::kpolicy;
              p.gravac_min = 2000;
            }).find("gravac_min: 2000 is above"),
            std::string::npos)
      << "whoever chooses ceilings";
  EXPECT_NE(why([](Policy& p) { p.gravac_min = 2; }).find("gravac_min: 2 is not within 4"),
            std::string::npos);
  EXPECT_NE(why([](Policy& p) { p.gravac_max = 1e5f; }).find("gravac_max"), std::string::npos);
  EXPECT_NE(why([](Policy& p) { p.default_codec.flags = 0; }).find("feedback"), std::string::npos);
  EXPECT_NE(why([](Policy& p) { p.default_codec = kUniform; }).find("maxmin:4"), std::string::npos);
}

// The guard rail below all rows.

TEST(Guards, WeakenATensorWhoseResidualOutgrowsItsGradient) {
  const Layers layers(gravac_policy());
  const std::vector<CodecSpec> strengths = strengths_of(layers.policy);
  CeilingQuestion question = gains_are(layers, {1, 0.9, 0.8, 0.72, 0.71, 0.6, 0.5}, 3);
  question.now.assign(layers.table->size(), strengths[3]);
  question.losses[4].gradient = 1;
  question.losses[4].residual = 17;
  CeilingAnswer answer = answer_to(question);
  EXPECT_TRUE(answer.changes);
  EXPECT_EQ(answer.ceilings[4], strengths[2]);
  EXPECT_EQ(answer.ceilings[5], strengths[3]);
  EXPECT_EQ(answer.base[4], strengths[3]);
  EXPECT_NE(answer.why.find("1 tensors below it"), std::string::npos) << answer.why;
  for (int more = 0; more < 3; ++more) {
    question.guards = answer.guards;
    answer = answer_to(question);
  }
  EXPECT_EQ(answer.ceilings[4].codec, 0) << "uncompressed at last";
  question.losses[4].residual = 1;
  int windows = 0;
  for (; answer.ceilings[4].codec == 0 && windows < 200; ++windows) {
    question.guards = answer.guards;
    answer = answer_to(question);
  }
  EXPECT_EQ(answer.ceilings[4], strengths[0]) << "back a level at a time";
  EXPECT_GE(windows, 8) << "and carefully";
}

TEST(Guards, WeakenATensorThatIsNotFiniteOrHardlyArrives) {
  const Layers layers(gravac_policy());
  const std::vector<CodecSpec> strengths = strengths_of(layers.policy);
  CeilingQuestion question = gains_are(layers, {1, 0.9, 0.8, 0.72, 0.71, 0.6, 0.5}, 2);
  question.now.assign(layers.table->size(), strengths[2]);
  question.losses[1] = {.values = 10, .nonfinite = 90};
  question.losses[2].intended = 10;
  question.losses[2].lost[2] = 9.9;
  question.losses[3].nonfinite = 1;
  const CeilingAnswer answer = answer_to(question);
  EXPECT_EQ(answer.ceilings[1], strengths[1]);
  EXPECT_EQ(answer.ceilings[2], strengths[1]);
  EXPECT_EQ(answer.ceilings[3], strengths[2]) << "a loss scale overflows now and then";
  EXPECT_FALSE(answer_to(gains_are(layers, {1, 0.9, 0.8, 0.72, 0.71, 0.6, 0.5}, 3)).changes);
}

TEST(Guards, HaveTheMenusLevelsBelowThePolicysCodecInModeAuto) {
  Policy policy;
  EXPECT_TRUE(strengths_of(policy).empty()) << "what somebody has fixed stays";
  policy.mode = PlanMode::kAuto;
  const std::vector<CodecSpec> strengths = strengths_of(policy);
  ASSERT_EQ(strengths.size(), 2u);
  EXPECT_EQ(strengths[0].bits, 8) << "weakest first";
  EXPECT_EQ(strengths[1], policy.default_codec);

  const Layers layers(policy);
  const size_t tensors = layers.table->size();
  CeilingQuestion question{.running = layers.running,
                           .strengths = std::make_shared<const std::vector<CodecSpec>>(strengths),
                           .losses = std::vector<LossSample>(tensors)};
  for (LossSample& loss : question.losses) loss = {.values = 100, .intended = 10, .lost = {0.1, 1}};
  EXPECT_FALSE(answer_to(question).changes);
  question.losses[1] = {.values = 10, .nonfinite = 90};
  CeilingAnswer answer = answer_to(question);
  EXPECT_TRUE(answer.changes);
  EXPECT_EQ(answer.ceilings[1], strengths[0]) << "one level down";
  EXPECT_EQ(answer.ceilings[2], strengths[1]);
  question.now = answer.base;
  question.guards = answer.guards;
  EXPECT_EQ(answer_to(question).ceilings[1].codec, 0) << "uncompressed at last";
}

TEST(Losses, AreMeasuredInTheSameStepsEverywhere) {
  LossMeter one, other;
  one.begin({kUniform}, 1, {true, true}, 10, 0);
  for (uint64_t step = 0; step < 25; ++step) one.close_step(step);
  other.begin({kUniform}, 1, {true, true}, 10, 0);
  for (uint64_t step = 0; step < 200; ++step) EXPECT_EQ(one.due(step), other.due(step)) << step;
  EXPECT_TRUE(one.due(8));
  EXPECT_FALSE(one.due(33));
  EXPECT_TRUE(one.due(110));
}

TEST(Losses, AreMeasuredSoonWhereverAJobBegins) {
  LossMeter meter;
  meter.begin({kUniform}, 1, {true}, 500, 12'345);
  EXPECT_FALSE(meter.due(12'344));
  EXPECT_TRUE(meter.due(12'352));
  EXPECT_TRUE(meter.due(12'360));
  EXPECT_FALSE(meter.due(12'384));
  EXPECT_TRUE(meter.due(12'500));
}

TEST(Losses, OfEveryStepMakeNoneUnusual) {
  LossMeter meter;
  meter.begin({kUniform}, 1, {true}, 2, 0);
  EXPECT_TRUE(meter.disturbs(100));
  meter.measure_each(1);
  EXPECT_TRUE(meter.due(101));
  EXPECT_FALSE(meter.disturbs(101));
}

TEST(Losses, OfAnAttemptThatFailedDoNotCount) {
  LossMeter meter;
  meter.begin({kUniform}, 1, {true}, 1, 0);
  meter.add(0, {.values = 10, .intended = 7});
  meter.drop_step();
  meter.add(0, {.values = 10, .intended = 1});
  ASSERT_TRUE(meter.close_step(1));
  EXPECT_EQ(meter.last().values, 10);
  EXPECT_EQ(meter.last().intended, 1);
}

TEST(Losses, OfOlderStepsCountLess) {
  LossMeter meter;
  meter.begin({kUniform}, 1, {true}, 1, 0);
  for (uint64_t step = 1; step <= 20; ++step) {
    LossSample sample{.values = 10, .intended = 1};
    sample.lost[0] = step <= 10 ? 100.0 : 1.0;
    meter.add(0, sample);
    EXPECT_TRUE(meter.close_step(step));
  }
  const LossSample& sum = meter.tensors()[0];
  EXPECT_LT(sum.lost[0] / sum.values, 2.0);
  EXPECT_GT(sum.lost[0] / sum.values, 0.1);
  EXPECT_EQ(meter.last().lost[0], 1);
}

}  // namespace
}  // namespace cgx::scheduler
