// What cgxd's site of a real cgxd-gpu makes for a plan, and what it refuses, before the plan runs.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <string>
#include <thread>

#include "scheduler/exchange/plan_facts.h"
#include "tests/gpu/worker_case.h"

namespace cgx::daemon::gpu {
namespace {

using namespace cgx::scheduler;

class WorkerPlans : public SitesTest {
 protected:
  void SetUp() override {
    SitesTest::SetUp();
    if (IsSkipped()) return;
    memory_.resize(kBegin + 4096);
    share();
  }
  void site_answered(Ticket ticket, const SiteAnswer& answer) override {
    answers_[ticket] = answer;
  }

  static PlanFacts facts_of(const char* codec) {
    PlanFacts facts;
    facts.plan.machines = 2;
    facts.made = std::make_shared<MadeMemory>();
    Group& group = facts.plan.groups.emplace_back();
    group.segments.push_back({0, kernels::parse_codec_spec(codec).value()});
    return facts;
  }
  Status prepare(const std::shared_ptr<Worker>& worker, const PlanFacts& facts) {
    const auto staging = std::make_shared<Staging>(worker);
    const WorkerSite site(worker, staging, std::make_shared<SlabStore>(kSlabBytes, staging),
                          arenas_, [](uint64_t) {});
    return site.preparer()(facts);
  }

  // Of tensors of a few elements each, which lie in one another.
  std::unique_ptr<Play> begin(uint32_t tensors, uint32_t ranks, const char* codec = "fp32") {
    TensorTable table;
    Group group;
    for (uint32_t i = 0; i < tensors; ++i) {
      table.push_back({.name = "t" + std::to_string(i), .dtype = DType::kF32, .elements = 8});
      group.segments.push_back({i, kernels::parse_codec_spec(codec).value()});
    }
    auto made = play_of(std::move(table), std::move(group));
    for (uint32_t i = 0; i < tensors; ++i) {
      LocalSegment& segment = made->setup.segments.emplace_back();
      segment.inputs.assign(ranks, Place{device_arena_, kBegin});
      segment.outputs = segment.inputs;
    }
    made->work = there_->begin(made->setup);
    made->into = staged_->take(in_use_, false);
    return made;
  }
  SiteAnswer ask_reduce(Play& of) {
    const SiteContribution from[] = {{.own_ranks = true}};
    const SiteJob job{.kind = SiteJobKind::kReduce,
                      .part = of.layout.shard(1).first,
                      .presence = &of.all,
                      .from = from,
                      .into = of.into};
    const Ticket asked = ++tickets_;
    of.work->ask(asked, job);
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    for (uint64_t now = 1; answers_.count(asked) == 0; ++now) {
      if (std::chrono::steady_clock::now() >= until) return {internal_error("no answer")};
      there_->poll(*this, now);
      std::this_thread::yield();
    }
    return answers_.at(asked);
  }

  // That the worker has when it has heard all that was said to it.
  int staging_blocks() {
    EXPECT_TRUE(worker_->make_residual(16).ok());
    const std::string name = worker_->name(), begin = "(process ";
    const int process = std::stoi(name.substr(name.find(begin) + begin.size()));
    std::ifstream maps("/proc/" + std::to_string(process) + "/maps");
    int blocks = 0;
    for (std::string line; std::getline(maps, line);) {
      blocks += line.find("cgx-gpu-staging") != std::string::npos ? 1 : 0;
    }
    return blocks;
  }

