#include "scheduler/communicator/terms.h"

#include <gtest/gtest.h>

namespace cgx::scheduler {
namespace {

Members one_of_three(uint32_t machine) {
  Members members;
  members.machine = machine;
  members.machine_of_rank = members.lowest_rank = {0, 1, 2};
  members.addresses.resize(3);
  members.devices.resize(3);
  return members;
}

Report at_step(uint64_t completed_end, uint64_t results_end) {
  Report report;
  report.completed_end = completed_end;
  report.results_end = results_end;
  return report;
}

const Status kWhy(StatusCode::kRANK_LOST, "rank 7 went");

struct TermsTest : ::testing::Test {
  Members members = one_of_three(0);
  Terms terms{members};

  void report_all(const Report& first, const Report& second, const Report& third) {
    terms.report(0, first);
    terms.report(1, second);
    terms.report(2, third);
  }
  std::string why_lost() {
    const auto start = terms.conclude(kWhy, /*has_groups=*/true);
    return start.status().code() == StatusCode::kSTEP_LOST ? start.status().message() : "";
  }
};

TEST_F(TermsTest, EndWhenAllOthersHaveSentTheirLastFrame) {
  terms.flush(1);
  EXPECT_FALSE(terms.all_flushed());
  terms.flush(2);
  EXPECT_TRUE(terms.all_flushed());
  terms.begin();
  EXPECT_EQ(terms.number(), 1u);
  EXPECT_FALSE(terms.all_flushed());
}

TEST_F(TermsTest, SayWhoIsAwaited) {
  using Machines = std::vector<uint32_t>;
  EXPECT_EQ(terms.awaited(), (Machines{1, 2}));
  terms.flush(1);
  EXPECT_EQ(terms.awaited(), Machines{2});
  terms.flush(2);
  EXPECT_EQ(terms.awaited(), Machines{});
  terms.report(0, {});
  terms.report(2, {});
  EXPECT_EQ(terms.awaited(), Machines{1});
  const Members others = one_of_three(1);
  Terms member(others);
  member.report(1, {});
  EXPECT_EQ(member.awaited(), Machines{0}) << "only its coordinator";
}

TEST_F(TermsTest, StartAtTheFirstStepWhoseResultsSomeMachineLacks) {
  report_all(at_step(5, 6), at_step(5, 5), at_step(4, 5));
  ASSERT_TRUE(terms.all_reported());
  const auto start = terms.conclude(kWhy, true);
  ASSERT_TRUE(start.ok()) << start.status().to_string();
  EXPECT_EQ(start->first_step, 5u);
  EXPECT_EQ(start->code, StatusCode::kRANK_LOST);
  EXPECT_EQ(start->text, "rank 7 went");
}

TEST_F(TermsTest, LoseAStepThatOnlySomeHaveCompleted) {
  report_all(at_step(6, 6), at_step(5, 5), at_step(5, 6));
  EXPECT_EQ(why_lost().find("step 5 completed on some machines only"), 0u);
  EXPECT_TRUE(terms.conclude(kWhy, /*has_groups=*/false).ok()) << "there is nothing to redo";
}

TEST_F(TermsTest, LoseACallThatIsOpenHereAndDoneThere) {
  Report open = at_step(5, 5), done = at_step(5, 5);
  open.calls_open = {3, 4};
  done.calls_done = {2, 4};
  open.calls_end = 5;
  done.calls_end = 9;
  report_all(open, done, at_step(5, 5));
  EXPECT_EQ(why_lost().find("call 4 completed"), 0u);
  done.calls_done = {2};
  report_all(open, done, at_step(5, 5));
  const auto start = terms.conclude(kWhy, true);
  ASSERT_TRUE(start.ok()) << start.status().to_string();
  EXPECT_EQ(start->calls_end, 9u) << "calls that only others have opened have failed, too";
}

TEST_F(TermsTest, KnowWhetherAllReportedOnePlan) {
  Report report = at_step(5, 5);
  report.plan_hash = 11;
  report_all(report, report, report);
  EXPECT_TRUE(terms.all_reported_plan(11));
  report.plan_hash = 12;
  terms.report(2, report);
  EXPECT_FALSE(terms.all_reported_plan(11));
}

TEST_F(TermsTest, RefuseAStartThatDoesNotFollowFromTheOwnReport) {
  Start start;
  start.first_step = 5;
  EXPECT_EQ(terms.check(start, true).code(), StatusCode::kPROTOCOL_ERROR) << "nothing reported";
  terms.report(0, at_step(5, 6));
  EXPECT_TRUE(terms.check(start, true).ok());
  start.first_step = 7;
  EXPECT_FALSE(terms.check(start, true).ok());
  EXPECT_TRUE(terms.check(start, /*has_groups=*/false).ok());
  start.first_step = 6;
  start.calls_end = 1'000'000;
  EXPECT_FALSE(terms.check(start, true).ok()) << "no window is so large";
}

TEST_F(TermsTest, RefuseAReportOfMoreCallsThanCanBeFailed) {
  Report far = at_step(5, 5);
  far.calls_end = 1024;
  report_all(at_step(5, 5), far, at_step(5, 5));
  EXPECT_TRUE(terms.conclude(kWhy, true).ok());
  far.calls_end = UINT64_MAX;  // one by one it would take for ever
  terms.report(1, far);
  const auto start = terms.conclude(kWhy, true);
  EXPECT_EQ(start.status().code(), StatusCode::kPROTOCOL_ERROR);
  EXPECT_EQ(
      start.status().message(),
      "machine 1 with rank 1 reports call 18446744073709551615, machine 0 with rank 0 call 0; "
      "at most 1024 lie between two machines");
}

TEST_F(TermsTest, KeepABoundedNumberOfFramesOfTheNextOne) {
  wire::FrameHeader header;
  header.term = 1;
  header.part = 9;
  const std::vector<std::byte> payload(3, std::byte{7});
  ASSERT_TRUE(terms.keep_early(header, payload));
  EXPECT_GT(terms.early_bytes(), payload.size());
  const auto kept = terms.take_early();
  ASSERT_EQ(kept.size(), 1u);
  EXPECT_EQ(kept[0].header.part, 9u);
  EXPECT_EQ(kept[0].payload, payload);
  EXPECT_TRUE(terms.take_early().empty());
  EXPECT_EQ(terms.early_bytes(), 0u);
  header.term = 2;
  EXPECT_FALSE(terms.keep_early(header, payload)) << "nobody can be that far";
  header.term = 1;
  EXPECT_FALSE(terms.keep_early(header, std::vector<std::byte>((1 << 20) + 1)));
  for (int i = 0; i < 2 * 4096; ++i) ASSERT_TRUE(terms.keep_early(header, {}));
  EXPECT_FALSE(terms.keep_early(header, {})) << "of two other machines";
}

}  // namespace
}  // namespace cgx::scheduler
