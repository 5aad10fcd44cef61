#include "daemon/planner/planner_agent.h"

#include <gtest/gtest.h>
#include <pthread.h>

#include <algorithm>
#include <functional>
#include <future>
#include <string>
#include <utility>
#include <vector>

#include "scheduler/planners/plan_question.h"
#include "scheduler/planners/planner.h"
#include "scheduler/planners/proposal.h"

namespace cgx::daemon {
namespace {

using scheduler::FactsPtr;
using scheduler::PlanQuestion;
using scheduler::TensorTable;

// The asking side: plays the data agent between two rounds.
struct Asker final : PlanTaker {
  void take_plan(UniqueFunction<void()> answer) override { answers.push_back(std::move(answer)); }
  void read_answers() {
    for (auto& answer : std::exchange(answers, {})) answer();
  }
  PlanQuestion question(uint64_t epoch, bool ranks_wait) const {
    return {.table = table,
            .epoch = epoch,
            .order = {0},
            .slab_bytes = 256 * 1024,
            .ranks_wait = ranks_wait};
  }
  scheduler::PlannerPort::Answer keep() {
    return [this](const Result<FactsPtr>& facts) {
      if (!facts.ok()) return refused.push_back(facts.status().code());
      epochs.push_back((*facts)->plan.epoch);
      plan = *facts;
    };
  }

  std::shared_ptr<const TensorTable> table =
      std::make_shared<TensorTable>(TensorTable{{.name = "weight", .elements = 4096}});
  std::vector<UniqueFunction<void()>> answers;
  std::vector<uint64_t> epochs;
  std::vector<StatusCode> refused;
  FactsPtr plan;
};

class PlannerAgentTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(agent_.on_start().ok()); }
  void work_until_quiet() {
    while (agent_.do_work(0) > 0) {
    }
  }
  Asker asker_;
  PlannerAgent agent_{asker_};
};

constexpr uint64_t kMiB = 1 << 20;

struct Touched final : scheduler::SiteResidual {
  uint64_t touch() override { return left > 0 ? (--left, 2 * kMiB) : 0; }
  int left = 3;
};

// A worker that hangs holds up the plans of its own job alone.
TEST_F(PlannerAgentTest, MakesOtherPlansWhileAnotherProcessOwesAResidual) {
  std::promise<void> asked, answered;
  PlanQuestion slow = asker_.question(1, /*ranks_wait=*/true);
  slow.policy.default_codec.flags |= CodecSpec::kFeedback;
  slow.policy.raw_one_dimensional = false;
  slow.bytes_free = kMiB;
  slow.residuals_elsewhere = true;
  slow.make_residual = [&](uint64_t) -> Result<std::shared_ptr<scheduler::SiteResidual>> {
    asked.set_value();
    answered.get_future().wait();
    return Status(StatusCode::kDEVICE_LOST, "did not answer");
  };
  agent_.request(slow, asker_.keep());
  agent_.request(asker_.question(2, /*ranks_wait=*/true), asker_.keep());
  work_until_quiet();
  asked.get_future().wait();
  asker_.read_answers();
  EXPECT_EQ(asker_.epochs, std::vector<uint64_t>{2});
  answered.set_value();
  agent_.on_stop();
  asker_.read_answers();
  EXPECT_EQ(asker_.refused, std::vector<StatusCode>{StatusCode::kDEVICE_LOST});
}

// Where a limit of processes is reached.
TEST_F(PlannerAgentTest, MakesAPlanItselfWhereNoThreadIsToBeHad) {
  pthread_attr_t before, vast;
  ASSERT_EQ(::pthread_getattr_default_np(&before), 0);
  ASSERT_EQ(::pthread_getattr_default_np(&vast), 0);
  ASSERT_EQ(::pthread_attr_setstacksize(&vast, size_t{1} << 46), 0);
  PlanQuestion question = asker_.question(1, /*ranks_wait=*/true);
  question.residuals_elsewhere = true;
  ASSERT_EQ(::pthread_setattr_default_np(&vast), 0);
  agent_.request(question, asker_.keep());
  work_until_quiet();
  ASSERT_EQ(::pthread_setattr_default_np(&before), 0);
  asker_.read_answers();
  EXPECT_EQ(asker_.epochs, std::vector<uint64_t>{1});
}

