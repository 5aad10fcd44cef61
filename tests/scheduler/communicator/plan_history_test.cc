#include "scheduler/communicator/plan_history.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "scheduler/planners/planner.h"

namespace cgx::scheduler {
namespace {

PlanEntry some_entry(const std::string& name, uint64_t step) {
  const TensorTable table = {{.name = "a", .elements = 5000}, {.name = "b", .elements = 3}};
  Policy policy;
  policy.window = 7;
  const std::vector<uint32_t> order = reverse_registration(table.size());
  Result<Plan> plan = make_plan({table, policy, 4, 9, order});
  EXPECT_TRUE(plan.ok());
  return {"job", name, step, PlanPurpose::kCommit, policy, *plan};
}

TEST(PlanHistory, ReadsWhatItWrites) {
  const PlanEntry first = some_entry("tab\tand\npercent%", 0), second = some_entry("\xff dp", 12);
  const Result<std::vector<PlanEntry>> read = parse_plan_history(
      std::string(kPlanHistoryHead) + format_plan_entry(first) + format_plan_entry(second));
  ASSERT_TRUE(read.ok()) << read.status().message();
  ASSERT_EQ(read->size(), 2u);
  EXPECT_EQ((*read)[0].communicator, first.communicator);
  EXPECT_EQ((*read)[1].communicator, second.communicator);
  EXPECT_EQ((*read)[1].step, 12u);
  EXPECT_EQ((*read)[0].plan.hash(), first.plan.hash());
  EXPECT_EQ((*read)[0].policy.window, 7u);
}

TEST(PlanHistory, KeepsWhoWantedAPlanAndWhy) {
  PlanEntry entry = some_entry("dp", 7);
  entry.origin = {kByPolicy, "alice: 5 % less loss,\tas of today"};
  const std::string line = format_plan_entry(entry);
  EXPECT_NE(line.find("\tpolicy\talice: 5 %25 less loss,%09as of today\n"), std::string::npos)
      << line.substr(line.size() - 80);
  EXPECT_EQ(parse_plan_entry(line.substr(0, line.size() - 1))->origin, entry.origin);
}

// Those of versions that said no more than the plan, and of later ones that say more.
TEST(PlanHistory, ReadsOlderAndNewerLines) {
  PlanEntry entry = some_entry("dp", 7);
  const std::string old = format_plan_entry(entry);
  EXPECT_EQ(std::count(old.begin(), old.end(), '\t'), 3);
  entry.origin = {kByGuard, "theirs hurt them"};
  std::string newer = format_plan_entry(entry);
  newer.insert(newer.size() - 1, "\tmore\tthan now");
  const Result<std::vector<PlanEntry>> read =
      parse_plan_history(std::string(kPlanHistoryHead) + old + newer);
  ASSERT_TRUE(read.ok()) << read.status().message();
  ASSERT_EQ(read->size(), 2u);
  EXPECT_EQ((*read)[0].origin, PlanOrigin());
  EXPECT_EQ((*read)[0].plan.hash(), entry.plan.hash());
  EXPECT_EQ((*read)[1].origin, entry.origin);
}

TEST(PlanHistory, HasRemarksThatNobodyFollows) {
  const PlanNote note{.epoch = 4,
                      .step = 31,
                      .name = "choose: 40 fp32 in 3 groups",
                      .verdict = "no faster",
                      .predicted = 0.8,
                      .measured = 0.971};
  const std::string remark = format_plan_remark({"big job", "dp", note});
  EXPECT_EQ(remark,
            "# big%20job\tdp\t31\t4\tchoose: 40 fp32 in 3 groups: no faster; predicted 80 %25, "
            "measured 97 %25 of the step before\n");
  PlanEntry entry = some_entry("dp", 0);
  entry.job = "# no remark";
  const Result<std::vector<PlanEntry>> read = parse_plan_history(
      std::string(kPlanHistoryHead) + remark + format_plan_entry(entry) + remark);
  ASSERT_TRUE(read.ok()) << read.status().message();
  ASSERT_EQ(read->size(), 1u);
  EXPECT_EQ((*read)[0].job, "# no remark");
}

TEST(PlanHistory, NamesTheLineThatIsWrong) {
  const std::string good = format_plan_entry(some_entry("dp", 1));
  const auto error_of = [&](const std::string& text) {
    const auto read = parse_plan_history(text);
    return read.ok() ? "" : read.status().message();
  };
  EXPECT_NE(error_of("cgx-plans 2\n" + good).find("does not begin"), std::string::npos);
  const std::string head(kPlanHistoryHead);
  EXPECT_EQ(error_of(head), "");
  for (const std::string& bad :
       {std::string("job\tdp\tone\t00\n"), std::string("job\tdp\t1\t0\n"),
        std::string("job\td%zp\t1\t00\n"), std::string("\n"), good.substr(0, good.size() - 9)}) {
    EXPECT_NE(error_of(head + good + bad).find("line 3 of the plan history"), std::string::npos)
        << bad.substr(0, 40);
  }
}

TEST(PlanReplay, FollowsTheEntriesOfItsCommunicator) {
  const std::vector<PlanEntry> history = {some_entry("dp", 3), some_entry("tp", 0)};
  PlanReplay replay(&history, "job", "dp", 0);
  const uint64_t hash = history[0].plan.table_hash;
  EXPECT_FALSE(replay.next_commit(hash, 2).ok());
  EXPECT_FALSE(replay.next_commit(hash + 1, 3).ok());
  ASSERT_TRUE(replay.next_commit(hash, 3).ok());
  replay.advance();
  EXPECT_EQ(replay.next(), nullptr);
  EXPECT_NE(replay.next_commit(hash, 9).status().message().find("at its end"), std::string::npos);
  EXPECT_FALSE(PlanReplay(nullptr, "job", "dp", 0).on());
  EXPECT_TRUE(PlanReplay(&history, "job", "dp", 1).next_commit(hash, 3).ok()) << "once more";
}

// The second run's first plan, which was kept for the name, was refused: its commit has epoch 2.
TEST(PlanReplay, TellsRunsApartWhoseEpochsGoOn) {
  std::vector<PlanEntry> history = {some_entry("dp", 3), some_entry("dp", 3)};
  history[0].plan.epoch = 1;
  history[1].plan.epoch = 2;
  const uint64_t hash = history[0].plan.table_hash;
  for (const size_t run : {0, 1}) {
    PlanReplay replay(&history, "job", "dp", run);
    const Result<const PlanEntry*> first = replay.next_commit(hash, 3);
    ASSERT_TRUE(first.ok()) << "run " << run;
    EXPECT_EQ((*first)->plan.epoch, run + 1);
    replay.advance();
    EXPECT_EQ(replay.next(), nullptr) << "run " << run;
  }
}

}  // namespace
}  // namespace cgx::scheduler
