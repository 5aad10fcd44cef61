#include "daemon/planner/plan_log.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "scheduler/planners/planner.h"
#include "tests/daemon/base/scratch_directory.h"

namespace cgx::daemon {
namespace {

struct Remarks final : scheduler::EventSink {
  void event(scheduler::EventLevel, std::string_view text) override { lines.emplace_back(text); }
  std::vector<std::string> lines;
};

scheduler::PlanEntry entry_of(uint64_t step) {
  const scheduler::TensorTable table = {{.name = "a", .elements = 5000}};
  const scheduler::Policy policy;
  const std::vector<uint32_t> order = scheduler::reverse_registration(table.size());
  const Result<scheduler::Plan> plan = scheduler::make_plan({table, policy, 4, 9, order});
  EXPECT_TRUE(plan.ok());
  return {"job", "dp", step, scheduler::PlanPurpose::kCommit, policy, *plan};
}

struct PlanLogTest : ::testing::Test {
  ScratchDirectory directory;
  const std::string path = directory.path() + "/plans";
  Remarks said;

  std::string text() const {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
};

// As of a disk that is full.
class SizeLimit {
 public:
  explicit SizeLimit(rlim_t bytes) {
    ::signal(SIGXFSZ, SIG_IGN);
    ::getrlimit(RLIMIT_FSIZE, &before_);
    rlimit limited = before_;
    limited.rlim_cur = bytes;
    ::setrlimit(RLIMIT_FSIZE, &limited);
  }
  ~SizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    ::signal(SIGXFSZ, SIG_DFL);
  }
  SizeLimit(const SizeLimit&) = delete;
  SizeLimit& operator=(const SizeLimit&) = delete;

 private:
  rlimit before_{};
};

TEST_F(PlanLogTest, KeepsWholeLinesWhereTheDiskIsFull) {
  auto file = PlanFile::create(path, said);
  ASSERT_TRUE(file.ok()) << file.status().to_string();
  (*file)->took_force(entry_of(3));
  const std::string before = text();
  {
    const SizeLimit limit(before.size() + 10);
    (*file)->took_force(entry_of(7));
  }
  (*file)->took_force(entry_of(9));
  EXPECT_EQ(text(), before);
  EXPECT_EQ(said.lines.size(), 1u);
  const auto read = PlanFile::read(path);
  ASSERT_TRUE(read.ok()) << read.status().to_string();
  ASSERT_EQ((*read)->size(), 1u);
  EXPECT_EQ((*read)->front().step, 3u);
}

TEST_F(PlanLogTest, TakesTheNextFreeNameAndLeavesWhatIsThere) {
  std::ofstream(path) << "of another run";
  for (const char* next : {".1", ".2"}) {
    auto file = PlanFile::create(path, said);
    ASSERT_TRUE(file.ok()) << file.status().to_string();
    (*file)->took_force(entry_of(3));
    EXPECT_EQ((*PlanFile::read(path + next))->size(), 1u);
    EXPECT_NE(said.lines.back().find("plans are recorded in " + path + next), std::string::npos);
  }
  EXPECT_EQ(text(), "of another run");
  const auto nowhere = PlanFile::create(directory.path() + "/none/plans", said);
  EXPECT_EQ(nowhere.status().message(), "--record-plans: cannot create " + directory.path() +
                                            "/none/plans: No such file or directory");
}

TEST_F(PlanLogTest, KeepsWhatWasSaidOfPlansBesideThem) {
  auto file = PlanFile::create(path, said);
  ASSERT_TRUE(file.ok()) << file.status().to_string();
  (*file)->took_force(entry_of(3));
  (*file)->looked_at({"job", "dp", {.step = 9, .name = "fp32", .verdict = "no faster"}});
  (*file)->took_force(entry_of(12));
  EXPECT_NE(text().find("\n# job\tdp\t9\t0\tfp32: no faster\n"), std::string::npos);
  const auto read = PlanFile::read(path);
  ASSERT_TRUE(read.ok()) << read.status().to_string();
  EXPECT_EQ((*read)->size(), 2u);
}

TEST_F(PlanLogTest, LeavesOutALastLineThatADeadDaemonHasNotFinished) {
  {
    auto file = PlanFile::create(path, said);
    ASSERT_TRUE(file.ok()) << file.status().to_string();
    (*file)->took_force(entry_of(3));
    (*file)->took_force(entry_of(7));
  }
  const std::string whole = text();
  std::ofstream(path, std::ios::binary) << whole.substr(0, whole.size() - 20);
  const auto read = PlanFile::read(path);
  ASSERT_TRUE(read.ok()) << read.status().to_string();
  EXPECT_EQ((*read)->size(), 1u);
  std::ofstream(path, std::ios::binary) << whole.substr(0, whole.size() - 1);
  EXPECT_EQ((*PlanFile::read(path))->size(), 2u)
      << "an editor may leave the last line without its end";
  std::ofstream(path, std::ios::binary) << whole.substr(0, whole.size() - 20) << "\n";
  EXPECT_FALSE(PlanFile::read(path).ok()) << "a line that was finished so is wrong";
}

}  // namespace
}  // namespace cgx::daemon
