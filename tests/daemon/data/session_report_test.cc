#include "daemon/data/session_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace cgx::daemon {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

scheduler::CommunicatorSnapshot communicator_of(size_t tensors) {
  scheduler::CommunicatorSnapshot shown;
  shown.job = "bert";
  shown.name = "dp";
  shown.ranks = 8;
  shown.machines = 2;
  for (size_t t = 0; t < tensors; ++t) {
    shown.tensors.push_back({.name = "layer" + std::to_string(t) + std::string(200, 'x'),
                             .elements = 1000,
                             .intended_sq = 4,
                             .sent_sq = 1});
  }
  return shown;
}

TEST(SessionReport, TellsWhoTakesPartAndHowATensorTravels) {
  auto shown = communicator_of(1);
  const wire::Reply page = report_page(shown, 0);
  EXPECT_THAT(page.message,
              StartsWith("communicator\tbert\tdp\t8\t2\t0\tfp32\t-\t0\t0\t0\t\ntensor\t"));
  EXPECT_THAT(page.message, HasSubstr("\tfp32\t-\t1000\t4000\t4000\t0\t4\t1\n"));
  EXPECT_EQ(page.value0, 0u);
  shown.feedback_begins = "error feedback goes on from step 4";
  EXPECT_THAT(report_page(shown, 0).message,
              HasSubstr("\t0\t0\t0\terror feedback goes on from step 4\ntensor\t"));
}

TEST(SessionReport, HasEveryTensorOnSomePageThatFitsAPacket) {
  auto shown = communicator_of(5000);
  std::string all;
  uint32_t first = 0, pages = 0;
  do {
    const wire::Reply page = report_page(shown, first);
    EXPECT_LE(wire::encode_packet(page, 1).size(), wire::kSessionPacketBytesMax);
    all += page.message;
    first = static_cast<uint32_t>(page.value0);
  } while (first != 0 && ++pages < 100);
  EXPECT_GT(pages, 1u);
  EXPECT_EQ(std::count(all.begin(), all.end(), '\n'), 5001);
  EXPECT_THAT(all, HasSubstr("tensor\tlayer4999x"));
}

TEST(SessionReport, NamesCannotForgeLines) {
  auto shown = communicator_of(1);
  shown.tensors[0].name = "a\tb\ntensor\tforged";
  EXPECT_THAT(report_page(shown, 0).message, HasSubstr("tensor\ta b tensor forged\tfp32"));
}

TEST(SessionReport, ATensorThatIsNotThereGivesAnEmptyPage) {
  auto shown = communicator_of(1);
  const wire::Reply page = report_page(shown, 7);
  EXPECT_EQ(page.message, "");
  EXPECT_EQ(page.value0, 0u);
}

}  // namespace
}  // namespace cgx::daemon
