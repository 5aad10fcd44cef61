// Peers and links that break the rules: a daemon that heartbeats and does nothing else, frames that
// come when their time is over. Who waits is told; nothing late does harm.
#include "proto/wire/bytes.h"
#include "tests/sim/frames.h"
#include "tests/sim/world.h"

namespace cgx::sim {
namespace {

// Its heartbeats go on, and its first data frame came.
TEST(StalledPeer, IsBlamedByNameAndTheStepCanBeRedone) {
  for (uint32_t stalled : {0u, 1u}) {
    SCOPED_TRACE("machine " + std::to_string(stalled));
    ClusterOptions options{.policy = raw_policy()};
    options.policy.collective = scheduler::CollectiveWish::kScatter;
    World world({1, 1}, options, /*raw=*/false);
    ASSERT_NO_FATAL_FAILURE(run_step(world.cluster, world.tensors, 0));
    uint32_t came = 0;
    world.cluster.let_through([&](uint32_t machine, const transport::Frame& frame) {
      return !is_data(frame) || (machine != stalled && came++ == 0);
    });
    submit_step(world.cluster, world.tensors, 1);
    world.cluster.run_for(9 * kSecond);
    EXPECT_EQ(world.step_status(1 - stalled, 1), StatusCode::kBUSY);
    world.cluster.run_for(2 * kSecond);
    for (uint32_t r : {0u, 1u}) {
      EXPECT_EQ(world.step_status(r, 1), StatusCode::kOP_STALLED) << world.step_text(r, 1);
      EXPECT_NE(world.step_text(r, 1).find("machine " + std::to_string(stalled)), std::string::npos)
          << world.step_text(r, 1);
    }
    world.cluster.let_through({});
    ASSERT_NO_FATAL_FAILURE(world.expect_redo(1));
  }
}

// Both others soon have sent all that they may until they get its parts, so each of them lacks
// parts of the other, too.
TEST(StalledPeer, IsNamedByBothOthersThoughTheyWaitForEachOther) {
  for (const auto collective :
       {scheduler::CollectiveWish::kScatter, scheduler::CollectiveWish::kAllgather}) {
    for (const uint32_t stalled : {0u, 1u, 2u}) {
      SCOPED_TRACE("machine " + std::to_string(stalled));
      ClusterOptions options{.policy = raw_policy()};
      options.policy.collective = collective;
      options.arena_bytes = 8 << 20;
      const Tensor large{.name = "weight", .op = ReduceOp::kSum, .elements = 1 << 20, .shape = {}};
      World world({1, 1, 1}, options, /*raw=*/false, {large});
      ASSERT_NO_FATAL_FAILURE(run_step(world.cluster, world.tensors, 0));
      uint32_t sent = 0;
      world.cluster.let_through([&](uint32_t machine, const transport::Frame& frame) {
        const bool of_it = header_of(frame).source == stalled;
        return !is_data(frame) || (machine != stalled && (!of_it || sent++ < 2));
      });
      submit_step(world.cluster, world.tensors, 1);
      world.cluster.run_for(12 * kSecond);
      for (const uint32_t r : {0u, 1u, 2u}) {
        const std::string text = world.step_text(r, 1);
        EXPECT_EQ(world.step_status(r, 1), StatusCode::kOP_STALLED) << text;
        EXPECT_NE(text.find("machine " + std::to_string(stalled)), std::string::npos) << text;
      }
      world.cluster.let_through({});
      ASSERT_NO_FATAL_FAILURE(world.expect_redo(1));
    }
  }
}

// Scatter, and a machine that is lost later than heartbeats come over the link once it is slow.
ClusterOptions over(SlowLink& link) {
  ClusterOptions options = link.options();
  options.policy = raw_policy();
  options.policy.collective = scheduler::CollectiveWish::kScatter;
  options.sent_on_arrival = true;
  options.timeouts.peer_lost_ns = 30 * kSecond;
  return options;
}

// What it waits for takes longer to get there than a machine that is stuck would be given.
TEST(StalledPeer, IsNobodyWhoHasNotGotWhatHeIsToAnswer) {
  SlowLink link{.from = 0, .to = 1, .slow_ns = 25 * kSecond};
  World world({1, 1}, over(link), /*raw=*/false);
  ASSERT_NO_FATAL_FAILURE(run_step(world.cluster, world.tensors, 0));
  link.slow = true;
  submit_step(world.cluster, world.tensors, 1);
  const int64_t began_ns = world.cluster.now_ns();
  ASSERT_TRUE(world.cluster.run_until([&] { return world.cluster.all_ended(1); }, 70 * kSecond));
  EXPECT_GT(world.cluster.now_ns() - began_ns, link.slow_ns);
  for (const std::string& event : world.cluster.events()) {
    EXPECT_EQ(event.find("OP_STALLED"), std::string::npos) << event;
  }
  for (const uint32_t rank : {0u, 1u}) {
    EXPECT_EQ(world.step_status(rank, 1), StatusCode::kOK) << world.step_text(rank, 1);
  }
  expect_reference(world.cluster, world.tensors, world.shape, 1);
}

// Machine 2 waits for what machine 1 makes of a part that is still on its way there.
TEST(StalledPeer, IsNobodyWhoWaitsForAThird) {
  SlowLink link{.from = 0, .to = 1, .slow_ns = 25 * kSecond};
  World world({1, 1, 1}, over(link), /*raw=*/false);
  ASSERT_NO_FATAL_FAILURE(run_step(world.cluster, world.tensors, 0));
  link.slow = true;
  submit_step(world.cluster, world.tensors, 1);
  ASSERT_TRUE(world.cluster.run_until([&] { return world.cluster.all_ended(1); }, 70 * kSecond));
  for (const uint32_t rank : {0u, 1u, 2u}) {
    EXPECT_EQ(world.step_status(rank, 1), StatusCode::kOK) << world.step_text(rank, 1);
  }
  expect_reference(world.cluster, world.tensors, world.shape, 1);
}

// What machine 1 heard of an attempt that rank 0 gave up comes again in the next term.
struct LateFrames : ::testing::Test {
  World world{{1, 1}};
  std::vector<KeptFrame> heard;

  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(run_step(world.cluster, world.tensors, 0));
    world.cluster.tap([this](uint32_t machine, const transport::Frame& frame) {
      if (machine == 1) heard.emplace_back(frame);
    });
    fill(world.cluster, world.tensors, 1000);  // the redo has other gradients
    for (uint32_t t = 0; t < world.tensors.size(); ++t) {
      ASSERT_TRUE(world.cluster.submit(0, 1, t, world.tensors[t]).ok());
    }
    world.cluster.run_for(kSecond / 100);
    ASSERT_TRUE(world.cluster.submit(0, 1, 0, world.tensors[0]).ok());
    world.cluster.run_for(kSecond / 100);
    world.cluster.tap({});
    ASSERT_NO_FATAL_FAILURE(world.ask_for_redo(1));
  }
  uint32_t deliver(wire::FrameType type) {
    uint32_t delivered = 0;
    for (KeptFrame& frame : heard) {
      if (frame.header.type != type) continue;
      frame.deliver(world.cluster, 1);
      ++delivered;
    }
    return delivered;
  }
  void expect_step() {
    ASSERT_NO_FATAL_FAILURE(run_step(world.cluster, world.tensors, 1));
    expect_reference(world.cluster, world.tensors, world.shape, 1);
  }
};

TEST_F(LateFrames, OfDataAreNotTakenForTheRedos) {
  ASSERT_GT(deliver(wire::FrameType::kData), 0u);
  expect_step();
}

// Among them: the failure, the FLUSH behind it, the START of the new term.
TEST_F(LateFrames, OfControlFailNothingAgain) {
  ASSERT_GE(deliver(wire::FrameType::kControl), 3u);
  expect_step();
}

// A result for what this machine has not sent yet.
TEST(EarlyResult, IsNobodysAndEndsTheJobByName) {
  ClusterOptions options{.policy = raw_policy()};
  options.policy.collective = scheduler::CollectiveWish::kScatter;
  World world({1, 1}, options, /*raw=*/false);
  std::vector<KeptFrame> results;
  world.cluster.tap([&](uint32_t machine, const transport::Frame& frame) {
    if (machine == 0 && is_data(frame) && header_of(frame).round == 2) results.emplace_back(frame);
  });
  ASSERT_NO_FATAL_FAILURE(run_step(world.cluster, world.tensors, 0));
  world.cluster.tap({});
  ASSERT_FALSE(results.empty());
  for (KeptFrame& frame : results) {
    frame.header.step = 1;
    frame.deliver(world.cluster, 0);
  }
  submit_step(world.cluster, world.tensors, 1);
  world.cluster.run_for(kSecond);
  EXPECT_EQ(world.step_status(0, 1), StatusCode::kPROTOCOL_ERROR) << world.step_text(0, 1);
  EXPECT_NE(world.step_text(0, 1).find("machine 1"), std::string::npos) << world.step_text(0, 1);
}

// A call that is under way is said to have failed, with code OK; then its data comes.
TEST(FailureWithCodeOk, EndsTheJobByNameAndNothingElse) {
  constexpr uint64_t kElements = 3000, kOffset = 512 * 1024;
  for (const scheduler::ControlMessage& message :
       {scheduler::ControlMessage(scheduler::CallFailure{0, StatusCode::kOK, "fine"}),
        scheduler::ControlMessage(scheduler::Failure{StatusCode::kOK, "fine"})}) {
    World world({1, 1});
    std::vector<KeptFrame> data;
    world.cluster.let_through([&](uint32_t machine, const transport::Frame& frame) {
      if (is_data(frame) && machine == 0) data.emplace_back(frame);
      return !is_data(frame);
    });
    for (const uint32_t r : {0u, 1u}) {
      ASSERT_TRUE(world.cluster.call(r, 0, DType::kF32, ReduceOp::kSum, kElements, kOffset).ok());
    }
    world.cluster.run_for(kSecond / 100);
    ASSERT_FALSE(data.empty());
    KeptFrame failure = data.front();
    failure.say(message);
    failure.deliver(world.cluster, 0);
    for (KeptFrame& frame : data) frame.deliver(world.cluster, 0);
    world.cluster.run_for(kSecond / 100);
    for (const uint32_t r : {0u, 1u}) {
      EXPECT_EQ(world.call_status(r, 0), StatusCode::kPROTOCOL_ERROR) << world.call_text(r, 0);
      EXPECT_NE(world.call_text(r, 0).find("machine 1"), std::string::npos)
          << world.call_text(r, 0);
    }
  }
}

// Each answer would be kept until its receiver acknowledges it, which it need not.
TEST(JoinAgainAndAgain, OfAJobThatFailedIsAnsweredAsOftenAsADaemonAsks) {
  World world({1, 1});
  std::vector<KeptFrame> kept;
  size_t answers = 0;
  world.cluster.tap([&](uint32_t machine, const transport::Frame& frame) {
    if (machine == 0 && is_data(frame)) kept.emplace_back(frame);
    answers += machine == 1 && carries<scheduler::Failure>(frame);
  });
  ASSERT_NO_FATAL_FAILURE(run_step(world.cluster, world.tensors, 0));
  ASSERT_FALSE(kept.empty());
  KeptFrame& frame = kept.front();
  frame.say(scheduler::Failure{StatusCode::kRANK_LOST, "", scheduler::Scope::kCommunicator});
  frame.deliver(world.cluster, 0);
  for (int i = 0; i < 1000; ++i) {
    frame.say(scheduler::Join{});
    frame.deliver(world.cluster, 0);
  }
  world.cluster.run_for(kSecond / 10);
  EXPECT_EQ(answers, 1u);
}

TEST(HeartbeatOfAPeer, ThatNamesRanksOfOthersEndsTheJobByName) {
  World world({1, 1});
  std::vector<KeptFrame> kept;
  world.cluster.tap([&](uint32_t machine, const transport::Frame& frame) {
    if (machine == 0 && is_data(frame)) kept.emplace_back(frame);
  });
  ASSERT_NO_FATAL_FAILURE(run_step(world.cluster, world.tensors, 0));
  ASSERT_FALSE(kept.empty());
  wire::Writer beat;
  for (int value = 0; value < 5; ++value) beat.put<uint64_t>(0);
  // It waits for nobody, and rank 0 misses its step.
  for (const uint32_t word : {UINT32_MAX, 1u, 0u, 0u, 0u}) beat.put(word);
  KeptFrame& frame = kept.front();
  frame.header.type = wire::FrameType::kHeartbeat;
  frame.payload = beat.take();
  frame.deliver(world.cluster, 0);
  submit_step(world.cluster, world.tensors, 1);
  world.cluster.run_for(kSecond);
  EXPECT_EQ(world.step_status(0, 1), StatusCode::kPROTOCOL_ERROR) << world.step_text(0, 1);
  EXPECT_EQ(world.step_text(0, 1).find("machine 1"), 0u) << world.step_text(0, 1);
}

// Frames of what this machine has not come to, more or larger ones than anybody sends.
constexpr uint64_t kPlanBytesMax = 64 << 20;

ClusterOptions with_little_room() {
  ClusterOptions options;
  options.limits = [](uint32_t) { return scheduler::Limits{.plan_bytes = kPlanBytesMax}; };
  return options;
}

struct FarAhead : ::testing::Test {
  World world{{1, 1}, with_little_room()};
  std::vector<KeptFrame> kept;  // of data, from machine 1

