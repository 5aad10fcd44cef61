// The recorder tells the story of a run: what happened on each machine, in order and when.
#include <algorithm>
#include <array>

#include "tests/sim/world.h"

namespace cgx::sim {
namespace {

using scheduler::Event;
using scheduler::EventKind;

// "encode step 0 group 1 peer 0 a 20 b 0"
std::string text_of(const Event& event) {
  const scheduler::EventRow& row = scheduler::event_row(event.kind);
  std::string text = row.name;
  const std::string where = row.where, peer = row.peer;
  const bool of_call = event.group == Event::kCall;
  if (!where.empty()) text += (of_call ? " call " : " step ") + std::to_string(event.step);
  if (where == "operation" && !of_call) text += " group " + std::to_string(event.group);
  if (!peer.empty()) text += " " + peer + " " + std::to_string(event.peer);
  if (*row.a != 0) text += std::string(" ") + row.a + " " + std::to_string(event.a);
  if (*row.b != 0) text += std::string(" ") + row.b + " " + std::to_string(event.b);
  return text;
}

std::vector<std::string> texts_of(const std::vector<Event>& events) {
  std::vector<std::string> texts;
  std::transform(events.begin(), events.end(), std::back_inserter(texts), text_of);
  return texts;
}

ClusterOptions recording() {
  ClusterOptions options;
  options.recorded_events = 1024;
  return options;
}

// One tensor that is scattered, and a call that is gathered.
struct SmallWorld {
  Cluster cluster;
  std::vector<Tensor> tensors = {{.name = "weight", .elements = 2000, .shape = {}}};

