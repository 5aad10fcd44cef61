// Results of machines compared now and then: that they diverge is found, and nothing else is.
#include "tests/sim/world.h"

namespace cgx::sim {
namespace {

// A result that went wrong in one machine's memory.
TEST(Replicas, ThatDivergeEndTheJobAndNameBothMachines) {
  constexpr uint32_t kTensor = 3;  // linear.weight: the one that step 3 compares
  ClusterOptions options;
  options.policy = raw_policy();
  options.policy.collective = scheduler::CollectiveWish::kScatter;
  options.policy.replica_check_steps = 1;
  World world({1, 1}, options, /*raw=*/false);
  for (uint64_t step = 0; step < 3; ++step) run_step(world.cluster, world.tensors, step);
  const Tensor& tensor = world.tensors[kTensor];
  // Machine 1 reduces the end of it, before its last frame comes.
  world.cluster.tap([&](uint32_t machine, const transport::Frame&) {
    if (machine != 1) return;
    world.cluster.rank(1).at<float>(tensor.offset)[tensor.elements - 1] = 123.0f;
  });
  submit_step(world.cluster, world.tensors, 3);
  world.cluster.run_for(kSecond);
  world.cluster.request_redo(0);
  world.cluster.run_for(kSecond);
  const wire::Reply& reply = world.cluster.rank(0).replies[Cluster::kRedo];
  EXPECT_EQ(reply.code, StatusCode::kREPLICA_DIVERGED);
  EXPECT_NE(reply.message.find("'linear.weight' in step 3"), std::string::npos) << reply.message;
}

// The tensor is cut into pieces that are shorter than what one check looks at.
TEST(Replicas, AreComparedInEveryPieceOfATensor) {
  constexpr uint64_t kPieces = 4, kPieceBytes = 64 << 10;
  ClusterOptions options;
  options.policy = raw_policy();
  options.policy.collective = scheduler::CollectiveWish::kScatter;
  options.policy.replica_check_steps = 1;
  options.policy.segment_bytes = kPieceBytes;
  options.ranks_per_machine = {1, 1};
  Cluster cluster(options);
  cluster.create();
  std::vector<Tensor> tensors = {
      {.name = "weight", .elements = kPieces * kPieceBytes / sizeof(float), .shape = {}}};
  cluster.commit(tensors);
  cluster.tap([&](uint32_t machine, const transport::Frame&) {
    if (machine != 1) return;  // reduces the end of it, before its last frame comes
    cluster.rank(1).at<float>(tensors[0].offset)[tensors[0].elements - 1] = 123.0f;
  });
  for (uint64_t step = 0; step < kPieces; ++step) {
    submit_step(cluster, tensors, step);
    cluster.run_for(kSecond);
  }
  cluster.request_redo(0);
  cluster.run_for(kSecond);
  const wire::Reply& reply = cluster.rank(0).replies[Cluster::kRedo];
  EXPECT_EQ(reply.code, StatusCode::kREPLICA_DIVERGED) << reply.message;
}

// A pass that is done again need not give the same gradients.
TEST(Replicas, OfAnAttemptThatFailedAreNotComparedWithThoseOfTheNext) {
  for (uint32_t culprit : {0u, 1u}) {
    ClusterOptions options{.policy = raw_policy()};
    options.policy.replica_check_steps = 1;
    options.policy.group_bytes = 1;
    options.policy.window = 8;
    World world({1, 1}, options, /*raw=*/false);
    fill(world.cluster, world.tensors, 0);
    for (uint32_t r : {0u, 1u}) {
      ASSERT_TRUE(world.cluster.submit(r, 0, 0, world.tensors[0]).ok());
    }
    world.cluster.run_for(kSecond / 100);  // checked in step 0: tensor 0
    ASSERT_TRUE(world.cluster.submit(culprit, 0, 0, world.tensors[0]).ok());
    world.cluster.run_for(kSecond / 100);
    ASSERT_NO_FATAL_FAILURE(world.ask_for_redo(0));
    fill(world.cluster, world.tensors, 1000);
    for (uint32_t r : {0u, 1u}) submit_all(world.cluster, world.tensors, r, 0);
    ASSERT_TRUE(world.cluster.run_until([&] { return world.cluster.all_ended(0); }, kSecond));
    world.cluster.run_for(kSecond / 100);
    for (uint64_t step = 1; step < 3; ++step) {
      ASSERT_NO_FATAL_FAILURE(run_step(world.cluster, world.tensors, step));
    }
  }
}

}  // namespace
}  // namespace cgx::sim
