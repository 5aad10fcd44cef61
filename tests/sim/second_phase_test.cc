// The second phase of a step, interrupted at every moment and with every link late: what one
// machine has completed, all complete (PROTOCOL 10, 26), without anybody keeping frames for others.
#include <string>
#include <vector>

#include "tests/sim/world.h"

namespace cgx::sim {
namespace {

struct Row {
  const char* name;
  std::vector<uint32_t> shape;
  scheduler::CollectiveWish collective;
  uint32_t rack_machines = 0;
  int64_t site_ns = 0;  // what a job takes; 0: nothing, and it is answered inside the call
  bool lossy = false;
  bool waits = false;  // jobs wait for the ranks all that time
};

const std::vector<Row>& rows() {
  using Wish = scheduler::CollectiveWish;
  static const std::vector<Row> all = {
      {"scatter", {1, 1, 1}, Wish::kScatter},
      {"allgather", {1, 1, 1}, Wish::kAllgather},
      {"two_level", {1, 1, 1, 1}, Wish::kTwoLevel, 2},
      {"two_level on slow sites", {1, 1, 1, 1}, Wish::kTwoLevel, 2, 100'000},
      {"two_level with loss", {1, 1, 1, 1}, Wish::kTwoLevel, 2, 0, true},
      {"two_level with loss on slow sites", {1, 1, 1, 1}, Wish::kTwoLevel, 2, 100'000, true},
      {"scatter behind slow ranks", {1, 1, 1}, Wish::kScatter, 0, 100'000, false, true},
      {"two_level behind slow ranks", {1, 1, 1, 1}, Wish::kTwoLevel, 2, 100'000, false, true}};
  return all;
}

// After one step in good order, the next begins with one link late.
struct Interrupted {
  SlowLink link;
  World world;

  Interrupted(const Row& row, const SlowLink& late)
      : link(late), world(row.shape, options_of(row, link), /*raw=*/false) {
    run_step(world.cluster, world.tensors, 0);
    link.slow = true;
    submit_step(world.cluster, world.tensors, 1);
  }
  static ClusterOptions options_of(const Row& row, SlowLink& link) {
    ClusterOptions options = link.options();
    if (!row.lossy) options.policy = raw_policy();
    options.policy.collective = row.collective;
    options.policy.rack_machines = row.rack_machines;
    if (row.site_ns == 0) return options;
    options.site = [ns = row.site_ns, waits = row.waits](uint32_t) {
      return SlowSiteOptions{.takes_ns = [ns](const auto&, const auto&) { return ns; },
                             .waits_for_ranks = waits};
    };
    return options;
  }
  uint32_t finished() {
    uint32_t count = 0;
    for (uint32_t r = 0; r < world.cluster.size(); ++r) {
      count += world.step_status(r, 1) == StatusCode::kOK ? 1 : 0;
    }
    return count;
  }
};

// Plays act(interrupted, machine) at moments until the step is over, for each late link and
// machine.
template <class Act>
void at_each_moment(const Row& row, Act act) {
  constexpr int64_t kLateNs = 400'000, kEachNs = 80'000;
  const auto machines = static_cast<uint32_t>(row.shape.size());
  for (uint32_t link = 0; link < machines * machines; ++link) {
    const SlowLink late{.from = link / machines, .to = link % machines, .slow_ns = kLateNs};
    if (late.from == late.to) continue;
    for (uint32_t machine = 0; machine < machines; ++machine) {
      for (int64_t wait_ns = kEachNs;; wait_ns += kEachNs) {
        SCOPED_TRACE(std::string(row.name) + ", " + std::to_string(late.from) + " to " +
                     std::to_string(late.to) + " late, machine " + std::to_string(machine) +
                     " after " + std::to_string(wait_ns / 1000) + " us");
        Interrupted played(row, late);
        played.world.cluster.run_for(wait_ns);
        const bool over = played.finished() == machines;
        act(played, machine);
        if (::testing::Test::HasFailure()) return;
        if (over) break;
      }
    }
  }
}

// A rank that is a step further gives that one up, so the step before it is settled by all.
TEST(SecondPhase, OfAStepThatSomebodyCompletesIsCompletedByAll) {
  for (const Row& row : rows()) {
    at_each_moment(row, [&row](Interrupted& played, uint32_t machine) {
      World& world = played.world;
      world.abandon(machine, 2);
      world.cluster.run_for(kSecond);
      const bool all = played.finished() == world.cluster.size();
      for (uint32_t r = 0; r < world.cluster.size(); ++r) {
        const StatusCode expected = all ? StatusCode::kOK : StatusCode::kSTEP_ABANDONED;
        EXPECT_EQ(world.step_status(r, 1), expected) << "rank " << r << world.step_text(r, 1);
      }
      if (all && row.lossy) expect_agreement(world.cluster, world.tensors);
      if (all && !row.lossy) expect_reference(world.cluster, world.tensors, world.shape, 1);
    });
  }
}

// What its links swallowed nobody has: whoever lacks results is told whose they were.
TEST(SecondPhase, OfADeadMachineEndsWithItsNameWhereItsResultsAreMissing) {
  for (const Row& row : rows()) {
    at_each_moment(row, [](Interrupted& played, uint32_t machine) {
      World& world = played.world;
      world.cluster.kill_daemon(machine);
      world.cluster.run_for(6 * kSecond);
      for (uint32_t r = 0; r < world.cluster.size(); ++r) {
        if (r == machine || world.step_status(r, 1) == StatusCode::kOK) continue;
        EXPECT_EQ(world.step_status(r, 1), StatusCode::kPEER_LOST) << world.step_text(r, 1);
        const std::string culprit = "machine " + std::to_string(machine);
        EXPECT_NE(world.step_text(r, 1).find(culprit), std::string::npos) << world.step_text(r, 1);
      }
    });
  }
}

}  // namespace
}  // namespace cgx::sim