  SmallWorld()
      : cluster([] {
          ClusterOptions options = recording();
          options.policy = raw_policy();
          options.policy.collective = scheduler::CollectiveWish::kScatter;
          return options;
        }()) {
    cluster.create();
    cluster.commit(tensors);
  }
};

TEST(Events, OfASmallProgramAreExactlyThese) {
  SmallWorld world;
  run_step(world.cluster, world.tensors, 0);
  for (uint32_t rank = 0; rank < 2; ++rank) {
    ASSERT_TRUE(world.cluster.call(rank, 0, DType::kF32, ReduceOp::kSum, 4, 0).ok());
  }
  world.cluster.run_for(kSecond / 10);
  std::vector<Event> events = world.cluster.recorded(0);
  // Two of the tensor's buckets are each machine's. How long it took is looked at below.
  for (Event& event : events) {
    if (event.kind == EventKind::kcompleted) event.b = 0;
  }
  EXPECT_EQ(texts_of(events), (std::vector<std::string>{
                                  "made ranks 2 machines 2",
                                  "link_up machine 1",
                                  "ready",
                                  "switched step 0 groups 1 epoch 1",
                                  "arrival step 0 group 0 rank 0 tensor 0 bytes 8000",
                                  "ended step 0 rank 0",
                                  "begun step 0 group 0 tensors 1",
                                  "encode step 0 group 0 bytes 3904 ns 0",
                                  "sent step 0 group 0 machine 1 bytes 3904 part 1",
                                  "received step 0 group 0 machine 1 bytes 4096 part 0",
                                  "reduce step 0 group 0 bytes 4096 ns 0",
                                  "sent step 0 group 0 machine 1 bytes 4096 part 0",
                                  "received step 0 group 0 machine 1 bytes 3904 part 1",
                                  "decode step 0 group 0 machine 1 bytes 3904 ns 0",
                                  "completed step 0 group 0 rank 0 tensor 0 ns 0",
                                  "step_completed step 0 epoch 1",
                                  "arrival call 0 rank 0 tensor 0 bytes 16",
                                  "begun call 0 tensors 1",
                                  "encode call 0 bytes 16 ns 0",
                                  "sent call 0 machine 1 bytes 128 part 0",
                                  "received call 0 machine 1 bytes 128 part 0",
                                  "combine call 0 bytes 16 ns 0",
                                  "completed call 0 rank 0 tensor 0 ns 0",
                              }));
}

TEST(Events, SayWhenTheyWere) {
  SmallWorld world;
  run_step(world.cluster, world.tensors, 0);
  const std::vector<Event> events = world.cluster.recorded(0);
  const auto when = [&](EventKind kind) {
    const auto found = std::find_if(events.begin(), events.end(),
                                    [kind](const Event& event) { return event.kind == kind; });
    return found == events.end() ? 0 : found->time_ns;
  };
  EXPECT_GT(when(EventKind::karrival), when(EventKind::kready));
  EXPECT_GE(when(EventKind::kreceived), when(EventKind::ksent) + 20'000) << "one way";
  EXPECT_GE(when(EventKind::kdecode), when(EventKind::ksent) + 40'000) << "there and back";
  EXPECT_EQ(when(EventKind::kcompleted), when(EventKind::kdecode));
  const auto earlier = [](const Event& a, const Event& b) { return a.time_ns < b.time_ns; };
  EXPECT_TRUE(std::is_sorted(events.begin(), events.end(), earlier));
  const auto completed = std::find_if(events.begin(), events.end(), [](const Event& event) {
    return event.kind == EventKind::kcompleted;
  });
  EXPECT_EQ(completed->b, completed->time_ns - when(EventKind::kbegun));
}

// Per step and group, whatever the codecs, ranks and machines.
TEST(Events, OfEachOperationComeInOrder) {
  ClusterOptions options = recording();
  options.recorded_events = 8192;
  World world({2, 1, 2}, options, /*raw=*/false);
  constexpr uint32_t kSteps = 4;
  for (uint64_t step = 0; step < kSteps; ++step) run_step(world.cluster, world.tensors, step);
  for (uint32_t machine = 0; machine < 3; ++machine) {
    std::array<std::vector<EventKind>, kSteps> story;
    std::array<uint32_t, kSteps> arrivals{}, completions{};
    for (const Event& event : world.cluster.recorded(machine)) {
      if (std::string(scheduler::event_row(event.kind).where) != "operation") continue;
      story[event.step].push_back(event.kind);
      arrivals[event.step] += event.kind == EventKind::karrival;
      completions[event.step] += event.kind == EventKind::kcompleted;
    }
    for (uint32_t step = 0; step < kSteps; ++step) {
      const std::vector<EventKind>& told = story[step];
      const auto first = [&](EventKind kind) {
        return std::find(told.begin(), told.end(), kind) - told.begin();
      };
      const auto said = static_cast<uint32_t>(world.shape[machine] * world.tensors.size());
      EXPECT_EQ(arrivals[step], said);
      EXPECT_EQ(completions[step], said);
      EXPECT_LT(first(EventKind::karrival), first(EventKind::kbegun));
      EXPECT_LT(first(EventKind::kbegun), first(EventKind::kencode));
      EXPECT_LT(first(EventKind::kencode), first(EventKind::ksent));
      EXPECT_LT(first(EventKind::ksent), first(EventKind::kcompleted));
      EXPECT_LT(first(EventKind::kreceived), first(EventKind::kcompleted));
      EXPECT_EQ(told.back(), EventKind::kcompleted);
    }
  }
}

std::vector<std::string> bad_news(const std::vector<Event>& events) {
  constexpr EventKind kBad[] = {EventKind::kfailed, EventKind::kterm, EventKind::klate,
                                EventKind::klink_lost, EventKind::kclosed};
  std::vector<std::string> texts;
  for (const Event& event : events) {
    if (std::find(std::begin(kBad), std::end(kBad), event.kind) != std::end(kBad)) {
      texts.push_back(text_of(event));
    }
  }
  return texts;
}

std::string number(StatusCode code) {
  return std::to_string(static_cast<uint32_t>(code));
}

TEST(Events, TellAFailureItsTermAndTheEnd) {
  World world({1, 1}, recording());
  run_step(world.cluster, world.tensors, 0);
  world.abandon(0, 1);
  world.cluster.run_for(kSecond);
  world.cluster.cut_link(0, 1);
  world.cluster.run_for(kSecond);
  world.cluster.kill_rank(0);
  world.cluster.run_for(kSecond);
  EXPECT_EQ(bad_news(world.cluster.recorded(0)),
            (std::vector<std::string>{
                "failed status " + number(StatusCode::kSTEP_ABANDONED) + " permanent 0",
                "term step 1 term 1",
                "link_lost machine 1 status " + number(StatusCode::kPEER_LOST),
                "failed status " + number(StatusCode::kPEER_LOST) + " permanent 1",
                "closed",
            }));
}

TEST(Events, NameALateRank) {
  ClusterOptions options = recording();
  options.timeouts.late_warning_ns = kSecond;
  World world({1, 1}, options);
  fill(world.cluster, world.tensors, 0);
  submit_all(world.cluster, world.tensors, 0, 0);
  world.cluster.run_for(7 * kSecond / 4);
  const std::vector<Event> events = world.cluster.recorded(0);
  ASSERT_EQ(events.back().kind, EventKind::klate);
  EXPECT_EQ(events.back().peer, 1u);
  EXPECT_NEAR(static_cast<double>(events.back().b), 1.25e9, 0.3e9);
}

TEST(Events, SayWhichCommunicatorTheyAreOf) {
  World world({1, 1}, recording());
  const auto index = [&] { return world.cluster.engine(0).snapshot(0).communicators.at(0).index; };
  EXPECT_EQ(index(), 1u);
  for (uint32_t rank = 0; rank < 2; ++rank) world.cluster.close_communicator(rank);
  world.cluster.run_for(kSecond);
  world.cluster.create();
  EXPECT_EQ(index(), 2u);
  EXPECT_EQ(world.cluster.recorded(0).back().communicator, 2u);
}

// Nothing is recorded and no clock is read.
TEST(Events, NeedNoRecorder) {
  World world({1, 1});
  run_step(world.cluster, world.tensors, 0);
  expect_reference(world.cluster, world.tensors, world.shape, 0);
}

}  // namespace
}  // namespace cgx::sim