  std::map<Ticket, SiteAnswer> answers_;
};

// What was refused is no slab, and the next plan asks again.
TEST_F(WorkerPlans, StagingMemoryThatCannotBePinnedIsRefusedByName) {
  if (std::getenv("CGX_STANDIN") == nullptr) GTEST_SKIP() << "a real driver pins what it can";
  const auto worker = start_with(" fail=cuMemHostRegister:1=2 fail=cuMemHostRegister:2=801");
  const auto store = std::make_shared<SlabStore>(kSlabBytes, std::make_shared<Staging>(worker));
  const auto refused = SlabStore::promise(store, 2);
  EXPECT_EQ(refused.status().code(), StatusCode::kRESOURCE_EXHAUSTED);
  EXPECT_NE(refused.status().message().find(
                "pinning 524288 bytes of staging memory: CUDA_ERROR_OUT_OF_MEMORY"),
            std::string::npos)
      << refused.status().to_string();
  EXPECT_FALSE(store->reserve(1).ok()) << "nobody was promised any";
  const auto promised = SlabStore::promise(store, 2);
  ASSERT_TRUE(promised.ok()) << promised.status().to_string();
  ASSERT_TRUE(store->reserve(2).ok());
  const auto more = SlabStore::promise(store, 1);
  EXPECT_EQ(more.status().code(), StatusCode::kRESOURCE_EXHAUSTED) << more.status().to_string();
  EXPECT_NE(store->take(in_use_, false), kNoSlab);
  EXPECT_NE(store->take(in_use_, false), kNoSlab);
  EXPECT_EQ(store->take(in_use_, false), kNoSlab);
}

TEST_F(WorkerPlans, APlanWhoseStagingMemoryCannotBePinnedIsRefused) {
  if (std::getenv("CGX_STANDIN") == nullptr) GTEST_SKIP() << "a real driver pins what it can";
  PlanFacts facts = facts_of("fp32");
  facts.slabs = {.received = 2, .own = 1};
  const Status refused = prepare(start_with(" fail=cuMemHostRegister:*=2"), facts);
  EXPECT_EQ(refused.code(), StatusCode::kRESOURCE_EXHAUSTED) << refused.to_string();
  EXPECT_EQ(facts.made->frames, nullptr);
  const Status prepared = prepare(worker_, facts);
  EXPECT_TRUE(prepared.ok()) << prepared.to_string();
  EXPECT_NE(facts.made->frames, nullptr);
}

// Of its store, which goes while the worker stays; those of the next one have other numbers.
TEST_F(WorkerPlans, StagingMemoryThatGoesIsUnpinned) {
  const int before = staging_blocks();
  const auto other = [&] {
    const auto store = std::make_shared<SlabStore>(kSlabBytes, std::make_shared<Staging>(worker_));
    EXPECT_TRUE(SlabStore::promise(store, 1).ok());
    return store;
  };
  auto first = other(), second = other();
  EXPECT_EQ(staging_blocks(), before + 2);
  first.reset();
  EXPECT_EQ(staging_blocks(), before + 1);
  ASSERT_NO_FATAL_FAILURE(reserve_staged(1));
  EXPECT_EQ(staging_blocks(), before + 2);
  second.reset();
  EXPECT_EQ(staging_blocks(), before + 1) << "that of the site";
  const SiteAnswer answer = ask_reduce(*begin(100, 1));
  EXPECT_TRUE(answer.status.ok()) << answer.status.to_string();
}

// A driver waits for all streams to load them, and may compile them first.
TEST_F(WorkerPlans, KernelsOfAPlanAreLoadedBeforeItRuns) {
  if (std::getenv("CGX_STANDIN") == nullptr) GTEST_SKIP() << "a real driver loads them";
  for (const auto& [codec, family] :
       {std::pair{"maxmin:4", "maxmin"}, std::pair{"signsgd", "sign"}, std::pair{"int8", "symm"}}) {
    const Status status = prepare(start_with(" fail=cuModuleLoadData:2=209"), facts_of(codec));
    EXPECT_NE(status.message().find(std::string("loading the kernels of ") + family),
              std::string::npos)
        << status.to_string();
    const Status none_besides =
        prepare(start_with(" fail=cuModuleLoadData:3=209"), facts_of(codec));
    EXPECT_TRUE(none_besides.ok()) << none_besides.to_string();
  }
  const Status raw = prepare(start_with(" fail=cuModuleLoadData:2=209"), facts_of("fp32"));
  EXPECT_TRUE(raw.ok()) << raw.to_string();
}

// Of one part, with so many ranks: it says so before the plan runs, or does it.
TEST_F(WorkerPlans, AJobThatIsTooMuchAtOnceIsRefusedBeforeTheStep) {
  ASSERT_NO_FATAL_FAILURE(reserve_staged(8));
  constexpr uint32_t kTensors = 8000;
  int refused = 0, done = 0;
  for (const uint32_t ranks : {1u, 4u, 6u, 7u, 8u, 9u, 10u, 12u, 16u}) {
    const auto play = begin(kTensors, ranks);
    const uint32_t part = play->layout.shard(1).first;
    const JobNeeds needs = job_needs(play->group, play->layout, 2);
    EXPECT_GE(needs.slices, play->layout.slices(play->layout.part(part)).size());
    const Status taken = there_->fits(JobLists{needs.slices, ranks, 2});
    const SiteAnswer answer = ask_reduce(*play);
    if (taken.ok()) {
      EXPECT_TRUE(answer.status.ok()) << ranks << " ranks: " << answer.status.to_string();
    } else {
      EXPECT_EQ(taken.code(), StatusCode::kRESOURCE_EXHAUSTED);
      EXPECT_NE(taken.message().find(" bytes of places"), std::string::npos) << taken.to_string();
    }
    ++(taken.ok() ? done : refused);
    const bool too_much = answer.status.code() == StatusCode::kRESOURCE_EXHAUSTED;
    EXPECT_TRUE(too_much || ranks < 16) << "then the rest of this has shown nothing";
    staged_->release(play->into);
  }
  EXPECT_GT(done, 0);
  EXPECT_GT(refused, 0);
}

}  // namespace
}  // namespace cgx::daemon::gpu
