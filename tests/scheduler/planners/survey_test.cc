#include "scheduler/planners/survey.h"

#include <gtest/gtest.h>

#include "kernels/codec.h"
#include "tests/scheduler/planners/measured_job.h"

namespace cgx::scheduler {
namespace {

using Job = MeasuredJob;

SurveyPtr survey_of(const SurveyQuestion& question) {
  const Result<SurveyPtr> survey = make_survey(question);
  EXPECT_TRUE(survey.ok()) << survey.status().to_string();
  return *survey;
}

Job job_of_many_groups() {
  Policy policy = MeasuredJob::auto_policy();
  policy.group_bytes = policy.segment_bytes = 4096;
  MeasuredJob job(policy);
  TensorTable tensors;
  for (int i = 0; i < 17; ++i) {
    tensors.push_back({.name = std::to_string(i), .elements = 1 << 18, .shape = {512, 512}});
  }
  job.table = std::make_shared<TensorTable>(std::move(tensors));
  job.order = reverse_registration(job.table->size());
  job.running = job.facts_of({});
  return job;
}

// One user's plan of very many groups would keep all others' commits waiting.
TEST(Survey, OfTooManyGroupsIsRefusedAtOnce) {
  const Job job = job_of_many_groups();
  ASSERT_GT(job.running->plan.groups.size(), kFittedGroupsMax);
  const SurveyQuestion question = job.question({*job.costs, {.trip_ns = 1e5}});
  const Status refused =
      FitSearch::create(question, default_menu(), arrivals_of(question)).status();
  EXPECT_EQ(refused.code(), StatusCode::kRESOURCE_EXHAUSTED);
  EXPECT_NE(refused.message().find("4096 are the most: raise group_bytes"), std::string::npos);
}

TEST(Survey, OfTooManyGroupsNamesPlansForTrialsToDecide) {
  Job job = job_of_many_groups();
  const auto named = [&] {
    std::vector<std::string> names;
    const SurveyPtr survey = survey_of(job.question({*job.costs, {}}));
    EXPECT_NE(survey->unsearched.find("4096 are the most: raise group_bytes"), std::string::npos);
    for (const Candidate& each : survey->candidates) {
      EXPECT_EQ(each.step_ns, 0) << "nobody knows";
      EXPECT_EQ(each.bypass, each.name == "fp32");
      names.push_back(each.name);
    }
    return names;
  };
  const std::string four = "maxmin:4,bucket=512,stochastic", eight = "maxmin:8,bucket=512";
  EXPECT_EQ(named(), (std::vector{four, eight})) << "the strongest first";
  job.running = job.facts_of(survey_of(job.question({*job.costs, {}}))->candidates[0].groups);
  EXPECT_EQ(named(), (std::vector<std::string>{eight, "fp32"})) << "the bypass last";
}

TEST(Survey, OfTensorsCutIntoTooManyPiecesNamesPlansWithOneCodec) {
  Policy policy = Job::auto_policy();
  policy.segment_bytes = 2048;
  const Job job(policy);
  Result<Surveyor> surveyor = Surveyor::create(job.question({*job.costs, {80, 50'000}, 0}));
  ASSERT_TRUE(surveyor.ok());
  int slices = 1;
  while (!surveyor->work(1)) ++slices;
  EXPECT_LT(slices, 50) << "11 crowds x 4 ways are fitted, and nothing is searched";
  const SurveyPtr survey = *surveyor->survey();
  ASSERT_FALSE(survey->candidates.empty());
  EXPECT_EQ(survey->candidates[0].name, "maxmin:4,bucket=512,stochastic");
  EXPECT_EQ(survey->unsearched,
            "only plans with one codec for all: the plan has 4096 pieces of tensors, and a codec "
            "for each is searched for up to 2048");
  EXPECT_EQ(survey_of(Job().question({*job.costs, {80, 50'000}, 0}))->unsearched, "");
}

TEST(Survey, BeginsWithThePlanThatCompressesNothing) {
  const Job job;
  for (const Group& group : job.running->plan.groups) {
    for (const Segment& segment : group.segments) EXPECT_EQ(segment.spec, MeasuredJob::kRaw);
  }
}

TEST(Survey, FindsTheLinkThatExplainsTheStep) {
  const Job job;
  for (const double ns_per_byte : {0.8, 8.0, 80.0}) {
    const Conditions truth{*job.costs, {ns_per_byte, 50'000}, 0};
    const SurveyQuestion question = job.question(truth);
    const SurveyPtr survey = survey_of(question);
    EXPECT_NEAR(survey->conditions.link.ns_per_byte, ns_per_byte, 0.01 * ns_per_byte);
    EXPECT_NEAR(survey->running_ns, question.measured.step_ns, 1e-3 * question.measured.step_ns);
  }
}

TEST(Survey, NamesStrongCodecsFirstWhereTheLinkIsSlow) {
  const Job job;
  const SurveyPtr survey = survey_of(job.question({*job.costs, {80, 50'000}, 0}));
  ASSERT_FALSE(survey->candidates.empty());
  const Candidate& best = survey->candidates.front();
  EXPECT_LT(best.step_ns, 0.25 * survey->running_ns);
  for (const Group& group : best.groups) {
    for (const Segment& segment : group.segments) EXPECT_EQ(segment.spec, job.policy.default_codec);
  }
  for (size_t i = 1; i < survey->candidates.size(); ++i) {
    EXPECT_GE(survey->candidates[i].step_ns, survey->candidates[i - 1].step_ns);
  }
}

TEST(Survey, NamesNothingThatIsMuchSlowerOrRunsAlready) {
  Job job;
  MachineCosts slow = *job.costs;
  for (CodecCurves& codec : slow.codecs) {
    if (codec.spec == MeasuredJob::kRaw) continue;
    codec.encode.ns_per_byte = codec.decode.ns_per_byte = 5;
  }
  job.costs = std::make_shared<const MachineCosts>(slow);
  const SurveyPtr survey = survey_of(job.question({*job.costs, {0.1, 20'000}, 0}));
  for (const Candidate& candidate : survey->candidates) {
    EXPECT_LE(candidate.step_ns, 1.1 * survey->running_ns) << candidate.name;
    EXPECT_NE(candidate.groups, job.running->plan.groups) << candidate.name;
  }
}

TEST(Survey, MakesArithmeticAsSlowAsItIsHere) {
  const Job job;
  SurveyQuestion question = job.question({*job.costs, {8, 50'000}, 0});
  EXPECT_EQ(survey_of(question)->arithmetic, 1) << "nobody has timed it";
  question.measured.arithmetic_ns = 1e3;
  EXPECT_EQ(survey_of(question)->arithmetic, 0.5) << "no machine is that fast";
  question.measured.arithmetic_ns = 8e6 * 0.2 * 2;
  const double times = survey_of(question)->arithmetic;
  EXPECT_GT(times, 1);
  EXPECT_LT(times, 8);
}

// With raw gradients alone seen, a slow link and slow work look alike; a compressed plan beside
// them tells.
TEST(Survey, TellsASlowLinkFromSlowWorkOnceAnotherPlanWasSeen) {
  const Job job;
  std::vector<Group> four = job.running->plan.groups;
  for (Group& group : four) {
    for (Segment& segment : group.segments) segment.spec = job.policy.default_codec;
  }
  const FactsPtr compressed = job.facts_of(four);
  MachineCosts crowded = *job.costs;
  for (double* cost :
       {&crowded.operation_ns, &crowded.segment_ns, &crowded.frame_ns, &crowded.wire_ns_per_byte}) {
    *cost *= 4;
  }
  for (CodecCurves& codec : crowded.codecs) {
    for (Curve* curve : {&codec.encode, &codec.decode}) curve->ns_per_byte *= 4;
  }
  const Conditions truth{crowded, {0.1, 20'000}, 0};
  SurveyQuestion question = job.question(truth);
  EXPECT_EQ(survey_of(question)->crowd, 1) << "nothing else was seen";
  const std::vector<double> arrivals(question.measured.arrival_ns.begin(),
                                     question.measured.arrival_ns.end());
  const auto took = timeline_of(compressed->plan, *job.table, arrivals, truth);
  ASSERT_TRUE(took.ok());
  question.seen = {{compressed, 0, took->step_ns()}};
  const SurveyPtr survey = survey_of(question);
  EXPECT_EQ(survey->crowd, 4);
  EXPECT_LT(survey->conditions.link.ns_per_byte, 0.5);
}

TEST(Survey, TellsASlowLinkFromSlowWorkByWhatKeptTheDaemonBusy) {
  const Job job;
  const auto other_work = [&](double times) {
    MachineCosts costs = *job.costs;
    for (double* cost :
         {&costs.operation_ns, &costs.segment_ns, &costs.frame_ns, &costs.wire_ns_per_byte}) {
      *cost *= times;
    }
    return Conditions{costs, {0.1, 20'000}, 0};
  };
  SurveyQuestion question = job.question(other_work(4));
  const std::vector<double> arrivals = arrivals_of(question);
  const auto work_ns = [&](double times) {
    const auto took = timeline_of(job.running->plan, *job.table, arrivals, other_work(times));
    return took.ok() ? took->after.work_ns : 0;
  };
  EXPECT_GT(survey_of(question)->conditions.link.ns_per_byte, 0.5) << "nothing was timed";
  question.measured.arithmetic_ns = work_ns(0);
  question.measured.busy_ns = work_ns(4);
  constexpr double kCopy = 0.05;
  MachineCosts known = *job.costs;
  known.copy_ns_per_byte = kCopy;
  question.costs = std::make_shared<const MachineCosts>(known);
  const SurveyPtr survey = survey_of(question);
  EXPECT_NEAR(survey->crowd, 4, 0.01);
  EXPECT_NEAR(survey->arithmetic, 1, 0.01);
  EXPECT_LT(survey->conditions.link.ns_per_byte, 0.2);
  EXPECT_NEAR(survey->conditions.costs.copy_ns_per_byte, kCopy, 1e-3) << "it is arithmetic";
  question.seen = {{job.running, 1e6, 0, 9e9}};  // beside other programs, before this search
  EXPECT_NEAR(survey_of(question)->crowd, 4, 0.01);
  EXPECT_NEAR(survey->running_ns, question.measured.step_ns, 0.02 * question.measured.step_ns);
}

// Operations take three times as long as the table has it, bytes as long: one plan cannot tell, and
// a second one with other groups does.
TEST(Survey, TellsWhatAnOperationTakesFromWhatAByteDoes) {
  Job job;
  const FactsPtr whole = job.running;
  Policy cut = job.policy;
  cut.group_bytes = 1u << 20;
  cut.segment_bytes = 16u << 10;
  const FactsPtr pieces = Job(cut).running;
  ASSERT_GT(pieces->plan.groups[0].segments.size(), 8 * whole->plan.groups[0].segments.size());
  MachineCosts slow = *job.costs;
  for (double* cost : {&slow.operation_ns, &slow.segment_ns, &slow.frame_ns}) *cost *= 3;
  const Conditions truth{slow, {0.1, 20'000}, 0};
  SurveyQuestion question = job.question(truth);
  const std::vector<double> arrivals = arrivals_of(question);
  const auto seen = [&](const FactsPtr& facts) {
    Conditions nothing_else = truth;
    MachineCosts& costs = nothing_else.costs;
    costs.operation_ns = costs.segment_ns = costs.frame_ns = costs.wire_ns_per_byte = 0;
    const auto took = timeline_of(facts->plan, *facts->table, arrivals, truth);
    const auto codecs = timeline_of(facts->plan, *facts->table, arrivals, nothing_else);
    EXPECT_TRUE(took.ok() && codecs.ok());
    return SeenPlan{facts, codecs->after.work_ns, took->step_ns(), took->after.work_ns};
  };
  const SeenPlan runs = seen(whole);
  question.measured.arithmetic_ns = runs.arithmetic_ns;
  question.measured.busy_ns = runs.busy_ns;
  const auto known = [&] { return survey_of(question)->conditions.costs; };
  EXPECT_GT(known().wire_ns_per_byte, 1.15 * slow.wire_ns_per_byte) << "as slow as items";
  EXPECT_LT(known().operation_ns, 0.5 * slow.operation_ns);
  question.seen = {seen(pieces)};
  EXPECT_NEAR(known().operation_ns, slow.operation_ns, 0.15 * slow.operation_ns);
  EXPECT_NEAR(known().wire_ns_per_byte, slow.wire_ns_per_byte, 0.1 * slow.wire_ns_per_byte);
}

// The daemon's work holds a compressed plan up, whatever its link; what ran uncompressed beside it
// says how slow the link is.
TEST(Survey, GoesByAnotherPlansLinkWhereWorkHidesIt) {
  Job job;
  const FactsPtr raw = job.running;
  std::vector<Group> four = raw->plan.groups;
  for (Group& group : four) {
    for (Segment& segment : group.segments) segment.spec = job.policy.default_codec;
  }
  job.running = job.facts_of(four);
  MachineCosts slow = *job.costs;
  for (Curve* curve : {&slow.codecs.back().encode, &slow.codecs.back().decode}) {
    curve->ns_per_byte *= 15;
  }
  const Conditions truth{slow, {4, 20'000}, 0};
  SurveyQuestion question = job.question(truth);
  const std::vector<double> arrivals = arrivals_of(question);
  const auto runs = timeline_of(job.running->plan, *job.table, arrivals, truth);
  const auto exact = timeline_of(raw->plan, *job.table, arrivals, truth);
  ASSERT_TRUE(runs.ok() && exact.ok());
  ASSERT_GT(exact->step_ns(), 1.2 * runs->step_ns());
  question.measured.busy_ns = 1.1 * runs->after.work_ns;  // a little more than it takes
  question.measured.arithmetic_ns = 0.95 * question.measured.busy_ns;
  EXPECT_LT(survey_of(question)->conditions.link.ns_per_byte, 1) << "it is hidden";
  question.seen = {{raw, 0, exact->step_ns()}};
  EXPECT_GT(survey_of(question)->conditions.link.ns_per_byte, 3);
}

// A table from another machine: codecs that were not timed here are as much slower as those that
// were.
TEST(Survey, BeginsWithWhatCodecsTakeHere) {
  const Job job;
  const CodecSpec eight{.codec = 3, .bits = 8, .bucket = 512}, half{.codec = 1};
  MachineCosts table = *job.costs;
  table.codecs.push_back({half, {0, 0.02}, {0, 0.03}});
  table.copy_ns_per_byte = 0.05;
  const std::vector<kernels::CodecSpeed> timed = {{MeasuredJob::kRaw, 0.12, 0.14},
                                                  {eight, 0.15, 0.15}};
  const MachineCosts here = timed_here(table, timed);
  const auto expect = [&](const CodecSpec& spec, double encode, double decode) {
    const Result<CodecCurves> curves = here.curves_of(spec);
    ASSERT_TRUE(curves.ok());
    EXPECT_NEAR(curves->encode.ns_per_byte, encode, 1e-9) << kernels::to_string(spec);
    EXPECT_NEAR(curves->decode.ns_per_byte, decode, 1e-9) << kernels::to_string(spec);
  };
  expect(MeasuredJob::kRaw, 0.12, 0.14);
  expect(eight, 0.15, 0.15);
  expect(half, 0.06, 0.09);
  expect(job.policy.default_codec, 0.12, 0.15);
  EXPECT_NEAR(here.copy_ns_per_byte, 0.1, 1e-9);
  EXPECT_EQ(here.operation_ns, table.operation_ns);
  EXPECT_EQ(timed_here(table, {}).curves_of(eight)->encode.ns_per_byte, 0.05) << "nothing timed";
}

TEST(Survey, LearnsEachCodecFromThePlansThatHadIt) {
  const Job job;
  SurveyQuestion question = job.question({*job.costs, {8, 50'000}, 0});
  std::vector<Group> eight = job.running->plan.groups;
  const CodecSpec spec{.codec = 3, .bits = 8, .bucket = 512};
  for (Group& group : eight) {
    for (Segment& segment : group.segments) segment.spec = spec;
  }
  const auto cost = [](const Survey& survey, const CodecSpec& codec) {
    return survey.conditions.costs.curves_of(codec)->encode.ns_per_byte;
  };
  question.seen = {{job.facts_of(eight), 1e9}};  // far slower than the table has it
  const SurveyPtr survey = survey_of(question);
  EXPECT_NEAR(cost(*survey, spec), 0.05 * 8 * 8 * 8, 0.05) << "three passes, each bounded";
  EXPECT_EQ(cost(*survey, job.policy.default_codec), 0.04) << "no plan had it";
}

std::vector<Group> all_with(const CodecSpec& spec, std::vector<Group> groups) {
  for (Group& group : groups) {
    for (Segment& segment : group.segments) segment.spec = spec;
  }
  return groups;
}

// Such a codec has the row of the one without.
TEST(Survey, LearnsCodecsWithFeedback) {
  Job job;
  CodecSpec topk{.codec = 12, .bucket = kSparseBucket, .amount = 0.01f};
  MachineCosts table = *job.costs;
  table.codecs.push_back({topk, {0, 0.05}, {0, 0.05}});
  job.costs = std::make_shared<const MachineCosts>(table);
  SurveyQuestion question = job.question({table, {8, 50'000}, 0});
  topk.flags = CodecSpec::kFeedback;
  question.seen = {{job.facts_of(all_with(topk, job.running->plan.groups)), 1e9}};
  const MachineCosts learned = survey_of(question)->conditions.costs;
  EXPECT_NEAR(learned.curves_of(topk)->encode.ns_per_byte, 0.05 * 8 * 8 * 8, 0.05);
  EXPECT_EQ(learned.curves_of(job.policy.default_codec)->encode.ns_per_byte, 0.04);
}

// Ceilings, rules and pins name codecs that are not in the menu.
TEST(Survey, LearnsCodecsThatTheTableHasInAnotherForm) {
  Job job;
  const CodecSpec topk{.codec = 12, .bucket = kSparseBucket, .amount = 0.01f};
  MachineCosts table = *job.costs;
  table.codecs.push_back({topk, {0, 0.04}, {0, 0.04}});
  job.costs = std::make_shared<const MachineCosts>(table);
  SurveyQuestion question = job.question({table, {8, 50'000}, 0});
  CodecSpec wide = job.policy.default_codec, more = topk;
  wide.bucket = 1024;
  more.amount = 0.02f;
  more.flags = CodecSpec::kFeedback;
  for (const auto& [spec, near] : {std::pair(wide, job.policy.default_codec), {more, topk}}) {
    question.seen = {{job.facts_of(all_with(spec, job.running->plan.groups)), 1e9}};
    const MachineCosts learned = survey_of(question)->conditions.costs;
    EXPECT_NEAR(learned.curves_of(spec)->encode.ns_per_byte, 0.04 * 8 * 8 * 8, 0.05);
    EXPECT_EQ(learned.curves_of(near)->encode.ns_per_byte, 0.04) << kernels::to_string(near);
  }
}

TEST(Costs, AreOfTheCodecItselfBeforeOthersThatAreAsNear) {
  const CodecSpec plain{.codec = 9, .flags = CodecSpec::kStochastic};
  CodecSpec clipped = plain;
  clipped.flags |= CodecSpec::kClip;
  MachineCosts costs;
  costs.codecs = {{plain, {0, 1}, {0, 1}}, {clipped, {0, 2}, {0, 2}}};
  EXPECT_EQ(costs.curves_of(plain)->encode.ns_per_byte, 1);
  EXPECT_EQ(costs.curves_of(clipped)->encode.ns_per_byte, 2);
}

TEST(Costs, AreLookedForOnceForEachCodec) {
  const CodecSpec eight{.codec = 3, .bits = 8, .bucket = 512}, half{.codec = 1};
  MachineCosts costs;
  costs.codecs = {{MeasuredJob::kRaw, {0, 1}, {0, 1}}, {eight, {0, 2}, {0, 2}}};
  CurvesOf curves_of(costs);
  EXPECT_EQ(curves_of(MeasuredJob::kRaw)->encode.ns_per_byte, 1);
  EXPECT_EQ(curves_of(eight)->encode.ns_per_byte, 2);
  EXPECT_EQ(curves_of(half).status().message(), costs.curves_of(half).status().message());
  costs.codecs[1].encode.ns_per_byte = 3;
  EXPECT_EQ(curves_of(eight)->encode.ns_per_byte, 2) << "not again";
}

TEST(Survey, NamesTheBypassLastAndLongerThanOthers) {
  Job job;
  std::vector<Group> four = job.running->plan.groups;
  const std::vector<Group> raw = four;
  for (Group& group : four) {
    for (Segment& segment : group.segments) segment.spec = job.policy.default_codec;
  }
  job.running = job.facts_of(four);
  SurveyQuestion question = job.question({*job.costs, {1.0, 20'000}, 0});
  question.seen = {{job.running, 0, question.measured.step_ns, 0}};
  const SurveyPtr survey = survey_of(question);
  ASSERT_FALSE(survey->candidates.empty());
  const Candidate& last = survey->candidates.back();
  EXPECT_TRUE(last.bypass);
  EXPECT_GT(last.step_ns, 1.1 * survey->running_ns);
  EXPECT_LE(last.step_ns, 1.5 * survey->running_ns);
  question.lost = {last.groups};
  const SurveyPtr without = survey_of(question);
  for (const Candidate& candidate : without->candidates) EXPECT_FALSE(candidate.bypass);
}

TEST(Survey, NamesTheBypassFirstWhereOnlyACompressedPlanWasSeen) {
  Job job;
  std::vector<Group> four = job.running->plan.groups;
  for (Group& group : four) {
    for (Segment& segment : group.segments) segment.spec = job.policy.default_codec;
  }
  job.running = job.facts_of(four);
  SurveyQuestion question = job.question({*job.costs, {80, 20'000}, 0});
  const SurveyPtr survey = survey_of(question);
  ASSERT_FALSE(survey->candidates.empty());
  EXPECT_TRUE(survey->candidates.front().bypass);
  EXPECT_GT(survey->candidates.front().step_ns, 1.5 * survey->running_ns);
  question.seen = {{job.running, 0, question.measured.step_ns, 0}};
  const SurveyPtr later = survey_of(question);
  for (const Candidate& candidate : later->candidates) EXPECT_FALSE(candidate.bypass);
}

TEST(Survey, NamesWeakerCodecsWithOtherBucketsThoughTensorsAreCut) {
  Policy policy = Job::auto_policy();
  policy.segment_bytes = 256 * 1024;
  policy.default_codec.bucket = 1024;
  Job job(policy);
  Policy fixed = policy;
  fixed.mode = PlanMode::kFixed;
  const auto four = make_plan({*job.table, fixed, 1, 1, job.order, 2});
  ASSERT_TRUE(four.ok());
  job.running = job.facts_of(four->groups);
  const SurveyPtr survey = survey_of(job.question({*job.costs, {0.1, 20'000}, 0}));
  std::vector<std::string> names;
  for (const Candidate& candidate : survey->candidates) names.push_back(candidate.name);
  EXPECT_NE(std::find(names.begin(), names.end(), "fp32"), names.end());
  EXPECT_NE(std::find(names.begin(), names.end(), "maxmin:8,bucket=512"), names.end());
}

TEST(Survey, KeepsToTheMenuAndTheRules) {
  Policy policy = Job::auto_policy();
  policy.menu = {MeasuredJob::kRaw};
  policy.rules = {{"layer0", {.codec = 3, .bits = 8, .bucket = 512}}};
  const Job job(policy);
  const SurveyPtr survey = survey_of(job.question({*job.costs, {80, 50'000}, 0}));
  ASSERT_FALSE(survey->candidates.empty());
  for (const Candidate& candidate : survey->candidates) {
    for (const Group& group : candidate.groups) {
      for (const Segment& segment : group.segments) {
        if (segment.tensor == 0) {
          EXPECT_EQ(segment.spec, policy.rules[0].codec);
        } else {
          EXPECT_TRUE(segment.spec == MeasuredJob::kRaw || segment.spec == policy.default_codec);
        }
      }
    }
  }
}

TEST(Survey, IsTheSameHoweverItIsSliced) {
  const Job job;
  const SurveyQuestion question = job.question({*job.costs, {8, 50'000}, 0});
  const SurveyPtr whole = survey_of(question);
  Result<Surveyor> sliced = Surveyor::create(question);
  ASSERT_TRUE(sliced.ok());
  int slices = 1;
  while (!sliced->work(8)) ++slices;
  EXPECT_GT(slices, 47) << "44 of them fit the timeline";
  const SurveyPtr survey = *sliced->survey();
  EXPECT_EQ(survey->running_ns, whole->running_ns);
  EXPECT_EQ(survey->conditions.link.ns_per_byte, whole->conditions.link.ns_per_byte);
  ASSERT_EQ(survey->candidates.size(), whole->candidates.size());
  for (size_t i = 0; i < whole->candidates.size(); ++i) {
    EXPECT_EQ(survey->candidates[i].groups, whole->candidates[i].groups);
    EXPECT_EQ(survey->candidates[i].step_ns, whole->candidates[i].step_ns);
  }
}

TEST(Survey, SaysWhichCodecHasNoCost) {
  Job job;
  MachineCosts poor = *job.costs;
  poor.codecs.resize(1);
  job.costs = std::make_shared<const MachineCosts>(poor);
  const auto survey = make_survey(job.question({poor, {8, 50'000}, 0}));
  EXPECT_EQ(survey.status().code(), StatusCode::kNOT_FOUND);
  EXPECT_NE(survey.status().message().find("maxmin:4"), std::string::npos)
      << survey.status().message();
}

}  // namespace
}  // namespace cgx::scheduler
