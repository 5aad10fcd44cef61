// Mode auto where ranks leave the daemon no core of its own: what the daemon computes the trainers
// lose, so plans count it in the backward pass.
#include <optional>

#include "scheduler/planners/proposal.h"
#include "tests/sim/world.h"

namespace cgx::sim {
namespace {

constexpr CodecSpec kUncoded{.codec = 0, .bucket = 512};

// A large gradient, then a small one that takes the trainers long. To encode the large one takes
// less than that, and saves most of a slow link's time.
struct JobOfTwoTensors {
  static constexpr int64_t kBackwardNs = 100'000'000;
  static constexpr double kCodedNsPerByte = 230;  // encoded, and decoded: 60 ms of the large one

  explicit JobOfTwoTensors(std::function<uint32_t(uint32_t machine)> cores)
      : world({2, 1},
              [&] {
                ClusterOptions options{.port_bytes_per_second = 1'000'000};
                options.policy.mode = scheduler::PlanMode::kAuto;
                options.policy.menu = {kUncoded};
                options.policy.group_bytes = 16 * 1024;
                options.policy.stats_steps = options.policy.replica_check_steps = 0;
                auto costs = std::make_shared<scheduler::MachineCosts>();
                costs->codecs = {{kUncoded, {0, 0.01}, {0, 0.01}},
                                 {coded(), {0, kCodedNsPerByte}, {0, kCodedNsPerByte}}};
                options.costs = costs;
                options.cores = std::move(cores);
                return options;
              }(),
              /*raw=*/false,
              {{.name = "bias", .elements = 64, .shape = {64}},
               {.name = "weight", .elements = 32'768, .shape = {256, 128}}}) {}

  static CodecSpec coded() { return scheduler::Policy().default_codec; }
  void play_step() {
    Cluster& cluster = world.cluster;
    fill(cluster, world.tensors, step);
    for (const uint32_t tensor : {1u, 0u}) {
      for (uint32_t r = 0; r < cluster.size(); ++r) {
        ASSERT_TRUE(cluster.submit(r, step, tensor, world.tensors[tensor]).ok());
      }
      if (tensor == 0) continue;
      cluster.wake_at(cluster.now_ns() + kBackwardNs);
      cluster.run_for(kBackwardNs);
      cluster.run_rounds(1);  // engines know of it
    }
    for (uint32_t r = 0; r < cluster.size(); ++r) ASSERT_TRUE(cluster.end_step(r, step).ok());
    ASSERT_TRUE(cluster.run_until([&] { return cluster.all_ended(step); }));
    ++step;
  }
  void play(int steps) {
    for (int i = 0; i < steps; ++i) ASSERT_NO_FATAL_FAILURE(play_step());
  }
  // What the trainers lose of the daemon's work, as a search goes by it.
  std::optional<double> share() {
    std::optional<double> found;
    world.cluster.engine(0).profile({.job = "job"}, [&](const auto& profile) {
      EXPECT_TRUE(profile.ok()) << profile.status().to_string();
      if (profile.ok()) found = profile->fit.conditions.share;
    });
    play(4);
    return found;
  }
  CodecSpec codec_of_the_large_one() {
    scheduler::CommunicatorSnapshot shown = world.cluster.engine(0).snapshot(0).communicators.at(0);
    EXPECT_EQ(shown.searching, "settled");
    show_plan(shown);
    return shown.tensors.at(1).codec;
  }

  World world;
  uint64_t step = 0;
};

TEST(FullCores, MakeTheTrainersLoseWhatTheDaemonComputes) {
  for (const uint32_t cores : {0u, 2u, 3u}) {  // where two ranks are; 0: nobody knows
    JobOfTwoTensors job([cores](uint32_t) { return cores; });
    ASSERT_NO_FATAL_FAILURE(job.play(60));
    const bool full = cores == 2;
    EXPECT_EQ(job.codec_of_the_large_one(), full ? kUncoded : job.coded()) << cores << " cores";
    EXPECT_EQ(job.share(), full ? 1.0 : 0.0) << cores << " cores";
  }
}

TEST(FullCores, OfAnyMachineCount) {
  JobOfTwoTensors job([](uint32_t machine) { return machine == 1 ? 1 : 8; });
  ASSERT_NO_FATAL_FAILURE(job.play(60));
  EXPECT_EQ(job.codec_of_the_large_one(), kUncoded);
  EXPECT_EQ(job.share(), 1.0);
}

}  // namespace
}  // namespace cgx::sim