// Plans with feedback, whose memory comes in three slices; how often the planner rests meanwhile.
class PlannersRest : public PlannerAgentTest {
 protected:
  struct Counted {
    static void rest(uint64_t /*ns*/) { ++count; }
    static inline int count = 0;
  };
  int rests_for(bool ranks_wait, const std::function<void()>& meanwhile) {
    PlanQuestion question = asker_.question(1, ranks_wait);
    question.policy.default_codec.flags |= CodecSpec::kFeedback;
    question.policy.raw_one_dimensional = false;
    question.bytes_free = kMiB;
    question.make_residual = [&](uint64_t) -> Result<std::shared_ptr<scheduler::SiteResidual>> {
      meanwhile();
      return std::shared_ptr<scheduler::SiteResidual>(std::make_shared<Touched>());
    };
    Counted::count = 0;
    resting_.request(question, asker_.keep());
    while (resting_.do_work(0) > 0) {
      each_round();
    }
    return Counted::count;
  }
  void SetUp() override { ASSERT_TRUE(resting_.on_start().ok()); }
  std::function<void()> each_round = [] {};
  PlannerAgent resting_{asker_, Counted::rest};
};

TEST_F(PlannersRest, IsTakenBetweenSlicesOfMemoryUnlessRanksWait) {
  EXPECT_EQ(rests_for(/*ranks_wait=*/false, [] {}), 3);
  EXPECT_EQ(rests_for(/*ranks_wait=*/true, [] {}), 0);
}

TEST_F(PlannersRest, IsLeftOutWhereSomethingElseWaits) {
  for (const bool ranks_wait : {true, false}) {
    EXPECT_EQ(
        rests_for(false, [&] { resting_.request(asker_.question(2, ranks_wait), asker_.keep()); }),
        2);
  }
  EXPECT_EQ(rests_for(false, [&] { resting_.hurry(); }), 0) << "the daemon ends";
}

// One job's residuals may take seconds; another's ranks and operators do not wait for them.
TEST_F(PlannersRest, OrNotOthersComeBetweenSlicesOfMemory) {
  for (const bool ranks_wait : {true, false}) {
    asker_.epochs.clear();
    (void)rests_for(ranks_wait, [&] {
      resting_.request(asker_.question(2, ranks_wait), asker_.keep());
      resting_.request(asker_.question(3, /*ranks_wait=*/true), asker_.keep());
    });
    asker_.read_answers();
    EXPECT_EQ(asker_.epochs,
              ranks_wait ? (std::vector<uint64_t>{2, 3, 1}) : (std::vector<uint64_t>{3, 2, 1}));
  }
}

// However often others ask, a plan that is half made goes on.
TEST_F(PlannersRest, OrNotAPlanIsMadeBesideQuestionsWithoutEnd) {
  for (const bool ranks_wait : {true, false}) {
    asker_.epochs.clear();
    int asked = 0;
    each_round = [&] {
      if (++asked < 100) resting_.request(asker_.question(2, ranks_wait), asker_.keep());
    };
    (void)rests_for(ranks_wait, [] {});
    asker_.read_answers();
    const auto& answers = asker_.epochs;
    const auto made = std::find(answers.begin(), answers.end(), 1u);
    EXPECT_LE(made - answers.begin(), 8);
    EXPECT_EQ(answers.size(), 100u);
  }
}

TEST_F(PlannersRest, IsMostOfTheTimeAndHalfOfWhatOthersWaitAtMost) {
  EXPECT_EQ(PlannerAgent::rest_ns(kMillisecond, 2 * kMiB), 4 * kMillisecond);
  EXPECT_EQ(PlannerAgent::rest_ns(kSecond, 2 * kMiB), 25 * 2 * kMiB);
}

TEST_F(PlannerAgentTest, AnswersOnTheAskersThreadOnly) {
  agent_.request(asker_.question(3, false), asker_.keep());
  EXPECT_FALSE(agent_.prepare_sleep()) << "a question waits";
  work_until_quiet();
  EXPECT_TRUE(agent_.prepare_sleep());
  EXPECT_TRUE(asker_.epochs.empty()) << "the asker has not looked yet";
  asker_.read_answers();
  EXPECT_EQ(asker_.epochs, std::vector<uint64_t>{3});
}

TEST_F(PlannerAgentTest, PlansCommitsBeforeWhatOperatorsAsk) {
  agent_.request(asker_.question(1, false), asker_.keep());
  agent_.request(asker_.question(2, false), asker_.keep());
  agent_.request(asker_.question(3, true), asker_.keep());
  work_until_quiet();
  asker_.read_answers();
  EXPECT_EQ(asker_.epochs, (std::vector<uint64_t>{3, 1, 2}));
}

// What runs here and what follows there, as letters.
struct Runs {
  std::string log;
  void ask(PlannerAgent& agent) {
    agent.run([this] { log += "w"; }, [this] { log += "t"; });
  }
};

