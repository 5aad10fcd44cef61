// Ceilings on several machines at once: layers are measured while the job runs, and everybody has
// the same bits throughout.
#include <cmath>
#include <cstring>
#include <set>

#include "scheduler/communicator/control.h"
#include "scheduler/planners/proposal.h"
#include "tests/sim/layers.h"
#include "tests/sim/world.h"

namespace cgx::sim {
namespace {

constexpr CodecSpec kUniform{.codec = 3, .bits = 4, .flags = CodecSpec::kStochastic, .bucket = 512};

scheduler::Policy layerwise_policy() {
  scheduler::Policy policy;
  policy.default_codec = kUniform;
  policy.ceilings = scheduler::CeilingPlanner::klayerwise;
  policy.group_bytes = 32 * 1024;
  policy.stats_steps = 4;
  policy.replica_check_steps = 5;
  return policy;
}

// Six layers, every other one a thousand times as loud.
struct Job {
  explicit Job(ClusterOptions options)
      : cluster([&] {
          options.ranks_per_machine = {2, 1, 1};
          return options;
        }()) {
    tensors.push_back({.name = "bias", .elements = 64, .shape = {64}});
    cluster.create();
    cluster.commit(tensors);
  }
  void play_step() {
    for (uint32_t r = 0; r < cluster.size(); ++r) {
      fill_loud(cluster, tensors, r, step);
      submit_all(cluster, tensors, r, step);
    }
    ASSERT_TRUE(cluster.run_until([&] { return cluster.all_ended(step); }));
    for (uint32_t t = 0; t < tensors.size(); ++t) {
      const float* const first = cluster.rank(0).at<float>(tensors[t].offset);
      for (uint32_t r = 0; r < cluster.size(); ++r) {
        const auto* ended = cluster.rank(r).find(CGX_COMPLETE_STEP, step);
        ASSERT_EQ(ended->record.status, 0) << ended->text;
        ASSERT_EQ(std::memcmp(cluster.rank(r).at<float>(tensors[t].offset), first,
                              tensors[t].elements * sizeof(float)),
                  0)
            << tensors[t].name << " of rank " << r << " in step " << step;
      }
    }
    ++step;
  }
  void play(uint64_t steps) {
    for (uint64_t i = 0; i < steps; ++i) ASSERT_NO_FATAL_FAILURE(play_step());
  }
  scheduler::CommunicatorSnapshot shown(uint32_t machine = 0) {
    return shown_whole(cluster, machine);
  }
  CodecSpec codec_of(uint32_t tensor) { return shown().tensors[tensor].codec; }
  Cluster cluster;
  std::vector<Tensor> tensors = six_layers();
  uint64_t step = 0;
};

TEST(Ceilings, GiveLoudLayersTheBitsThatQuietOnesDoNotNeed) {
  Job job({.policy = layerwise_policy()});
  EXPECT_EQ(job.codec_of(0), kUniform);
  ASSERT_NO_FATAL_FAILURE(job.play(20));
  const auto shown = job.shown();
  EXPECT_GE(job.codec_of(0).bits, 4);
  EXPECT_LT(job.codec_of(1).bits, 4);
  EXPECT_EQ(job.codec_of(6).codec, 0) << "a bias stays as it is";
  EXPECT_EQ(shown.tensors[1].reason, "ceilings: layerwise");
  ASSERT_FALSE(shown.plan_notes.empty());
  EXPECT_EQ(shown.plan_notes[0].verdict, "in force");
  EXPECT_NE(shown.plan_notes[0].name.find("layerwise: "), std::string::npos);
  EXPECT_EQ(shown.plan_notes[0].epoch, shown.epoch);
  EXPECT_EQ(job.shown(1).tensors[1].codec, shown.tensors[1].codec);
  const scheduler::PlanOrigin origin = job.shown(1).switches.back().origin;
  EXPECT_EQ(origin.who, "ceilings");
  EXPECT_EQ(origin.why, shown.plan_notes[0].name);
  ASSERT_NO_FATAL_FAILURE(job.play(40));
  EXPECT_EQ(job.shown().epoch, shown.epoch) << "nothing has changed";
}

TEST(Ceilings, MeasureWhatTheCodecsReallyLose) {
  scheduler::Policy policy = layerwise_policy();
  policy.layerwise_alpha = 1e6;  // whatever is lost
  Job job({.policy = policy});
  ASSERT_NO_FATAL_FAILURE(job.play(20));
  EXPECT_EQ(job.codec_of(0).bits, 2) << "there is room for the fewest bits";
  policy.layerwise_alpha = 1e-3f;
  Job exact({.policy = policy});
  ASSERT_NO_FATAL_FAILURE(exact.play(20));
  // A thousandth of the error of 4 bits needs 15 / sqrt(1000) times finer steps: 9 bits, so fp32.
  EXPECT_EQ(exact.codec_of(0).codec, 0);
  EXPECT_NE(exact.codec_of(1).codec, 0) << "as quiet as it is, 2 bits will do";
}

TEST(Ceilings, AnOperatorsPolicyBeginsAnew) {
  Job job({.policy = layerwise_policy()});
  ASSERT_NO_FATAL_FAILURE(job.play(20));
  scheduler::Policy eight = layerwise_policy();
  eight.ceilings = scheduler::CeilingPlanner::kpolicy;
  eight.default_codec.bits = 8;
  StatusCode code = StatusCode::kINTERNAL;
  job.cluster.engine(1).apply_policy(
      {.job = "job", .policy = eight},
      [&](const Result<scheduler::PolicyChange>& change) { code = change.status().code(); });
  ASSERT_TRUE(job.cluster.run_until([&] { return code != StatusCode::kINTERNAL; }));
  EXPECT_EQ(code, StatusCode::kOK);
  ASSERT_NO_FATAL_FAILURE(job.play(30));
  for (uint32_t t = 0; t < 6; ++t) EXPECT_EQ(job.codec_of(t), eight.default_codec) << t;
}

TEST(Ceilings, StayUnderAPolicyThatIsAppliedAgain) {
  Job job({.policy = layerwise_policy()});
  ASSERT_NO_FATAL_FAILURE(job.play(20));
  const auto before = job.shown();
  ASSERT_LT(job.codec_of(1).bits, 4);
  StatusCode code = StatusCode::kINTERNAL;
  job.cluster.engine(1).apply_policy(
      {.job = "job", .policy = layerwise_policy()},
      [&](const Result<scheduler::PolicyChange>& change) { code = change.status().code(); });
  ASSERT_TRUE(job.cluster.run_until([&] { return code != StatusCode::kINTERNAL; }));
  ASSERT_EQ(code, StatusCode::kOK);
  ASSERT_NO_FATAL_FAILURE(job.play(5));
  ASSERT_GT(job.shown().epoch, before.epoch);
  for (uint32_t t = 0; t < 6; ++t) EXPECT_EQ(job.codec_of(t), before.tensors[t].codec) << t;
  const uint64_t applied = job.shown().epoch;
  for (uint32_t r = 0; r < job.cluster.size(); ++r) {
    job.cluster.rank(r).replies.clear();
    job.cluster.request_commit(r, static_cast<uint32_t>(job.tensors.size()));
  }
  ASSERT_TRUE(job.cluster.run_until([&] {
    uint32_t r = 0;
    while (r < job.cluster.size() && job.cluster.rank(r).replies.count(Cluster::kCommit)) ++r;
    return r == job.cluster.size();
  }));
  ASSERT_GT(job.shown().epoch, applied);
  ASSERT_NO_FATAL_FAILURE(job.play(5));
  for (uint32_t t = 0; t < 6; ++t) EXPECT_EQ(job.codec_of(t), before.tensors[t].codec) << t;
}

TEST(Ceilings, ModeAutoChoosesBelowThem) {
  auto costs = std::make_shared<scheduler::MachineCosts>();
  for (const CodecSpec& spec : scheduler::default_menu()) {
    costs->codecs.push_back({spec, {0, 0.01}, {0, 0.01}});
  }
  scheduler::Policy policy = layerwise_policy();
  policy.mode = scheduler::PlanMode::kAuto;
  policy.stats_steps = policy.replica_check_steps = 0;
  Job job({.policy = policy, .port_bytes_per_second = 2'000'000, .costs = costs});
  EXPECT_EQ(job.codec_of(0).codec, 0) << "at first nothing is compressed";
  ASSERT_NO_FATAL_FAILURE(job.play(100));
  const auto shown = job.shown();
  EXPECT_EQ(shown.searching, "settled");
  EXPECT_LT(job.codec_of(1).bits, 4) << "the strongest that the ceilings allow";
  EXPECT_NE(job.codec_of(1).codec, 0);
  EXPECT_GT(job.codec_of(0).bits, job.codec_of(1).bits);
}

TEST(Ceilings, GoOnBehindAFailure) {
  Job job({.policy = layerwise_policy()});
  ASSERT_NO_FATAL_FAILURE(job.play(9));
  // Rank 2 gives step 9 up in the midst of it.
  ASSERT_TRUE(job.cluster.submit(2, job.step, 0, job.tensors[0]).ok());
  ASSERT_TRUE(job.cluster.submit(2, job.step, 0, job.tensors[0]).ok());
  job.cluster.run_for(kSecond / 10);
  for (uint32_t r = 0; r < job.cluster.size(); ++r) job.cluster.request_redo(r);
  job.cluster.run_for(kSecond / 10);
  for (uint32_t r = 0; r < job.cluster.size(); ++r) {
    const wire::Reply& reply = job.cluster.rank(r).replies[Cluster::kRedo];
    ASSERT_EQ(reply.code, StatusCode::kOK) << reply.message;
    job.cluster.rank(r).attempt = static_cast<uint32_t>(reply.value0);
    job.cluster.rank(r).completions.clear();
  }
  ASSERT_NO_FATAL_FAILURE(job.play(20));
  EXPECT_LT(job.codec_of(1).bits, 4);
}

scheduler::Policy gravac_policy() {
  scheduler::Policy policy;
  policy.default_codec = {
      .codec = 12, .flags = CodecSpec::kFeedback, .bucket = kSparseBucket, .amount = 0.01f};
  policy.ceilings = scheduler::CeilingPlanner::kgravac;
  policy.stats_steps = 2;
  policy.replica_check_steps = 5;
  return policy;
}

TEST(Gravac, FollowsWhatIsKeptOfTheGradientsOfAllMachines) {
  Job job({.policy = gravac_policy()});
  EXPECT_FLOAT_EQ(job.codec_of(0).amount, 0.1f);
  ASSERT_NO_FATAL_FAILURE(job.play(40));
  // Values are spread evenly: a tenth of them is less than 0.7 of the squared norm.
  std::string said;
  for (const auto& note : job.shown().plan_notes) {
    said += std::to_string(note.step) + " " + note.name + ": " + note.verdict + "; ";
  }
  EXPECT_EQ(job.codec_of(0).codec, 0) << said;
  scheduler::Policy easy = gravac_policy();
  easy.gravac_epsilon = 0.01f;
  easy.gravac_min = 4;
  easy.gravac_max = 20;
  Job strong({.policy = easy});
  ASSERT_NO_FATAL_FAILURE(strong.play(80));
  EXPECT_LT(strong.codec_of(0).amount, 0.2f);
}

TEST(Gravac, HearsOfOtherMachines) {
  uint32_t heard = 0;
  Job job({.policy = gravac_policy()});
  job.cluster.tap([&](uint32_t machine, const transport::Frame& frame) {
    if (machine != 0 || frame.payload.empty()) return;
    const auto message = scheduler::decode_control(frame.payload);
    if (message.ok() && std::holds_alternative<scheduler::Losses>(*message)) ++heard;
  });
  ASSERT_NO_FATAL_FAILURE(job.play(6));
  EXPECT_EQ(heard, 4u) << "two machines, two steps that were measured";
}

TEST(Gravac, ALossThatIsNoNumberDecidesNothing) {
  EXPECT_TRUE(scheduler::sample_of(
      {.step = 1, .values = 1, .intended = 1, .lost = std::vector<double>(8, 0.5)}));
  for (const double wrong : {-1.0, std::nan(""), double{INFINITY}}) {
    EXPECT_FALSE(scheduler::sample_of(
        {.step = 1, .values = 1, .intended = 1, .lost = std::vector<double>(8, wrong)}));
    EXPECT_FALSE(scheduler::sample_of(
        {.step = 1, .values = 1, .intended = wrong, .lost = std::vector<double>(8, 0.5)}));
  }
  EXPECT_FALSE(scheduler::sample_of({.step = 1, .values = 1, .intended = 1, .lost = {0.5}}));
}

}  // namespace
}  // namespace cgx::sim