  void SetUp() override {
    world.cluster.tap([this](uint32_t machine, const transport::Frame& frame) {
      if (machine == 0 && is_data(frame)) kept.emplace_back(frame);
    });
    ASSERT_NO_FATAL_FAILURE(run_step(world.cluster, world.tensors, 0));
    world.cluster.tap({});
    ASSERT_FALSE(kept.empty());
  }
  void expect_blame(const std::string& what, StatusCode code = StatusCode::kPROTOCOL_ERROR) {
    submit_step(world.cluster, world.tensors, 1);
    world.cluster.run_for(kSecond);
    EXPECT_EQ(world.step_status(0, 1), code) << world.step_text(0, 1);
    for (const std::string& part : {std::string("machine 1"), what}) {
      EXPECT_NE(world.step_text(0, 1).find(part), std::string::npos) << world.step_text(0, 1);
    }
  }
};

TEST_F(FarAhead, FramesWithoutPayloadEndTheJobByName) {
  KeptFrame frame = kept.front();
  frame.header.step = 1;
  frame.header.flags = 0;
  frame.payload.clear();
  for (frame.header.part = 0; frame.header.part < 100'000; ++frame.header.part) {
    frame.deliver(world.cluster, 0);
  }
  expect_blame("more frames ahead");
}

TEST_F(FarAhead, AFrameOfACallThatNoSlabHoldsEndsTheJobByName) {
  KeptFrame frame = kept.front();
  frame.header.step_kind = wire::StepKind::kCall;
  frame.header.step = 0;
  frame.payload.resize(512 * 1024);
  frame.deliver(world.cluster, 0);
  expect_blame("more of calls ahead");
}

TEST_F(FarAhead, MoreFramesOfACallThanSlabsAreReservedForEndTheJobByName) {
  KeptFrame frame = kept.front();
  frame.header.step_kind = wire::StepKind::kCall;
  frame.header.step = 0;
  for (frame.header.part = 0; frame.header.part < 4000; ++frame.header.part) {
    frame.deliver(world.cluster, 0);
  }
  expect_blame("more of calls ahead");
}

TEST_F(FarAhead, FramesOfTheNextTermCountInTheJobsShareOfMemory) {
  KeptFrame frame = kept.front();
  ++frame.header.term;
  frame.payload.resize(256 * 1024);
  const uint64_t frames = 2 * kPlanBytesMax / frame.payload.size();
  for (frame.header.part = 0; frame.header.part < frames; ++frame.header.part) {
    frame.deliver(world.cluster, 0);
  }
  expect_blame("limits.plan_bytes", StatusCode::kRESOURCE_EXHAUSTED);
}

struct UnrulyCommit : ::testing::Test {
  Cluster cluster{{.policy = raw_policy(), .planning_ns = [](uint32_t) { return kSecond / 10; }}};
  std::vector<KeptFrame> tables;  // of machine 1

