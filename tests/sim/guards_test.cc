// The guard rail in mode auto, on several machines at once: what is measured of the gradients of a
// running job weakens the codec of a tensor that it hurts, and of no other.
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <optional>

#include "scheduler/planners/proposal.h"
#include "tests/sim/epoch_log.h"
#include "tests/sim/world.h"

namespace cgx::sim {
namespace {

using ::testing::Contains;
using ::testing::Field;

constexpr uint32_t kHurt = 1;  // tensor
constexpr CodecSpec kExact{.codec = 0, .bucket = 512};
constexpr CodecSpec kTenth{
    .codec = 12, .flags = CodecSpec::kFeedback, .bucket = kSparseBucket, .amount = 0.1f};
constexpr CodecSpec kQuarter{
    .codec = 12, .flags = CodecSpec::kFeedback, .bucket = kSparseBucket, .amount = 0.25f};

std::optional<CodecSpec> codec_in(const scheduler::Plan& plan, uint32_t tensor) {
  for (const scheduler::Group& group : plan.groups) {
    for (const scheduler::Segment& segment : group.segments) {
      if (segment.tensor == tensor) return segment.spec;
    }
  }
  return std::nullopt;
}

// Four layers over a link so slow that all of them are compressed as far as they may be.
struct GuardedJob {
  static constexpr uint32_t kLayers = 4;

  explicit GuardedJob(const CodecSpec& strongest, std::vector<CodecSpec> menu)
      : cluster([&] {
          ClusterOptions options{
              .ranks_per_machine = {1, 1, 1}, .port_bytes_per_second = 2'000'000, .plans = &log};
          options.policy.mode = scheduler::PlanMode::kAuto;
          options.policy.default_codec = strongest;
          options.policy.menu = menu;
          options.policy.group_bytes = 32 * 1024;
          options.policy.stats_steps = 4;
          options.policy.replica_check_steps = 0;
          auto costs = std::make_shared<scheduler::MachineCosts>();
          menu.push_back(strongest);
          for (const CodecSpec& spec : menu) {
            costs->codecs.push_back({spec, {0, 0.01}, {0, 0.01}});
          }
          options.costs = costs;
          return options;
        }()) {
    for (uint32_t t = 0; t < kLayers; ++t) {
      tensors.push_back(
          {.name = "layer" + std::to_string(t), .elements = 8192, .shape = {64, 128}});
    }
    cluster.create();
    cluster.commit(tensors);
  }
  void play_step() {
    for (uint32_t r = 0; r < cluster.size(); ++r) {
      for (uint32_t t = 0; t < kLayers; ++t) {
        float* const data = cluster.rank(r).at<float>(tensors[t].offset);
        for (uint64_t i = 0; i < tensors[t].elements; ++i) {
          data[i] = t == kHurt ? hurting(step, i) : value(step, r, t, i);
        }
      }
      submit_all(cluster, tensors, r, step);
    }
    ASSERT_TRUE(cluster.run_until([&] { return cluster.all_ended(step); }));
    for (uint32_t r = 0; r < cluster.size(); ++r) {
      const auto* ended = cluster.rank(r).find(CGX_COMPLETE_STEP, step);
      ASSERT_EQ(ended->record.status, 0) << ended->text;
      for (const Tensor& tensor : tensors) {
        ASSERT_EQ(
            std::memcmp(cluster.rank(r).at<float>(tensor.offset),
                        cluster.rank(0).at<float>(tensor.offset), tensor.elements * sizeof(float)),
            0)
            << tensor.name << " of rank " << r << " in step " << step;
      }
    }
    ++step;
  }
  void play_until(const std::function<bool()>& done) {
    constexpr uint64_t kStepsMost = 600;
    for (const uint64_t end = step + kStepsMost; step < end && !done();) {
      ASSERT_NO_FATAL_FAILURE(play_step());
    }
    ASSERT_TRUE(done()) << said();
  }
  // Null: there is none yet.
  const scheduler::PlanEntry* first_by_guard() const {
    const auto found = std::find_if(log.entries.begin(), log.entries.end(), [](const auto& entry) {
      return entry.origin.who == scheduler::kByGuard;
    });
    return found == log.entries.end() ? nullptr : &*found;
  }
  scheduler::CommunicatorSnapshot shown(uint32_t machine) {
    return cluster.engine(machine).snapshot(0).communicators.at(0);
  }
  bool all_compressed(const CodecSpec& spec) {
    const scheduler::Plan& running = log.entries.back().plan;
    for (uint32_t t = 0; t < kLayers; ++t) {
      if (codec_in(running, t) != spec) return false;
    }
    return shown(0).searching == "settled";
  }
  std::string said() const {
    std::string text;
    for (const auto& entry : log.entries) {
      text += std::to_string(entry.step) + " " + entry.origin.who + ": " + entry.origin.why + "; ";
    }
    return text;
  }
  // The first epoch by the guard, as everybody sees it: one tensor is one level below the others.
  void expect_guarded(const CodecSpec& weaker, const CodecSpec& strongest) {
    const scheduler::PlanEntry* const entry = first_by_guard();
    ASSERT_NE(entry, nullptr) << said();
    EXPECT_EQ(entry->origin.why, "1 of 4 tensors take a weaker codec, because theirs hurt them");
    for (uint32_t t = 0; t < kLayers; ++t) {
      EXPECT_EQ(codec_in(entry->plan, t), t == kHurt ? weaker : strongest) << t << "; " << said();
    }
    const auto remark = std::find_if(log.remarks.begin(), log.remarks.end(), [&](const auto& each) {
      return each.note.epoch == entry->plan.epoch;
    });
    ASSERT_NE(remark, log.remarks.end());
    EXPECT_EQ(remark->note.name, "policy: guards; 1 tensors below it, which it hurt");
    EXPECT_EQ(remark->note.verdict, "in force");
    EXPECT_EQ(remark->note.step, entry->step);
    for (const uint32_t machine : {0u, 2u}) {
      EXPECT_THAT(shown(machine).switches,
                  Contains(Field(&scheduler::SwitchSnapshot::origin, entry->origin)));
    }
  }