TEST_F(PlannerAgentTest, DoesOtherWorkHereAndLeavesWhatFollowsToTheAsker) {
  Runs runs;
  agent_.request(asker_.question(1, false), asker_.keep());
  runs.ask(agent_);
  EXPECT_EQ(runs.log, "");
  EXPECT_EQ(agent_.do_work(0), 1);
  EXPECT_EQ(runs.log, "w") << "ranks wait: it goes before what operators ask";
  asker_.read_answers();
  EXPECT_EQ(runs.log, "wt");
}

TEST_F(PlannerAgentTest, HasWorkDoneInPlaceRatherThanNever) {
  for (int i = 0; i < 4096; ++i) agent_.request(asker_.question(1, true), asker_.keep());
  Runs runs;
  runs.ask(agent_);
  EXPECT_EQ(runs.log, "wt");
}

// A search of many slices.
scheduler::SurveyQuestion long_question() {
  TensorTable tensors;
  for (int i = 0; i < 64; ++i) {
    tensors.push_back(
        {.name = "layer" + std::to_string(i), .elements = 1 << 16, .shape = {256, 256}});
  }
  const auto table = std::make_shared<const TensorTable>(std::move(tensors));
  scheduler::Policy policy;
  policy.mode = scheduler::PlanMode::kAuto;
  const std::vector<uint32_t> order = scheduler::reverse_registration(table->size());
  const auto facts = scheduler::make_facts({.table = table,
                                            .policy = policy,
                                            .epoch = 1,
                                            .order = order,
                                            .machines = 2,
                                            .slab_bytes = 256 * 1024});
  EXPECT_TRUE(facts.ok());
  auto costs = std::make_shared<scheduler::MachineCosts>();
  for (const CodecSpec& spec : scheduler::default_menu()) {
    costs->codecs.push_back({spec, {0, 0.1}, {0, 0.1}});
  }
  scheduler::StepSample measured;
  for (size_t t = 0; t < table->size(); ++t) measured.arrival_ns.push_back(1e5f * float(64 - t));
  measured.step_ns = 5e8;
  return {.running = *facts,
          .measured = measured,
          .order = order,
          .machines = 2,
          .slab_bytes = 256 * 1024,
          .costs = costs};
}

// Where a look at the clock costs a whole slice: a fast machine ends this search within one.
TEST_F(PlannerAgentTest, MakesPlansBetweenSlicesOfASearch) {
  static uint64_t used_ns = 0;
  const auto used = [] { return used_ns += 5 * kMillisecond; };
  PlannerAgent agent(asker_, PlannerAgent::sleep, used);
  bool surveyed = false;
  const scheduler::Asking asking;
  agent.survey(long_question(), asking.wanted(), [&](const Result<scheduler::SurveyPtr>& survey) {
    ASSERT_TRUE(survey.ok()) << survey.status().to_string();
    EXPECT_FALSE((*survey)->candidates.empty());
    surveyed = true;
  });
  agent.do_work(0);  // it begins
  agent.do_work(0);  // a slice
  EXPECT_FALSE(agent.prepare_sleep()) << "there is more to search";
  agent.request(asker_.question(5, false), asker_.keep());
  agent.do_work(0);
  asker_.read_answers();
  EXPECT_EQ(asker_.epochs, std::vector<uint64_t>{5}) << "the plan was made before the search ended";
  EXPECT_FALSE(surveyed);
  while (agent.do_work(0) > 0) {
  }
  asker_.read_answers();
  EXPECT_TRUE(surveyed);
}

// Twenty jobs have gone, or look for something else by now: of ten, searches had begun.
TEST_F(PlannerAgentTest, DropsSearchesThatNobodyWantsAnyMore) {
  static uint64_t used_ns = 0;
  const auto used = [] { return used_ns += 5 * kMillisecond; };
  const auto used_beside = [&](int gone) {
    PlannerAgent agent(asker_, PlannerAgent::sleep, used);
    scheduler::Asking asking;
    const scheduler::Asking stays;
    int answers = 0;
    for (int i = 0; i < gone; ++i) {
      if (i == gone / 2) {
        for (int begun = 0; begun < gone; ++begun) agent.do_work(0);
      }
      agent.survey(long_question(), asking.wanted(), [&](const auto&) { answers += 100; });
    }
    asking.drop();
    agent.survey(long_question(), stays.wanted(), [&](const auto& survey) {
      EXPECT_TRUE(survey.ok());
      ++answers;
    });
    const uint64_t before_ns = used_ns;
    while (agent.do_work(0) > 0) {
    }
    EXPECT_TRUE(agent.prepare_sleep());
    asker_.read_answers();
    EXPECT_EQ(answers, 1);
    return used_ns - before_ns;
  };
  const uint64_t alone_ns = used_beside(0);
  EXPECT_GT(alone_ns, 0u);
  EXPECT_EQ(used_beside(20), alone_ns);
}