  void SetUp() override {
    cluster.create();
    cluster.tap([this](uint32_t, const transport::Frame& frame) {
      if (carries<scheduler::Table>(frame)) tables.emplace_back(frame);
    });
  }
  void commit(uint32_t tensors) {
    for (const uint32_t r : {0u, 1u}) {
      cluster.rank(r).replies.erase(Cluster::kCommit);
      cluster.request_commit(r, tensors);
    }
  }
  void expect_commit() {
    for (const uint32_t r : {0u, 1u}) {
      const wire::Reply& reply = cluster.rank(r).replies[Cluster::kCommit];
      EXPECT_EQ(reply.code, StatusCode::kOK) << reply.message;
    }
  }
};

// It would be taken for the next commit's, before that comes.
TEST_F(UnrulyCommit, ATableThatComesAgainWhileItsPlanIsMadeIsIgnored) {
  commit(0);
  ASSERT_TRUE(cluster.run_until([&] { return tables.size() == 1; }, kSecond));
  tables[0].deliver(cluster, 0);
  cluster.run_for(kSecond);
  expect_commit();
  std::vector<Tensor> more = {{.name = "weight", .elements = 64, .shape = {}}};
  cluster.place(more);
  for (const uint32_t r : {0u, 1u}) cluster.register_on(r, more);
  commit(1);
  cluster.run_for(kSecond);
  expect_commit();
}

// It would count as not come, and everybody wait.
TEST_F(UnrulyCommit, ATableWithoutItsCountEndsTheJobByName) {
  change_on_the_way<scheduler::Table>(cluster, 0,
                                      [](scheduler::Table& table) { table.table.clear(); });
  commit(0);
  cluster.run_for(kSecond);
  for (const uint32_t r : {0u, 1u}) {
    const wire::Reply& reply = cluster.rank(r).replies[Cluster::kCommit];
    EXPECT_EQ(reply.code, StatusCode::kPROTOCOL_ERROR) << reply.message;
    for (const char* const part : {"machine 1", "without a count"}) {
      EXPECT_NE(reply.message.find(part), std::string::npos) << reply.message;
    }
  }
}

// It would be kept for as long as others commit, and nobody be charged for it.
TEST(TableOfAPeer, ThatFindsNoRoomEndsTheJobByName) {
  Cluster small(with_little_room());
  small.create();
  change_on_the_way<scheduler::Table>(
      small, 0, [](scheduler::Table& table) { table.table.resize(kPlanBytesMax - 1); });
  for (const uint32_t r : {0u, 1u}) small.request_commit(r, 0);
  small.run_for(kSecond);
  const wire::Reply& reply = small.rank(1).replies[Cluster::kCommit];
  EXPECT_EQ(reply.code, StatusCode::kRESOURCE_EXHAUSTED) << reply.message;
  EXPECT_NE(reply.message.find("the tensor table of machine 1"), std::string::npos)
      << reply.message;
}

TEST(LongControlMessage, BetweenMembersEndsTheJobByName) {
  World world({1, 1, 1});
  std::vector<KeptFrame> kept;
  world.cluster.tap([&](uint32_t machine, const transport::Frame& frame) {
    if (machine == 2 && header_of(frame).source == 1 && is_data(frame)) kept.emplace_back(frame);
  });
  ASSERT_NO_FATAL_FAILURE(run_step(world.cluster, world.tensors, 0));
  ASSERT_FALSE(kept.empty());
  kept[0].say(scheduler::Prepare{.plan = std::vector<std::byte>(1 << 20)});
  kept[0].deliver(world.cluster, 2);
  submit_step(world.cluster, world.tensors, 1);
  world.cluster.run_for(kSecond);
  EXPECT_EQ(world.step_status(2, 1), StatusCode::kPROTOCOL_ERROR) << world.step_text(2, 1);
  EXPECT_EQ(world.step_text(2, 1).find("machine 1"), 0u) << world.step_text(2, 1);
}

// It would be passed on and waited for, and the coordinator blamed in the end.
TEST(RumourOfAPlan, ThatNobodyHasPreparedEndsTheJobInTheNameOfItsSource) {
  World world({1, 1, 1});
  std::vector<KeptFrame> kept;  // of machine 1
  world.cluster.tap([&](uint32_t machine, const transport::Frame& frame) {
    if (machine == 2 && header_of(frame).source == 1 && is_data(frame)) kept.emplace_back(frame);
  });
  ASSERT_NO_FATAL_FAILURE(run_step(world.cluster, world.tensors, 0));
  ASSERT_FALSE(kept.empty());
  kept[0].header.next_epoch = uint64_t{1} << 60;
  kept[0].header.switch_step = 5;
  kept[0].deliver(world.cluster, 2);
  submit_step(world.cluster, world.tensors, 1);
  world.cluster.run_for(kSecond);
  for (const uint32_t r : {0u, 1u, 2u}) {
    EXPECT_EQ(world.step_status(r, 1), StatusCode::kPROTOCOL_ERROR) << world.step_text(r, 1);
    EXPECT_EQ(world.step_text(r, 1).find("machine 1"), 0u) << world.step_text(r, 1);
  }
}

// Policies that no daemon writes: codecs that nobody has, and parameters that no codec takes.
struct UnsoundPolicy : ::testing::TestWithParam<void (*)(scheduler::Policy&)> {
  static scheduler::Policy unsound() {
    scheduler::Policy policy = raw_policy();
    GetParam()(policy);
    return policy;
  }
};

INSTANTIATE_TEST_SUITE_P(
    Each, UnsoundPolicy,
    ::testing::Values([](scheduler::Policy& policy) { policy.rack_codec = {{.codec = 200}}; },
                      [](scheduler::Policy& policy) {
                        policy.ceilings = scheduler::CeilingPlanner::klayerwise;
                        policy.default_codec.codec = 200;
                      },
                      [](scheduler::Policy& policy) {
                        policy.ceilings = scheduler::CeilingPlanner::kgravac;
                        policy.default_codec.codec = 200;
                      },
                      [](scheduler::Policy& policy) {
                        policy.mode = scheduler::PlanMode::kAuto;
                        policy.default_codec = {.codec = 3, .bits = 4, .bucket = 512};
                        policy.menu = {{.codec = 3, .bits = 8, .bucket = 0}};
                      }));

// Machine 1 asks for policies in frames that it has sent before.
struct Asking {
  World world;
  std::vector<KeptFrame> kept;
  std::vector<scheduler::PolicyAnswerMessage> answers;