  EpochLog log;
  Cluster cluster;
  std::vector<Tensor> tensors;
  std::function<float(uint64_t step, uint64_t i)> hurting;
  uint64_t step = 0;
};

// A tenth of each gradient travels in a step. Where all values are as large and always the same,
// what waits for its turn grows to more than five times the gradient's norm; elsewhere the largest
// go first, and their signs change.
TEST(GuardRail, WeakensTheCodecOfATensorWhoseResidualOutgrowsItsGradient) {
  GuardedJob job(kTenth, {kExact, kQuarter});
  job.hurting = [](uint64_t, uint64_t i) { return i % 3 == 0 ? -2.0f : 2.0f; };
  ASSERT_NO_FATAL_FAILURE(job.play_until([&] { return job.first_by_guard() != nullptr; }));
  job.expect_guarded(kQuarter, kTenth);
}

TEST(GuardRail, WeakensTheCodecOfATensorThatIsNotFiniteUntilItIsAgain) {
  const CodecSpec four = scheduler::Policy().default_codec;
  const CodecSpec eight = scheduler::default_menu()[1];
  GuardedJob job(four, scheduler::default_menu());
  bool finite = true;
  job.hurting = [&](uint64_t step, uint64_t i) {
    return !finite && i % 512 == 7 ? NAN : value(step, 0, kHurt, i);
  };
  ASSERT_NO_FATAL_FAILURE(job.play_until([&] { return job.all_compressed(four); }));
  ASSERT_EQ(job.first_by_guard(), nullptr) << job.said();
  finite = false;
  ASSERT_NO_FATAL_FAILURE(job.play_until([&] { return job.first_by_guard() != nullptr; }));
  job.expect_guarded(eight, four);
  finite = true;
  ASSERT_NO_FATAL_FAILURE(job.play_until([&] { return job.all_compressed(four); }));
  EXPECT_NE(job.said().find("guard: no tensor is hurt by its codec any more"), std::string::npos)
      << job.said();
}

}  // namespace
}  // namespace cgx::sim
