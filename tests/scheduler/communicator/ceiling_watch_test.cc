#include "scheduler/communicator/ceiling_watch.h"

#include <gtest/gtest.h>

#include "scheduler/planners/plan_question.h"
#include "scheduler/planners/planner.h"

namespace cgx::scheduler {
namespace {

// Searches end when the test says so; whether something else is being agreed on, too.
class Desk : public CeilingPort {
 public:
  bool may_set_ceilings() const override { return free; }
  void search_ceilings(CeilingQuestion question, Wanted /*wanted*/,
                       std::function<void(const Result<CeilingAnswer>&)> answer) override {
    ++searches;
    asked = std::move(question);
    pending = std::move(answer);
  }
  void propose_ceilings(std::vector<CodecSpec> ceilings, PlanOrigin origin,
                        std::function<void(const Result<Agreed>&)> answer) override {
    ASSERT_TRUE(free) << "two plans are proposed at once";
    proposed.push_back(std::move(ceilings));
    origins.push_back(std::move(origin));
    answer(Agreed{.epoch = 2, .first_step = 9});
  }
  void report(const PlanNote& note) override { reported.push_back(note); }

  bool free = true;
  int searches = 0;
  CeilingQuestion asked;
  std::function<void(const Result<CeilingAnswer>&)> pending;
  std::vector<std::vector<CodecSpec>> proposed;
  std::vector<PlanOrigin> origins;
  std::vector<PlanNote> reported;
};

FactsPtr layerwise_plan() {
  Policy policy;
  policy.ceilings = CeilingPlanner::klayerwise;
  policy.stats_steps = 1;
  const auto table = std::make_shared<TensorTable>(
      TensorTable{{.name = "weight", .elements = 1 << 14, .shape = {128, 128}}});
  const Result<FactsPtr> facts = make_facts({.table = table,
                                             .policy = policy,
                                             .epoch = 1,
                                             .policy_version = 1,
                                             .order = reverse_registration(1),
                                             .machines = 2,
                                             .slab_bytes = 256 * 1024});
  EXPECT_TRUE(facts.ok()) << facts.status().to_string();
  return *facts;
}

CeilingAnswer weaker_codec() {
  CeilingAnswer answer;
  answer.changes = true;
  answer.ceilings = {{.codec = 3, .bits = 8, .bucket = 512}};
  return answer;
}

// A watch that has measured enough and has asked.
struct AskingWatch {
  AskingWatch() : watch(desk) {
    watch.follow(*plan, 0);
    for (uint64_t step = 1; step <= 2; ++step) watch.completed(step);
    watch.work(plan);
  }
  Desk desk;
  FactsPtr plan = layerwise_plan();
  CeilingWatch watch;
};

TEST(CeilingWatch, ProposesWhatTheSearchFound) {
  AskingWatch scene;
  ASSERT_EQ(scene.desk.searches, 1);
  scene.desk.pending(weaker_codec());
  ASSERT_EQ(scene.desk.proposed.size(), 1u);
  EXPECT_EQ(scene.watch.ceilings(), weaker_codec().ceilings);
}

TEST(CeilingWatch, SaysWhetherASearchOrGuardsChangeCeilings) {
  AskingWatch scene;
  CeilingAnswer found = weaker_codec();
  found.base = found.ceilings;
  found.why = "half the bytes";
  scene.desk.pending(found);
  EXPECT_EQ(scene.desk.origins.back(), (PlanOrigin{kByCeilings, "layerwise: half the bytes"}));
  for (const uint8_t down : {uint8_t{1}, uint8_t{0}}) {
    found.guards = {{.down = down}};
    scene.watch.completed(down ? 20 : 40);
    for (uint64_t step = 0; step < found.again; ++step) scene.watch.completed(41 + step);
    scene.watch.work(scene.plan);
    scene.desk.pending(found);
    EXPECT_EQ(scene.desk.origins.back().who, kByGuard);
    EXPECT_EQ(scene.desk.origins.back().why,
              down ? "1 of 1 tensors take a weaker codec, because theirs hurt them"
                   : "no tensor is hurt by its codec any more");
  }
  EXPECT_EQ(scene.desk.origins.size(), 3u);
}

TEST(CeilingWatch, JudgesNothingThatRanUnderEarlierCeilings) {
  AskingWatch scene;
  scene.watch.losses().add(0, {.values = 1, .residual = 100});
  scene.watch.completed(3);
  scene.desk.pending(weaker_codec());
  EXPECT_EQ(scene.watch.losses().tensors()[0].residual, 0);
  for (const uint64_t step : {9, 10}) {
    scene.watch.losses().add(0, {.values = 1, .residual = step == 9 ? 100.0 : 5.0});
    EXPECT_TRUE(scene.watch.completed(step));
  }
  EXPECT_EQ(scene.watch.losses().tensors()[0].residual, 5) << "step 9 sent what was left before";
}

TEST(CeilingWatch, GoesOnUnderAPolicyOfAnotherWeight) {
  AskingWatch scene;
  scene.desk.pending(weaker_codec());
  Policy heavier = scene.plan->policy;
  heavier.weight = 2;
  EXPECT_EQ(scene.watch.ceilings_under(heavier, scene.plan->plan.table_hash),
            weaker_codec().ceilings);
  heavier.layerwise_alpha = 2;
  EXPECT_TRUE(scene.watch.ceilings_under(heavier, scene.plan->plan.table_hash).empty());
}

// A search takes a while: an operator's policy, a commit or the pilot's trial may come in between.
TEST(CeilingWatch, ProposesNothingWhileAnotherPlanIsAgreedOn) {
  AskingWatch scene;
  scene.desk.free = false;
  scene.desk.pending(weaker_codec());
  EXPECT_TRUE(scene.desk.proposed.empty());
  scene.watch.work(scene.plan);
  EXPECT_EQ(scene.desk.searches, 1);
  scene.desk.free = true;
  scene.watch.work(scene.plan);
  ASSERT_EQ(scene.desk.searches, 2) << "still due, so it is asked again";
  scene.desk.pending(weaker_codec());
  EXPECT_EQ(scene.desk.proposed.size(), 1u);
}

TEST(CeilingWatch, SaysAfterWhichStepNothingWasFound) {
  AskingWatch scene;
  scene.desk.pending(Status(StatusCode::kBUSY, "too many plans wait to be made"));
  ASSERT_EQ(scene.desk.reported.size(), 1u);
  EXPECT_EQ(scene.desk.reported[0].step, 2u);
}

// The first step of a plan still sends the residuals of the one before.
TEST(CeilingWatch, CountsOnlyStepsThatRanAsItsLastAnswerWants) {
  AskingWatch scene;
  scene.watch.heard(2, {.intended = 100});
  scene.desk.pending(weaker_codec());
  ASSERT_EQ(scene.desk.proposed.size(), 1u);
  for (uint64_t step = 3; step <= 9; ++step) {
    scene.watch.heard(step, {.intended = 100});
    EXPECT_TRUE(scene.watch.completed(step));
    scene.watch.work(scene.plan);
  }
  EXPECT_EQ(scene.desk.searches, 1) << "the plan takes force with step 9";
  for (uint64_t step = 10; step <= 13; ++step) scene.watch.completed(step);
  scene.watch.heard(13, {.intended = 7});
  scene.watch.work(scene.plan);
  ASSERT_EQ(scene.desk.searches, 2);
  EXPECT_EQ(scene.desk.asked.everywhere.intended, 7);
}

// What was found since the last plan is part of the next question, also where nothing changed.
TEST(CeilingWatch, RemembersHowOftenAPlannerFell) {
  AskingWatch scene;
  CeilingAnswer stays;
  stays.climb = {.rest = 3, .falls = 2};
  stays.again = 1;
  scene.desk.pending(stays);
  scene.watch.completed(3);
  scene.watch.work(scene.plan);
  ASSERT_EQ(scene.desk.searches, 2);
  EXPECT_EQ(scene.desk.asked.climb, stays.climb);
  CeilingAnswer falls = weaker_codec();
  falls.climb = {.rest = 4, .falls = 3};
  scene.desk.pending(falls);
  for (uint64_t step = 10; step <= 13; ++step) scene.watch.completed(step);
  scene.watch.work(scene.plan);
  ASSERT_EQ(scene.desk.searches, 3);
  EXPECT_EQ(scene.desk.asked.climb, falls.climb);
}

}  // namespace
}  // namespace cgx::scheduler