// Where each look at the clock costs 2 ms, 5 ms are three.
TEST_F(PlannerAgentTest, MakesPlansBetweenMillisecondsOfAnOperatorsQuestion) {
  static uint64_t used_ns = 0;
  const auto used = [] { return used_ns += 2 * kMillisecond; };
  PlannerAgent agent(asker_, PlannerAgent::sleep, used);
  int slices = 0;
  bool told = false;
  const auto slice = [&](uint64_t evaluations) { return evaluations > 0 && ++slices == 7; };
  EXPECT_TRUE(agent.consider(slice, [&] { told = true; }));
  EXPECT_EQ(slices, 0) << "not on the asker's thread";
  ASSERT_GT(agent.do_work(0), 0);
  ASSERT_GT(agent.do_work(0), 0);
  EXPECT_EQ(slices, 3);
  agent.request(asker_.question(7, true), asker_.keep());
  ASSERT_GT(agent.do_work(0), 0);
  EXPECT_EQ(slices, 3) << "a commit goes before it";
  while (agent.do_work(0) > 0) {
  }
  EXPECT_EQ(slices, 7);
  EXPECT_FALSE(told) << "the asker has not looked yet";
  asker_.read_answers();
  EXPECT_TRUE(told);
}

TEST_F(PlannerAgentTest, FreesPlansItself) {
  agent_.request(asker_.question(1, true), asker_.keep());
  work_until_quiet();
  asker_.read_answers();
  const long held = asker_.table.use_count();
  asker_.plan.reset();
  EXPECT_EQ(asker_.table.use_count(), held) << "who drops a plan does not free it";
  EXPECT_FALSE(agent_.prepare_sleep());
  work_until_quiet();
  EXPECT_EQ(asker_.table.use_count(), 1);
}

TEST_F(PlannerAgentTest, LeavesPlansAliveWhenItGoes) {
  {
    PlannerAgent gone(asker_);
    ASSERT_TRUE(gone.on_start().ok());
    gone.request(asker_.question(7, true), asker_.keep());
    gone.do_work(0);
    gone.on_stop();
  }
  asker_.read_answers();
  EXPECT_EQ(asker_.plan->plan.epoch, 7u);
  asker_.plan.reset();
  EXPECT_EQ(asker_.table.use_count(), 1) << "freed by who dropped it";
}

TEST_F(PlannerAgentTest, RefusesMoreThanItCanRemember) {
  for (int i = 0; i < 4096; ++i) agent_.request(asker_.question(1, false), asker_.keep());
  EXPECT_TRUE(asker_.refused.empty());
  agent_.request(asker_.question(1, false), asker_.keep());
  EXPECT_EQ(asker_.refused, std::vector{StatusCode::kBUSY});
  agent_.request(asker_.question(2, true), asker_.keep());
  agent_.do_work(0);
  asker_.read_answers();
  EXPECT_EQ(asker_.epochs, std::vector<uint64_t>{2}) << "commits have room of their own";
}

// Both threads at work: plans are asked for, taken and dropped here while others are made there.
TEST(PlannerThread, AnswersWhileTheAskerGoesOn) {
  struct Inbox final : PlanTaker {
    void take_plan(UniqueFunction<void()> answer) override {
      messages.post_wait(std::move(answer));
    }
    Mailbox<UniqueFunction<void()>> messages{4};  // so small that the planner waits for room
  } inbox;
  constexpr uint64_t kPlans = 400;
  Asker asker;
  PlannerAgent agent(inbox);
  auto thread = AgentThread::start(agent);
  ASSERT_TRUE(thread.ok()) << thread.status().to_string();
  uint64_t asked = 0;
  while (asker.epochs.size() < kPlans) {
    if (asked < kPlans) {
      ++asked;
      agent.request(asker.question(asked, asked % 3 == 0), asker.keep());
    }
    inbox.messages.drain(8, [](UniqueFunction<void()> answer) { answer(); });
  }
  asker.plan.reset();
  (*thread)->stop();
  EXPECT_TRUE(asker.refused.empty());
  std::sort(asker.epochs.begin(), asker.epochs.end());
  EXPECT_EQ(std::unique(asker.epochs.begin(), asker.epochs.end()), asker.epochs.end());
}

}  // namespace
}  // namespace cgx::daemon
