// What error feedback holds: by name, in two slots, drained where nobody asks for it, and kept for
// another communicator.
#include "scheduler/exchange/residuals.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "scheduler/exchange/host_site.h"
#include "scheduler/exchange/prepared_plan.h"
#include "scheduler/exchange/residual_store.h"
#include "scheduler/planners/plan_question.h"

namespace cgx::scheduler {
namespace {

struct OneHost {
  ArenaTable arenas;
  SlabStore slabs{4096};
  HostSite site{kernels::best_lane(), arenas, slabs};
};

constexpr CodecSpec kFeedbackSpec{
    .codec = 3, .bits = 4, .flags = CodecSpec::kFeedback, .bucket = 512};
constexpr CodecSpec kRaw{.codec = 0, .bucket = 512};

PlanFacts facts_of(std::shared_ptr<const TensorTable> table, const CodecSpec& spec) {
  PlanFacts facts;
  facts.table = std::move(table);
  Group group;
  for (uint32_t tensor = 0; tensor < facts.table->size(); ++tensor) {
    group.segments.push_back({tensor, spec});
  }
  facts.plan.groups = {group};
  return facts;
}

std::shared_ptr<const TensorTable> table_of(TensorTable table) {
  return std::make_shared<const TensorTable>(std::move(table));
}

TEST(Residuals, RememberTheUnitOfTheStepThatWroteThem) {
  const PlanFacts facts = facts_of(
      table_of({{.name = "a", .elements = 2}, {.name = "b", .elements = 2}}), kFeedbackSpec);
  Residuals residuals;
  OneHost host;
  residuals.prepare(facts, host.site);
  EXPECT_EQ(residuals.scale(0, 1.0, 1.0), 1.0f);
  residuals.mark_written(0, 4.0);
  EXPECT_EQ(residuals.scale(0, 8.0, 1.0), 8.0f) << "tentative: not yet";
  residuals.commit();
  residuals.commit();
  EXPECT_EQ(residuals.scale(0, 8.0, 1.0), 2.0f);
  EXPECT_EQ(residuals.scale(0, 4.0, 0.5), 0.5f);
  EXPECT_EQ(residuals.scale(1, 8.0, 1.0), 8.0f) << "a tensor nobody wrote keeps its unit";
  residuals.mark_written(0, 1.0);
  residuals.drop();
  EXPECT_EQ(residuals.scale(0, 8.0, 1.0), 2.0f);
}

TEST(Residuals, FlipOnlyWhatWasWrittenAndOnlyOnCommit) {
  const PlanFacts facts = facts_of(
      table_of({{.name = "a", .elements = 2}, {.name = "b", .elements = 2}}), kFeedbackSpec);
  Residuals residuals;
  OneHost host;
  residuals.prepare(facts, host.site);
  const SiteResidual* const memory = residuals.memory(0);
  ASSERT_NE(memory, nullptr);
  residuals.mark_written(0, 1.0);
  residuals.drop();
  residuals.commit();
  EXPECT_EQ(residuals.confirmed(0), 0u) << "dropped";
  residuals.mark_written(0, 1.0);
  residuals.commit();
  EXPECT_EQ(residuals.confirmed(0), 1u);
  EXPECT_EQ(residuals.confirmed(1), 0u) << "not written";
  residuals.prepare(facts, host.site);
  EXPECT_EQ(residuals.memory(0), memory) << "survives another plan";
  EXPECT_EQ(residuals.confirmed(0), 1u);
}

TEST(Residuals, TakeTheMemoryThatWasMadeWithThePlan) {
  const auto table = std::make_shared<const TensorTable>(
      TensorTable{{.name = "a", .elements = 5000}, {.name = "b", .elements = 7}});
  Policy policy;
  policy.default_codec.flags = CodecSpec::kFeedback;
  policy.min_elements = 1;
  OneHost host;
  std::vector<uint64_t> made;
  const ResidualMaker maker = [&](uint64_t elements) {
    made.push_back(elements);
    return host.site.residual_maker()(elements);
  };
  PlanQuestion question{.table = table, .policy = policy, .order = {0, 1}};
  question.slab_bytes = 256 * 1024;
  question.make_residual = maker;
  question.residual_table = table;
  question.has_residual = {false, true};
  question.bytes_free = 8 * 5000 - 1;
  Result<FactsPtr> facts = make_facts(question);
  ASSERT_TRUE(facts.ok()) << facts.status().to_string();
  EXPECT_TRUE(made.empty()) << "no room: whoever reserves refuses";
  BufferPool pool(question.slab_bytes);
  const auto refused = PreparedPlan::create(*facts, pool, 0, UINT64_MAX);
  EXPECT_EQ(refused.status().code(), StatusCode::kRESOURCE_EXHAUSTED)
      << "room that came later: the data thread would have to make it";
  question.bytes_free += 1;
  question.dry_run = true;
  facts = make_facts(question);
  EXPECT_TRUE(made.empty()) << "it will not run";
  question.dry_run = false;
  facts = make_facts(question);
  ASSERT_TRUE(facts.ok()) << facts.status().to_string();
  EXPECT_EQ(made, std::vector<uint64_t>{5000}) << "the other one is there";
  EXPECT_EQ((*facts)->made_bytes, 8u * 5000);
  const SiteResidual* const memory = (*facts)->made->residuals.at(0).get();
  Residuals residuals;
  residuals.prepare(**facts, host.site);
  EXPECT_EQ(residuals.memory(0), memory);
  EXPECT_EQ(residuals.bytes(), 8u * (5000 + 7));
  question.make_residual = [](uint64_t) { return resource_exhausted("none is left"); };
  EXPECT_EQ(make_facts(question).status().code(), StatusCode::kRESOURCE_EXHAUSTED);
}

// So that whoever makes it can give way to others in between.
TEST(Residuals, GetTheirPagesInSlicesWithThePlan) {
  constexpr uint64_t kElements = 3 << 20, kSliceMax = 4 << 20;
  const auto table = std::make_shared<const TensorTable>(
      TensorTable{{.name = "a", .elements = kElements, .shape = {3 << 10, 1 << 10}}});
  OneHost host;
  PlanQuestion question{.table = table, .order = {0}, .slab_bytes = 256 * 1024};
  question.policy.default_codec.flags = CodecSpec::kFeedback;
  question.make_residual = host.site.residual_maker();
  question.bytes_free = 8 * kElements;
  std::vector<uint64_t> slices;
  FactsMaker maker(question);
  while (!maker.work()) slices.push_back(maker.slice_bytes());
  const Result<FactsPtr> facts = maker.facts();
  ASSERT_TRUE(facts.ok()) << facts.status().to_string();
  ASSERT_FALSE(slices.empty());
  EXPECT_EQ(slices.front(), 0u) << "the plan itself";
  EXPECT_LE(*std::max_element(slices.begin(), slices.end()), kSliceMax);
  EXPECT_GE(std::accumulate(slices.begin(), slices.end(), uint64_t{0}), 8 * kElements);
  EXPECT_EQ((*facts)->made->residuals.at(0)->touch(), 0u) << "all of them";
}

struct OneTensor : ::testing::Test {
  const std::shared_ptr<const TensorTable> table = table_of({{.name = "a", .elements = 8}});
  const PlanFacts with = facts_of(table, kFeedbackSpec), without = facts_of(table, kRaw);
  Residuals residuals;
  OneHost host;
};

TEST_F(OneTensor, ThatLeftFeedbackHoldsResidualsUntilAStepHasTakenThemUp) {
  residuals.prepare(with, host.site);
  residuals.mark_written(0, 1.0);
  residuals.prepare(without, host.site);
  ASSERT_TRUE(residuals.has(0)) << "the step that wrote it may be kept";
  residuals.commit();
  EXPECT_TRUE(residuals.drains(0));
  residuals.mark_drained(0);
  residuals.drop();
  EXPECT_TRUE(residuals.drains(0)) << "the step was dropped";
  residuals.mark_drained(0);
  residuals.commit();
  EXPECT_FALSE(residuals.has(0));
  EXPECT_EQ(residuals.bytes(), 0u);
  EXPECT_EQ(residuals.take_freed().size(), 1u);
}

TEST_F(OneTensor, ThatNoStepHasWrittenLosesItsResidualsWithThePlan) {
  residuals.prepare(with, host.site);
  EXPECT_FALSE(residuals.drains(0));
  residuals.prepare(without, host.site);
  EXPECT_FALSE(residuals.has(0));
}

TEST_F(OneTensor, BeginsAtZeroWhereFeedbackIsBackBeforeTheDrainedStepIsKept) {
  residuals.prepare(with, host.site);
  residuals.mark_written(0, 4.0);
  residuals.commit();
  residuals.prepare(without, host.site);
  residuals.mark_drained(0);
  const SiteResidual* const old = residuals.memory(0);
  residuals.prepare(with, host.site);
  EXPECT_EQ(residuals.memory(0), old);
  residuals.commit();
  EXPECT_EQ(residuals.memory(0), old) << "making another one would take its time";
  EXPECT_EQ(residuals.scale(0, 1.0, 1.0), 0.0f) << "what it holds was taken up";
  EXPECT_FALSE(residuals.drains(0));
  residuals.mark_written(0, 2.0);
  residuals.commit();
  EXPECT_EQ(residuals.scale(0, 2.0, 1.0), 1.0f);
  EXPECT_EQ(residuals.bytes(), 2 * sizeof(float) * 8);
}

// As facts are that come from where plans are made.
PlanFacts made_with(PlanFacts facts, const OneHost& host) {
  facts.made = std::make_shared<MadeMemory>();
  facts.made->runs = facts.made;
  facts.made->residuals.push_back(host.site.residual_maker()(8).value());
  return facts;
}

TEST_F(OneTensor, ThatDrainsIsMadeAnewWithAPlanThatWantsItBack) {
  residuals.prepare(made_with(with, host), host.site);
  EXPECT_EQ(residuals.lasting(), std::vector<bool>{true});
  std::vector<bool> lasting = residuals.lasting();
  residuals.forget_unwanted(with, lasting);
  EXPECT_EQ(lasting, std::vector<bool>{true});
  residuals.forget_unwanted(without, lasting);
  EXPECT_EQ(lasting, std::vector<bool>{false}) << "a plan that comes before drains it";
  residuals.mark_written(0, 1.0);
  residuals.prepare(without, host.site);
  residuals.commit();
  EXPECT_EQ(residuals.lasting(), std::vector<bool>{false}) << "it goes with the next step";
  const PlanFacts back = made_with(with, host);
  const SiteResidual* const made = back.made->residuals[0].get();
  residuals.mark_drained(0);
  residuals.commit();
  ASSERT_FALSE(residuals.has(0));
  residuals.prepare(back, host.site);
  EXPECT_EQ(residuals.memory(0), made);
}

TEST_F(OneTensor, ThatHasNotGoneYetGivesBackWhatWasMadeForIt) {
  residuals.prepare(made_with(with, host), host.site);
  residuals.mark_written(0, 1.0);
  residuals.prepare(without, host.site);
  residuals.commit();
  const SiteResidual* const old = residuals.memory(0);
  residuals.prepare(made_with(with, host), host.site);
  EXPECT_EQ(residuals.memory(0), old);
  EXPECT_TRUE(residuals.drains(0)) << "with what it holds";
  EXPECT_EQ(residuals.take_freed().size(), 1u);
}

TEST_F(OneTensor, StaysWhileItsPlanIsOnTrial) {
  auto tried = std::make_unique<PlanFacts>(made_with(with, host));
  residuals.prepare(*tried, host.site);
  const SiteResidual* const memory = residuals.memory(0);
  for (int block = 0; block < 3; ++block) {
    residuals.mark_written(0, 1.0);
    residuals.prepare(without, host.site);
    residuals.commit();
    residuals.mark_drained(0);
    residuals.commit();
    residuals.prepare(*tried, host.site);
    ASSERT_EQ(residuals.memory(0), memory) << "it was made once";
    EXPECT_EQ(residuals.scale(0, 1.0, 1.0), 0.0f);
  }
  residuals.prepare(without, host.site);
  EXPECT_TRUE(residuals.has(0));
  tried.reset();
  residuals.commit();
  EXPECT_FALSE(residuals.has(0)) << "it has lost";
  EXPECT_EQ(residuals.take_freed().size(), 1u);
}

// The plan that made the memory has gone, the one that runs wants it still.
TEST_F(OneTensor, StaysForThePlanBesideATrialThatWantsIt) {
  auto maker = std::make_unique<PlanFacts>(made_with(with, host));
  residuals.prepare(*maker, host.site);
  const SiteResidual* const memory = residuals.memory(0);
  PlanFacts kept = with;
  kept.made = std::make_shared<MadeMemory>();  // with nothing in it
  kept.made->runs = kept.made;
  residuals.prepare(kept, host.site);
  maker.reset();
  for (int block = 0; block < 3; ++block) {
    residuals.mark_written(0, 1.0);
    residuals.commit();
    residuals.prepare(without, host.site);
    residuals.mark_drained(0);
    residuals.commit();
    ASSERT_TRUE(residuals.has(0));
    residuals.prepare(kept, host.site);
    ASSERT_EQ(residuals.memory(0), memory) << "it was made once";
  }
}

// It was asked for while a trial's plan was in force, and takes force when the trial is over.
TEST_F(OneTensor, StaysForAPlanThatFoundItHere) {
  auto tried = std::make_unique<PlanFacts>(made_with(with, host));
  residuals.prepare(*tried, host.site);
  const SiteResidual* const memory = residuals.memory(0);
  auto next = std::make_unique<PlanFacts>(with);
  next->made = std::make_shared<MadeMemory>();  // with nothing in it
  next->made->runs = next->made;
  residuals.hold_for(*next);
  residuals.mark_written(0, 1.0);
  residuals.prepare(without, host.site);
  tried.reset();
  residuals.commit();
  residuals.mark_drained(0);
  residuals.commit();
  residuals.prepare(*next, host.site);
  EXPECT_EQ(residuals.memory(0), memory) << "else it is made where gradients move";
  residuals.hold_for(*next);
  residuals.prepare(without, host.site);
  next.reset();
  residuals.commit();
  EXPECT_FALSE(residuals.has(0)) << "that plan has gone, too";
}

TEST_F(OneTensor, ThatADroppedStepWasTheFirstToWriteLosesItsResidualsWithIt) {
  residuals.prepare(with, host.site);
  residuals.mark_written(0, 1.0);
  residuals.prepare(without, host.site);
  ASSERT_TRUE(residuals.has(0));
  residuals.drop();
  EXPECT_FALSE(residuals.has(0));
  EXPECT_EQ(residuals.bytes(), 0u);
}

TEST(Residuals, GoByTheTensorsNameInAnotherTable) {
  const PlanFacts first = facts_of(
      table_of({{.name = "a", .elements = 8}, {.name = "b", .elements = 9}}), kFeedbackSpec);
  const PlanFacts second = facts_of(table_of({{.name = "c", .elements = 5},
                                              {.name = "b", .elements = 9},
                                              {.name = "a", .elements = 7}}),
                                    kFeedbackSpec);
  Residuals residuals;
  OneHost host;
  residuals.prepare(first, host.site);
  residuals.mark_written(1, 1.0);
  residuals.commit();
  const SiteResidual* const of_b = residuals.memory(1);
  EXPECT_EQ(residuals.lasting(), (std::vector<bool>{true, true}));
  EXPECT_EQ(residuals.bytes_missing(second), 2 * sizeof(float) * (5 + 7));
  residuals.prepare(second, host.site);
  EXPECT_EQ(residuals.memory(1), of_b);
  EXPECT_TRUE(residuals.drains(1)) << "filled";
  EXPECT_FALSE(residuals.drains(2)) << "of another size: it begins at zero";
  EXPECT_EQ(residuals.bytes(), 2 * sizeof(float) * (5 + 9 + 7));
}

// Facts as they are asked for where `residuals` are.
PlanFacts asked_with(const Residuals& residuals, PlanFacts facts) {
  facts.residuals = renumber(residuals.table(), *facts.table);
  return facts;
}

TEST(Residuals, KeepTheirPlaceInTheOrderOfAnyTableWhoeverNumberedThem) {
  const auto a = TensorDesc{.name = "a", .elements = 8}, b = TensorDesc{.name = "b", .elements = 9},
             c = TensorDesc{.name = "c", .elements = 5};
  const PlanFacts first = facts_of(table_of({a, b}), kFeedbackSpec);
  const PlanFacts without_b = facts_of(table_of({c, a}), kFeedbackSpec);
  const PlanFacts again = facts_of(table_of({b, c, a}), kFeedbackSpec);
  for (const bool asked : {false, true}) {
    Residuals residuals;
    OneHost host;
    residuals.prepare(first, host.site);
    const SiteResidual *const of_a = residuals.memory(0), *const of_b = residuals.memory(1);
    residuals.mark_written(0, 2.0);
    residuals.mark_written(1, 4.0);
    residuals.prepare(asked ? asked_with(residuals, without_b) : without_b, host.site);
    EXPECT_EQ(residuals.memory(1), of_a);
    residuals.commit();  // the step before the tables changed was kept
    EXPECT_EQ(residuals.confirmed(1), 1u);
    const PlanFacts third = asked ? asked_with(residuals, again) : again;
    EXPECT_EQ(residuals.bytes_missing(third), 0u) << "the one that the table lacked is here";
    residuals.prepare(third, host.site);
    EXPECT_EQ(residuals.memory(0), of_b);
    EXPECT_EQ(residuals.confirmed(0), 1u);
    EXPECT_EQ(residuals.scale(0, 4.0, 1.0), 1.0f);
    EXPECT_EQ(residuals.memory(2), of_a);
    EXPECT_EQ(residuals.bytes(), 2 * sizeof(float) * (8 + 9 + 5));
    EXPECT_EQ(residuals.take_all().size(), 3u);
    EXPECT_TRUE(residuals.empty());
  }
}

TEST(Residuals, AreNotMadeForTensorsThatHaveThemUnderAnotherNumber) {
  const auto before = table_of({{.name = "a", .elements = 50}, {.name = "b", .elements = 7}});
  const auto table = table_of(
      {{.name = "b", .elements = 7}, {.name = "a", .elements = 60}, {.name = "c", .elements = 3}});
  Policy policy;
  policy.default_codec.flags = CodecSpec::kFeedback;
  policy.min_elements = 1;
  OneHost host;
  std::vector<uint64_t> made;
  PlanQuestion question{.table = table, .policy = policy, .order = {0, 1, 2}};
  question.slab_bytes = 256 * 1024;
  question.make_residual = [&](uint64_t elements) {
    made.push_back(elements);
    return host.site.residual_maker()(elements);
  };
  question.residual_table = before;
  question.has_residual = {true, true};
  question.bytes_free = 1 << 20;
  const Result<FactsPtr> facts = make_facts(question);
  ASSERT_TRUE(facts.ok()) << facts.status().to_string();
  EXPECT_EQ(made, (std::vector<uint64_t>{60, 3})) << "another size, and a new one";
  EXPECT_EQ((*facts)->residuals.of, (std::vector<uint32_t>{1, 0, Renumbering::kNone}));
}

// Of one tensor, after a step.
KeptResiduals kept_of(const OneHost& host, uint64_t step_end, uint64_t elements) {
  KeptResiduals kept{.mark = {step_end, 1}, .residuals = {}};
  const PlanFacts facts = facts_of(table_of({{.name = "a", .elements = elements}}), kFeedbackSpec);
  kept.residuals.prepare(facts, host.site);
  return kept;
}

TEST(ResidualStore, LendsWhatItKeepsOnceAndToItsOwnerOnly) {
  const OneHost host;
  ResidualStore store;
  const ResidualStore::Owner owner{.uid = 5, .job = "job", .communicator = "dp"};
  store.keep(owner, kept_of(host, 3, 100), UINT64_MAX);
  store.keep(owner, kept_of(host, 4, 10), UINT64_MAX);
  EXPECT_EQ(store.bytes(), 80u) << "in place of the older ones";
  for (const ResidualStore::Owner& other :
       {ResidualStore::Owner{6, "job", "dp"}, ResidualStore::Owner{5, "jobs", "dp"},
        ResidualStore::Owner{5, "job", "tp"}}) {
    EXPECT_FALSE(store.mark(other).any());
    EXPECT_FALSE(store.take(other).has_value());
  }
  EXPECT_EQ(store.mark(owner), (ResidualMark{4, 1}));
  EXPECT_EQ(store.take(owner)->residuals.bytes(), 80u);
  EXPECT_FALSE(store.take(owner).has_value());
  EXPECT_EQ(store.bytes(), 0u);
}

TEST(ResidualStore, FreesWhatNobodyCameBackForAndTheOldestWhereRoomIsNeeded) {
  const OneHost host;
  ResidualStore store;
  store.keep({1, "old", "dp"}, kept_of(host, 1, 10), UINT64_MAX);
  store.keep({1, "job", "dp"}, kept_of(host, 1, 20), UINT64_MAX);
  store.keep({2, "job", "dp"}, kept_of(host, 1, 30), UINT64_MAX);
  EXPECT_EQ(store.next_ns(), UINT64_MAX);
  store.free_at(2, "job", 1000);
  EXPECT_EQ(store.next_ns(), 1000u);
  EXPECT_TRUE(store.take_expired(999, 480).empty());
  EXPECT_EQ(store.take_expired(1000, 480).size(), 1u);
  EXPECT_FALSE(store.mark({2, "job", "dp"}).any());
  EXPECT_EQ(store.take_expired(1000, 239).size(), 1u);
  EXPECT_FALSE(store.mark({1, "old", "dp"}).any());
  EXPECT_EQ(store.bytes(), 160u);
}

}  // namespace
}  // namespace cgx::scheduler