  explicit Asking(const ClusterOptions& options = {}) : world({1, 1}, options) {
    world.cluster.tap([this](uint32_t machine, const transport::Frame& frame) {
      if (machine == 0 && is_data(frame)) kept.emplace_back(frame);
      if (carries<scheduler::PolicyAnswerMessage>(frame)) {
        answers.push_back(message_of<scheduler::PolicyAnswerMessage>(frame));
      }
    });
    run_step(world.cluster, world.tensors, 0);
    EXPECT_FALSE(kept.empty());
  }
  void ask(const scheduler::Policy& policy, bool dry_run) {
    kept.at(0).say(scheduler::PolicyAsk{.ticket = ++tickets, .dry_run = dry_run, .policy = policy});
    kept[0].deliver(world.cluster, 0);
  }
  uint64_t tickets = 0;
};

TEST_P(UnsoundPolicy, OfAMemberIsRefused) {
  Asking member;
  for (const bool dry_run : {false, true}) member.ask(unsound(), dry_run);
  ASSERT_NO_FATAL_FAILURE(run_step(member.world.cluster, member.world.tensors, 1));
  expect_reference(member.world.cluster, member.world.tensors, member.world.shape, 1);
  ASSERT_EQ(member.answers.size(), 2u);
  for (const auto& answer : member.answers) EXPECT_EQ(answer.code, StatusCode::kINVALID_ARGUMENT);
}

// Each takes time where everybody's plans are made.
TEST(Policies, OfAMemberAreTriedAFewAtATime) {
  constexpr size_t kAsked = 100, kTried = 16;
  ClusterOptions options{.policy = raw_policy()};
  options.planning_ns = [](uint32_t) { return kSecond / 100; };
  Asking member(options);
  scheduler::Policy other = raw_policy();
  other.group_bytes *= 2;
  for (size_t i = 0; i < kAsked; ++i) member.ask(other, /*dry_run=*/true);
  member.world.cluster.run_for(3 * kSecond);
  ASSERT_EQ(member.answers.size(), kAsked);
  size_t busy = 0;
  for (const auto& answer : member.answers) busy += answer.code == StatusCode::kBUSY;
  EXPECT_EQ(busy, kAsked - kTried);
  ASSERT_NO_FATAL_FAILURE(run_step(member.world.cluster, member.world.tensors, 1));
}

// A plan that was prepared to be switched to is decided as if a commit had asked for it, which
// would make anew what operations use.
TEST(DecisionOfAPlan, ForACommitThatNobodyWaitsForEndsTheJobByName) {
  World world({1, 1});
  ASSERT_NO_FATAL_FAILURE(run_step(world.cluster, world.tensors, 0));
  change_on_the_way<scheduler::Decided>(world.cluster, 1, [](scheduler::Decided& decided) {
    decided.purpose = scheduler::PlanPurpose::kCommit;
  });
  ASSERT_TRUE(world.cluster.submit(1, 1, 0, world.tensors[0]).ok());
  scheduler::Policy other = raw_policy();
  other.group_bytes *= 2;
  world.cluster.engine(0).apply_policy({.job = "job", .policy = other},
                                       [](const Result<scheduler::PolicyChange>&) {});
  world.cluster.run_for(kSecond);
  submit_all(world.cluster, world.tensors, 0, 1);
  world.cluster.run_for(kSecond);
  EXPECT_EQ(world.step_status(0, 1), StatusCode::kPROTOCOL_ERROR);
  EXPECT_NE(world.step_text(0, 1).find("for that purpose"), std::string::npos)
      << world.step_text(0, 1);
}

// What the coordinator's operator is told of one whose groups are larger.
Status told_of_another_policy(World& world) {
  Status told;
  scheduler::Policy other = raw_policy();
  other.group_bytes *= 2;
  world.cluster.engine(0).apply_policy(
      {.job = "job", .policy = other},
      [&](const Result<scheduler::PolicyChange>& change) { told = change.status(); });
  world.cluster.run_for(kSecond);
  return told;
}

// A rack codec that no table knows, in a plan that is sound otherwise.
TEST(PlanOfACoordinator, WithACodecThatNobodyHasIsRefused) {
  World world({1, 1});
  change_on_the_way<scheduler::Prepare>(world.cluster, 1, [](scheduler::Prepare& prepare) {
    Result<scheduler::Plan> plan = scheduler::decode_plan(prepare.plan);
    ASSERT_TRUE(plan.ok());
    CodecSpec spec{.codec = 3, .bits = 4, .bucket = 512};
    spec.values = static_cast<SparseValues>(200);
    plan->groups[0].segments[0].rack_spec = spec;
    prepare.plan = scheduler::encode_plan(*plan);
  });
  const Status told = told_of_another_policy(world);
  EXPECT_EQ(told.code(), StatusCode::kINVALID_ARGUMENT) << told.message();
  EXPECT_NE(told.message().find("machine 1"), std::string::npos) << told.message();
}

// The plan itself is sound.
TEST_P(UnsoundPolicy, OfTheCoordinatorIsRefusedWithItsPlan) {
  World world({1, 1});
  change_on_the_way<scheduler::Prepare>(
      world.cluster, 1, [](scheduler::Prepare& prepare) { prepare.policy = unsound(); });
  const Status told = told_of_another_policy(world);
  EXPECT_EQ(told.code(), StatusCode::kINVALID_ARGUMENT);
  EXPECT_NE(told.message().find("machine 1"), std::string::npos) << told.message();
  ASSERT_NO_FATAL_FAILURE(run_step(world.cluster, world.tensors, 0));
  expect_reference(world.cluster, world.tensors, world.shape, 0);
}

TEST_P(UnsoundPolicy, OfTheCoordinatorsConfigurationEndsTheMeetingByName) {
  Cluster cluster({.policy = raw_policy()});
  change_on_the_way<scheduler::Joined>(
      cluster, 1, [](scheduler::Joined& joined) { joined.configured = unsound(); });
  cluster.create();
  const wire::Reply& reply = cluster.rank(1).replies[Cluster::kCreate];
  EXPECT_EQ(reply.code, StatusCode::kMISMATCH) << reply.message;
  EXPECT_NE(reply.message.find("machine 0"), std::string::npos) << reply.message;
}

}  // namespace
}  // namespace cgx::sim
