#include "scheduler/planners/planner.h"

#include <gtest/gtest.h>

#include <cmath>

#include "scheduler/exchange/prepared_plan.h"
#include "scheduler/planners/plan_question.h"
#include "tests/scheduler/exchange/every_codec.h"

namespace cgx::scheduler {
namespace {

TensorTable network() {
  return {{.name = "embedding.weight", .elements = 64'000, .shape = {1000, 64}},
          {.name = "layer.weight", .elements = 4096, .shape = {64, 64}},
          {.name = "layer.bias", .elements = 4096, .shape = {4096}},
          {.name = "tiny.weight", .elements = 64, .shape = {8, 8}},
          {.name = "counts", .dtype = DType::kI64, .elements = 2000, .shape = {2, 1000}}};
}

Plan plan_of(const TensorTable& table, const Policy& policy, uint32_t machines = 1) {
  const std::vector<uint32_t> order = reverse_registration(table.size());
  Result<Plan> plan = make_plan({table, policy, 3, 9, order, machines});
  EXPECT_TRUE(plan.ok()) << plan.status().to_string();
  return *plan;
}

TEST(Planner, TakesSitesOfADaemonForARackWhereThePolicySaysNone) {
  const TensorTable table = network();
  Policy policy;
  policy.collective = CollectiveWish::kTwoLevel;
  const auto way = [&](uint32_t machines, uint32_t sites_each) {
    const std::vector<uint32_t> order = reverse_registration(table.size());
    PlanInputs inputs{table, policy, 3, 9, order, machines};
    inputs.sites_each = sites_each;
    const Result<Plan> plan = make_plan(inputs);
    return plan.ok() ? plan->groups.back().way : Way{.rack_machines = UINT32_MAX};
  };
  EXPECT_EQ(way(6, 2).rack_machines, 2u);
  EXPECT_EQ(way(6, 2).collective, Collective::kTwoLevel);
  EXPECT_EQ(way(4, 4).collective, Collective::kScatter) << "one rack has no other";
  EXPECT_EQ(way(4, 0).rack_machines, UINT32_MAX) << "nothing makes racks";
  policy.rack_machines = 3;
  EXPECT_EQ(way(6, 2).rack_machines, 3u) << "the policy's word goes first";
  policy = {};
  EXPECT_EQ(way(6, 2).reason, WayReason::kFewerBetweenRacks) << "auto";
  EXPECT_EQ(way(6, 0).rack_machines, 0u);
}

TEST(Planner, GroupsNoMoreTensorsThanARoundCanBegin) {
  const TensorTable table(2 * kGroupSegmentsMax + 1, {.elements = 1, .shape = {1}});
  const Plan plan = plan_of(table, {});
  ASSERT_EQ(plan.groups.size(), 3u);
  EXPECT_EQ(plan.groups[0].segments.size(), kGroupSegmentsMax);
  EXPECT_EQ(plan.groups[2].segments.size(), 1u);
}

TEST(Planner, GroupsUpToTheByteTargetInTheGivenOrder) {
  Policy policy;
  policy.group_bytes = 40'000;
  const Plan plan = plan_of(network(), policy);
  std::vector<std::vector<uint32_t>> groups;
  for (const Group& group : plan.groups) {
    auto& tensors = groups.emplace_back();
    for (const Segment& segment : group.segments) tensors.push_back(segment.tensor);
  }
  EXPECT_EQ(groups, (std::vector<std::vector<uint32_t>>{{4, 3, 2}, {1}, {0}}));
  EXPECT_EQ(plan.epoch, 9u);
  EXPECT_EQ(plan.policy_version, 3u);
}

// Raw tensors with either, unlike codecs apart, unless the policy decides for all.
TEST(Planner, KeepsWhatGathersApartFromWhatDoesNot) {
  std::vector<CodecSpec> kinds[2];
  for (const CodecSpec& spec : every_codec()) {
    if (spec.codec != 0) kinds[row_of(spec).gathers].push_back(spec);
  }
  if (kinds[1].empty()) GTEST_SKIP() << "no codec gathers yet";
  Policy policy;
  policy.rules = {{"layer.weight", kinds[1][0]}, {"embedding", kinds[0][0]}};
  const auto groups = [&] {
    std::vector<std::vector<uint32_t>> found;
    for (const Group& group : plan_of(network(), policy).groups) {
      auto& tensors = found.emplace_back();
      for (const Segment& segment : group.segments) tensors.push_back(segment.tensor);
    }
    return found;
  };
  EXPECT_EQ(groups(), (std::vector<std::vector<uint32_t>>{{4, 3, 2, 1}, {0}}));
  policy.collective = CollectiveWish::kScatter;
  EXPECT_EQ(groups(), (std::vector<std::vector<uint32_t>>{{4, 3, 2, 1, 0}}));
  policy.collective = CollectiveWish::kAuto;
  policy.rules[0].codec = kinds[0].back();
  EXPECT_EQ(groups(), (std::vector<std::vector<uint32_t>>{{4, 3, 2, 1, 0}}));
}

TEST(Planner, CutsLargeTensorsIntoPiecesAtBucketBorders) {
  Policy policy;
  policy.segment_bytes = 5000;
  policy.group_bytes = 6000;
  const TensorTable table = network();
  const Plan plan = plan_of(table, policy);
  std::vector<uint64_t> covered(table.size());
  for (const Group& group : plan.groups) {
    for (const Segment& segment : group.segments) {
      EXPECT_EQ(segment.first_element(), covered[segment.tensor]);
      EXPECT_LE(segment_bytes(segment, table), 5000u);
      covered[segment.tensor] += element_count(segment, table);
    }
  }
  for (size_t t = 0; t < table.size(); ++t) EXPECT_EQ(covered[t], table[t].elements) << t;
  EXPECT_GT(plan.groups.size(), table.size());
}

TEST(Planner, RefusesToCutIntoTooManyPieces) {
  Policy policy;
  policy.segment_bytes = 1;
  const TensorTable table = {{.name = "huge", .elements = uint64_t{1} << 40}};
  const std::vector<uint32_t> order = {0};
  const Result<Plan> plan = make_plan({table, policy, 3, 9, order});
  EXPECT_EQ(plan.status().code(), StatusCode::kRESOURCE_EXHAUSTED);
  EXPECT_NE(plan.status().message().find("segment_bytes 1 cuts"), std::string::npos);
}

TEST(Plan, IsRefusedWhoseSegmentsDoNotMakeUpTheirTensor) {
  Policy policy;
  policy.segment_bytes = 5000;
  policy.min_elements = 1;
  const TensorTable table = {{.name = "w", .elements = 10'000, .shape = {100, 100}}};
  const std::vector<uint32_t> order = {0};
  const Result<Plan> good = make_plan({table, policy, 3, 9, order});
  ASSERT_TRUE(good.ok());
  ASSERT_GT(good->groups.at(0).segments.size(), 2u);
  const auto why = [&](const auto& spoil) {
    Plan plan = *good;
    spoil(plan.groups[0].segments);
    return check_plan(plan, table).message();
  };
  using Segments = std::vector<Segment>;
  EXPECT_NE(why([](Segments& s) { s.pop_back(); }).find("end before it does"), std::string::npos);
  EXPECT_NE(why([](Segments& s) { s.erase(s.begin() + 1); }).find("gap"), std::string::npos);
  EXPECT_NE(why([](Segments& s) { s.push_back(s[1]); }).find("overlap"), std::string::npos);
  EXPECT_NE(why([](Segments& s) { s.back().buckets = 0; }).find("no bucket"), std::string::npos);
  EXPECT_NE(why([](Segments& s) { s.back().buckets += 1; }).find("more than"), std::string::npos);
  EXPECT_NE(why([](Segments& s) { s.back().first_bucket = UINT64_MAX; }).find("gap"),
            std::string::npos);
  EXPECT_NE(why([](Segments& s) { s.back().spec.bits = 8; }).find("codecs"), std::string::npos);
  EXPECT_EQ(why([](Segments& s) { s.back().buckets = Segment::kToTheEnd; }), "");
}

TEST(Plan, IsRefusedWithACollectiveOrDecayThatDoesNotExist) {
  Plan plan = plan_of(network(), {});
  plan.groups.back().way.collective = static_cast<Collective>(9);
  EXPECT_NE(check_plan(plan, network()).message().find("collective 9"), std::string::npos);
  plan.groups.back().way.collective = Collective::kAllgather;
  for (float decay : {0.0f, -1.0f, 1.5f, NAN}) {
    plan.feedback_decay = decay;
    EXPECT_NE(check_plan(plan, network()).message().find("feedback_decay"), std::string::npos);
  }
}

// Nothing of a codec is read before it is known to be one, not even to say what is wrong with it.
TEST(Plan, IsRefusedWithACodecThatNobodyHasWhereverItStands) {
  const auto why = [](const auto& spoil) {
    Plan plan = plan_of(network(), {});
    for (Group& group : plan.groups) spoil(group);
    return check_plan(plan, network()).code();
  };
  CodecSpec no_values = CodecSpec{.codec = 12, .bucket = kSparseBucket, .amount = 0.01f};
  no_values.values = static_cast<SparseValues>(200);
  for (const CodecSpec& spec : {no_values, CodecSpec{.codec = 200, .bucket = 512}}) {
    EXPECT_EQ(why([&](Group& group) { group.segments[0].rack_spec = spec; }),
              StatusCode::kINVALID_ARGUMENT);
    EXPECT_EQ(why([&](Group& group) {
                group.segments[0].spec = spec;
                group.way = {
                    .collective = Collective::kTwoLevel, .rack_machines = 2, .exact = true};
              }),
              StatusCode::kINVALID_ARGUMENT);
  }
  EXPECT_NE(kernels::to_string(no_values).find("values=200"), std::string::npos);
}

TEST(Plan, IsRefusedWithPartsSoSmallThatItsLayoutWouldBeHuge) {
  for (uint64_t PartLimits::*limit : {&PartLimits::raw_bytes, &PartLimits::encoded_bytes}) {
    Plan plan = plan_of(network(), {});
    EXPECT_TRUE(check_plan(plan, network()).ok());
    plan.limits.*limit = 4095;
    EXPECT_NE(check_plan(plan, network()).message().find("fewer than 4096"), std::string::npos);
  }
}

TEST(Plan, IsRefusedFromADaemonWhoseCodecsWriteOtherFormats) {
  Plan plan = plan_of(network(), {});
  ++plan.codec_formats;
  const Status status = check_plan(plan, network());
  EXPECT_EQ(status.code(), StatusCode::kMISMATCH);
  EXPECT_NE(status.message().find("same version of cgxd"), std::string::npos);
}

TEST(Plan, OfAnotherFormIsRefusedByName) {
  Plan plan = plan_of(network(), {});
  ++plan.form;
  const Result<Plan> read = decode_plan(encode_plan(plan));
  EXPECT_EQ(read.status().code(), StatusCode::kMISMATCH);
  EXPECT_NE(read.status().message().find("same version of cgxd"), std::string::npos);
}

TEST(Plan, ForAnotherNumberOfMachinesIsRefusedByName) {
  const auto table = std::make_shared<const TensorTable>(network());
  PlanQuestion question;
  question.table = table;
  question.encoded_plan = encode_plan(plan_of(*table, {}));
  question.machines = 3;
  question.slab_bytes = 256 * 1024;
  const Result<FactsPtr> facts = make_facts(question);
  EXPECT_EQ(facts.status().code(), StatusCode::kMISMATCH);
  EXPECT_NE(facts.status().message().find("made for 1 machines, here are 3"), std::string::npos)
      << facts.status().message();
}

// What patterns take for a large table's names: others' plans are made in between.
TEST(Plan, IsMadeInStepsWhileRulesAreMatched) {
  TensorTable names(100, {.name = std::string(500, 'a'), .elements = 4096, .shape = {64, 64}});
  PlanQuestion question;
  question.table = std::make_shared<const TensorTable>(names);
  question.policy.rules = {{"x", question.policy.default_codec}};
  question.order = reverse_registration(names.size());
  question.machines = 2;
  question.slab_bytes = 256 * 1024;
  const auto steps_of = [](const PlanQuestion& asked) {
    FactsMaker maker(asked);
    int steps = 1;
    while (!maker.work()) ++steps;
    EXPECT_TRUE(maker.facts().ok()) << maker.facts().status().to_string();
    return std::pair(steps, maker.facts().ok() ? (*maker.facts())->decisions : nullptr);
  };
  const auto [steps, decisions] = steps_of(question);
  EXPECT_EQ(steps, 12) << "of nine names";
  question.decisions = decisions;
  EXPECT_EQ(steps_of(question).first, 1) << "they are known";
}

TEST(Plan, SurvivesItsEncodingAndRejectsEveryTruncation) {
  Policy policy;
  policy.collective = CollectiveWish::kAllgather;
  policy.feedback_decay = 0.5f;
  policy.stats_steps = 3;
  const Plan plan = plan_of(network(), policy);
  const std::vector<std::byte> bytes = encode_plan(plan);
  const Result<Plan> read = decode_plan(bytes);
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(read->hash(), plan.hash());
  EXPECT_EQ(read->groups, plan.groups);
  EXPECT_EQ(read->feedback_decay, 0.5f);
  EXPECT_EQ(read->stats_steps, 3u);
  for (size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_FALSE(decode_plan(std::span(bytes).first(length)).ok()) << length;
  }
}

Policy rack_policy() {
  Policy policy;
  policy.default_codec = {.codec = 3, .bits = 4, .flags = CodecSpec::kFeedback, .bucket = 512};
  policy.rack_codec = CodecSpec{.codec = 3, .bits = 8, .bucket = 384};
  policy.collective = CollectiveWish::kTwoLevel;
  policy.rack_machines = 2;
  return policy;
}

const Segment& segment_of(const Plan& plan, uint32_t tensor) {
  for (const Group& group : plan.groups) {
    for (const Segment& segment : group.segments) {
      if (segment.tensor == tensor) return segment;
    }
  }
  static const Segment none;
  return none;
}

TEST(Plan, SaysTheCodecOfRacksWhereAGroupHasThemAndItIsTheWeakerOne) {
  Policy policy = rack_policy();
  policy.rules = {{"layer", {.codec = 2, .bucket = 512}}};
  const Plan plan = plan_of(network(), policy, 4);
  const std::optional<CodecSpec>& in_rack = segment_of(plan, 0).rack_spec;
  ASSERT_TRUE(in_rack.has_value());
  EXPECT_EQ(kernels::to_string(*in_rack), "maxmin:8,bucket=128") << "cut where the other is";
  EXPECT_FALSE(segment_of(plan, 1).rack_spec) << "bf16 is weaker";
  EXPECT_FALSE(segment_of(plan, 3).rack_spec) << "so is none";
  policy.rack_codec = CodecSpec{.codec = 0, .bucket = 512};
  EXPECT_TRUE(segment_of(plan_of(network(), policy, 4), 1).rack_spec);
  EXPECT_FALSE(segment_of(plan_of(network(), policy, 2), 0).rack_spec) << "one rack alone";
  policy.collective = CollectiveWish::kAuto;
  EXPECT_FALSE(segment_of(plan_of(network(), policy, 4), 0).rack_spec) << "goes flat";
}

TEST(Plan, SaysWhatHasToBeDecodedBeforeItIsAdded) {
  const auto table = std::make_shared<TensorTable>(
      TensorTable{{.name = "w", .elements = 512 * 40, .shape = {40, 512}}});
  const auto bytes = [&](const std::optional<CodecSpec>& rack_codec) {
    PlanQuestion question{.table = table, .policy = rack_policy(), .order = {0}, .machines = 4};
    question.policy.rack_codec = rack_codec;
    question.slab_bytes = 256 << 10;
    const Result<FactsPtr> facts = make_facts(question);
    EXPECT_TRUE(facts.ok()) << facts.status().to_string();
    return (*facts)->needs.decoded_bytes;
  };
  EXPECT_EQ(bytes(CodecSpec{.codec = 3, .bits = 8, .bucket = 512}), 4 * 512 * 10u);
  EXPECT_EQ(bytes(CodecSpec{.codec = 0, .bucket = 512}), 0u) << "is added as it is";
  EXPECT_EQ(bytes({}), 0u) << "nor has the same codec to be decoded first";
}

TEST(Plan, WithACodecOfRacksHasAnotherHashAndSurvivesItsEncoding) {
  Policy policy = rack_policy();
  const Plan plan = plan_of(network(), policy, 4);
  const std::vector<std::byte> bytes = encode_plan(plan);
  const Result<Plan> read = decode_plan(bytes);
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(read->groups, plan.groups);
  EXPECT_TRUE(check_plan(*read, network()).ok());
  for (size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_FALSE(decode_plan(std::span(bytes).first(length)).ok()) << length;
  }
  policy.rack_codec.reset();
  EXPECT_NE(plan_of(network(), policy, 4).hash(), plan.hash());
}

TEST(Plan, IsRefusedWhenItsCodecOfRacksCannotBe) {
  const Plan plan = plan_of(network(), rack_policy(), 4);
  const auto why = [&](const auto& change) {
    Plan changed = plan;
    for (Group& group : changed.groups) {
      for (Segment& segment : group.segments) {
        if (segment.tensor == 0) change(group, segment);
      }
    }
    return check_plan(changed, network()).message();
  };
  const auto set = [&](const CodecSpec& spec) {
    return why([&](Group&, Segment& segment) { segment.rack_spec = spec; });
  };
  EXPECT_NE(set({.codec = 3, .bits = 8, .bucket = 384}).find("do not divide"), std::string::npos);
  EXPECT_NE(set({.codec = 3, .bits = 9, .bucket = 512}).find("bits"), std::string::npos);
  EXPECT_NE(set({.codec = 99, .bucket = 512}).find("99"), std::string::npos);
  EXPECT_NE(set({.codec = 12, .bucket = kSparseBucket, .amount = 0.1f}).find("leaves values out"),
            std::string::npos);
  EXPECT_NE(set({.codec = 3, .bits = 8, .flags = CodecSpec::kFeedback, .bucket = 512})
                .find("says feedback"),
            std::string::npos);
  EXPECT_NE(why([](Group& group, Segment&) { group.way = {.ahead = 1}; }).find("no racks"),
            std::string::npos);
  EXPECT_NE(why([](Group&, Segment& segment) {
              segment.spec = {.codec = 0, .bucket = 512};
            }).find("no racks that lose"),
            std::string::npos);
}

TEST(Plan, IsRefusedWhenItNamesTensorsTwiceOrNotAtAll) {
  Plan plan = plan_of(network(), {});
  EXPECT_TRUE(check_plan(plan, network()).ok());
  Plan twice = plan;
  twice.groups[0].segments.push_back(plan.groups[0].segments[0]);
  EXPECT_EQ(check_plan(twice, network()).code(), StatusCode::kINVALID_ARGUMENT);
  Plan missing = plan;
  missing.groups[0].segments.pop_back();
  EXPECT_EQ(check_plan(missing, network()).code(), StatusCode::kINVALID_ARGUMENT);
  Plan other = plan;
  other.table_hash ^= 1;
  EXPECT_EQ(check_plan(other, network()).code(), StatusCode::kMISMATCH);
}

TEST(TensorTable, NamesTheFirstDifference) {
  TensorTable theirs = network();
  theirs[1].elements = 4000;
  theirs[1].shape = {40, 100};
  const std::string text = first_difference(network(), "rank 0", theirs, "rank 2");
  EXPECT_NE(text.find("tensor 1"), std::string::npos) << text;
  EXPECT_NE(text.find("fp32[64,64]"), std::string::npos) << text;
  EXPECT_NE(text.find("rank 2 has layer.weight fp32[40,100]"), std::string::npos) << text;
  theirs = network();
  theirs.pop_back();
  EXPECT_NE(first_difference(network(), "rank 0", theirs, "rank 2").find("counts"),
            std::string::npos);
  EXPECT_EQ(first_difference(network(), "a", network(), "b"), "");
}

TEST(PreparedPlan, HoldsAndCountsTheMemoryThatRacksAreDecodedIn) {
  BufferPool pool(256 * 1024);
  const auto table = std::make_shared<TensorTable>(
      TensorTable{{.name = "w", .elements = 512 * 40, .shape = {40, 512}}});
  PlanQuestion question{.table = table, .policy = rack_policy(), .order = {0}, .machines = 4};
  question.slab_bytes = pool.slab_bytes();
  question.decoded_pieces = 2;
  question.bytes_free = UINT64_MAX;
  constexpr uint64_t kBytes = 2 * 4 * 512 * 10;  // of two jobs at the same time
  const FactsPtr facts = *make_facts(question);
  EXPECT_EQ(facts->made_bytes, kBytes);
  const uint64_t frames = facts->slabs.sum() * pool.slab_bytes();
  const auto refused = PreparedPlan::create(facts, pool, 0, frames + kBytes - 1);
  EXPECT_EQ(refused.status().code(), StatusCode::kRESOURCE_EXHAUSTED);
  EXPECT_NE(refused.status().message().find(std::to_string(kBytes) + " to decode what racks add"),
            std::string::npos)
      << refused.status().message();
  for (const char* from : {"what was made with its facts", "memory of its own"}) {
    const auto prepared = PreparedPlan::create(facts, pool, 0, frames + kBytes);
    ASSERT_TRUE(prepared.ok()) << from << ": " << prepared.status().to_string();
    EXPECT_EQ((*prepared)->held_bytes(), frames + kBytes);
    for (uint32_t piece = 0; piece < 2; ++piece) {
      EXPECT_EQ((*prepared)->decoded.piece(piece).size_bytes(), kBytes / 2) << from;
    }
  }
  question.bytes_free = kBytes - 1;
  EXPECT_EQ((*make_facts(question))->made_bytes, 0u) << "no room: whoever reserves refuses";
  question.policy.rack_codec = CodecSpec{.codec = 0, .bucket = 512};
  question.bytes_free = UINT64_MAX;
  EXPECT_EQ((*make_facts(question))->decoded_bytes(), kBytes) << "a frame may begin anywhere";
  question.policy.rack_codec.reset();
  EXPECT_EQ((*make_facts(question))->decoded_bytes(), 0u);
}

TEST(PreparedPlan, RefusesWithTheSumAndTheLimit) {
  BufferPool pool(256 * 1024);
  Policy policy;
  policy.default_codec.flags = CodecSpec::kFeedback;
  const auto table = std::make_shared<const TensorTable>(network());
  const Result<FactsPtr> facts =
      make_facts({.table = table,
                  .policy = policy,
                  .encoded_plan = encode_plan(plan_of(*table, policy, 2)),
                  .machines = 2,
                  .slab_bytes = pool.slab_bytes()});
  ASSERT_TRUE(facts.ok()) << facts.status().to_string();
  const auto prepared =
      PreparedPlan::create(*facts, pool, (*facts)->residual_bytes, /*bytes_free=*/1000);
  ASSERT_FALSE(prepared.ok());
  EXPECT_EQ(prepared.status().code(), StatusCode::kRESOURCE_EXHAUSTED);
  EXPECT_NE(prepared.status().message().find("leaves 1000"), std::string::npos);
  // Residuals: two fp32 slots of the two compressed tensors.
  EXPECT_NE(prepared.status().message().find(std::to_string(8 * (64'000 + 4096))),
            std::string::npos);
  // Where those of the larger tensor exist, the rest is charged, and said so.
  const auto again = PreparedPlan::create(*facts, pool, 8 * 4096, /*bytes_free=*/1000);
  EXPECT_NE(again.status().message().find("32768 of residuals beside 512000 that exist"),
            std::string::npos)
      << again.status().message();
}

TEST(SharedOrder, IsTheSameForArrivalsThatDifferALittle) {
  const std::vector<uint32_t> last_first = {5, 4, 3, 2, 1, 0};
  EXPECT_EQ(shared_order({5, 4, 3, 2, 1, 0}, {}), last_first);
  EXPECT_EQ(shared_order({4, 5, 2, 3, 0, 1}, {}), last_first) << "two threads take turns";
  EXPECT_EQ(shared_order({2, 5, 1, 4, 0, 3}, {}), last_first) << "two threads, two halves";
  const std::vector<uint32_t> first_first = {0, 1, 2, 3, 4, 5};
  EXPECT_EQ(shared_order({1, 0, 2, 3, 5, 4}, {}), first_first);
}

TEST(SharedOrder, PutsWhatNoRankHadLast) {
  EXPECT_EQ(shared_order({3, 2, 1, 0}, {3, 1}), (std::vector<uint32_t>{2, 0, 3, 1}));
  EXPECT_EQ(shared_order({}, {}), std::vector<uint32_t>{});
}

TEST(MakeFacts, MatchesAPolicyWithATableOnce) {
  PlanQuestion question{.table = std::make_shared<const TensorTable>(network()),
                        .order = reverse_registration(network().size()),
                        .slab_bytes = 256 * 1024};
  question.policy.rules = {{"embed", {.codec = 0, .bucket = 512}}};
  const Result<FactsPtr> first = make_facts(question);
  ASSERT_TRUE(first.ok()) << first.status().to_string();
  EXPECT_EQ((*first)->decisions->reason(0), "rule 1: embed");

  question.decisions = (*first)->decisions;
  question.policy.window = 7;
  const Result<FactsPtr> again = make_facts(question);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ((*again)->decisions, (*first)->decisions);
  EXPECT_EQ((*again)->plan.groups, (*first)->plan.groups);

  question.policy.rules[0].match = "layer";
  const Result<FactsPtr> other = make_facts(question);
  ASSERT_TRUE(other.ok());
  EXPECT_EQ((*other)->decisions->reason(1), "rule 1: layer");
}

TEST(MakeFacts, MakesTheMemoryThatTakingForceNeeds) {
  PlanQuestion question{.table = std::make_shared<const TensorTable>(network()),
                        .order = reverse_registration(network().size()),
                        .slab_bytes = 256 * 1024,
                        .local_ranks = 3,
                        .message = [](const PlanFacts& facts) { return facts.encoded; }};
  Result<FactsPtr> facts = make_facts(question);
  ASSERT_TRUE(facts.ok()) << facts.status().to_string();
  for (const auto& ledger : (*facts)->made->ledgers) {
    ASSERT_NE(ledger, nullptr);
    EXPECT_TRUE(ledger->fits(3, 5));
    EXPECT_FALSE(ledger->fits(2, 5));
  }
  EXPECT_EQ(*(*facts)->made->message, (*facts)->encoded);
  EXPECT_TRUE((*facts)->made->slots.empty()) << "nothing has feedback";
  question.policy.default_codec.flags |= CodecSpec::kFeedback;
  facts = make_facts(question);
  ASSERT_TRUE(facts.ok()) << facts.status().to_string();
  EXPECT_EQ((*facts)->made->slots.size(), 5u);
  question.residual_table = question.table;
  question.has_residual.assign(5, true);
  EXPECT_TRUE((*make_facts(question))->made->slots.empty()) << "they are there";
  question.dry_run = true;
  facts = make_facts(question);
  EXPECT_EQ((*facts)->made->ledgers[0], nullptr) << "it will not run";
}

}  // namespace
}  // namespace cgx::scheduler
