// What comes within a rack with a codec of its own is decoded into memory that came with the plan,
// whichever of a machine's threads does it: no job allocates.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "daemon/data/pooled_site.h"
#include "scheduler/exchange/host_site.h"
#include "scheduler/exchange/prepared_plan.h"
#include "scheduler/planners/plan_question.h"
#include "tests/allocations.h"

#ifdef CGX_COUNTS_ALLOCATIONS
namespace cgx::daemon {
namespace {

using namespace scheduler;  // NOLINT(google-build-using-namespace)

constexpr uint64_t kMachines = 4, kElements = kMachines * 48 * 512, kNow = 1'000'000'000;
constexpr CodecSpec kRaw{.codec = 0, .bucket = 512};
constexpr CodecSpec kFourBits{.codec = 3, .bits = 4, .bucket = 512};
constexpr CodecSpec kEightBits{.codec = 3, .bits = 8, .bucket = 512};

// Machine 0 of two racks of two, where a sum of its own shard is made.
class RackValues : public ::testing::TestWithParam<bool>, public SiteEvents {
 protected:
  RackValues() : values_(kElements), pool_(slabs_), other_(kernels::best_lane(), arenas_, *slabs_) {
    for (uint64_t i = 0; i < kElements; ++i) {
      values_[i] = static_cast<float>(i * 2654435761u % 8191) / 64.0f - 64.0f;
    }
    arena_ = arenas_.add(std::as_writable_bytes(std::span(values_)));
    auto host = std::make_unique<HostSite>(kernels::best_lane(), arenas_, *slabs_);
    if (!GetParam()) {
      site_ = std::move(host);
      return;
    }
    std::unique_ptr<Site> twin = host->twin();
    site_ = std::make_unique<PooledSite>(std::move(host), std::move(twin));
    site_->poll(*this, kNow);
  }

  void site_answered(Ticket, const SiteAnswer& answer) override { answer_ = answer; }

  // The plan is prepared; what is left to do is done in each step.
  OperationSetup prepare(std::optional<CodecSpec> rack_codec) {
    PlanQuestion question{.table = table_, .order = {0}, .machines = kMachines};
    question.policy.default_codec = kFourBits;
    question.policy.collective = CollectiveWish::kTwoLevel;
    question.policy.rack_machines = 2;
    question.policy.rack_codec = rack_codec;
    question.slab_bytes = pool_.slab_bytes();
    question.decoded_pieces = site_->decoded_pieces();
    question.bytes_free = UINT64_MAX;
    const Result<FactsPtr> facts = make_facts(question);
    EXPECT_TRUE(facts.ok()) << facts.status().to_string();
    const PreparedPlan& plan =
        **plans_.emplace_back(PreparedPlan::create(*facts, pool_, 0, UINT64_MAX));
    OperationSetup setup{.layout = &plan.layouts[0],
                         .group = &plan.plan.groups[0],
                         .table = table_.get(),
                         .decoded = &plan.decoded};
    setup.machines = kMachines;
    LocalSegment& segment = setup.segments.emplace_back();
    segment.inputs = segment.outputs = {Place{arena_, 0}};
    return setup;
  }

  // What another machine sends.
  FrameBytes frame_of(const OperationSetup& setup, bool in_rack) {
    const SlabId slab = pool_.take_for_own();
    const auto answer = other_.begin(setup)->ask(1, {.kind = SiteJobKind::kEncode,
                                                     .part = setup.layout->shard(0).first,
                                                     .presence = &all_,
                                                     .in_rack = in_rack,
                                                     .into = slab});
    return {.slab = slab, .length = answer->bytes};
  }
  // In the transport's hand, where it may begin anywhere.
  FrameBytes live(const FrameBytes& frame) {
    hand_.resize(13 + frame.length);
    std::ranges::copy(slabs_->bytes(frame.slab).first(frame.length), hand_.begin() + 13);
    return {.length = frame.length, .live = hand_.data() + 13};
  }

  struct Reduced {
    std::vector<std::byte> bytes;
    uint64_t allocations = 0;
  };
  Reduced reduce(const OperationSetup& setup, const FrameBytes& near, const FrameBytes& far) {
    const auto work = site_->begin(setup);
    const SiteContribution from[] = {{.own_ranks = true, .frame = {}},
                                     {.in_rack = true, .frame = near, .presence = &all_},
                                     {.frame = far, .presence = &all_}};
    const SlabId slab = pool_.take_for_own();
    answer_.reset();
    const uint64_t before = allocations.load();
    answer_ = work->ask(1, {.kind = SiteJobKind::kReduce,
                            .part = setup.layout->shard(0).first,
                            .presence = &all_,
                            .from = from,
                            .results = false,
                            .into = slab});
    while (!answer_) site_->poll(*this, kNow);  // no time passes: nothing is taken back
    Reduced reduced{.bytes = {}, .allocations = allocations.load() - before};
    EXPECT_TRUE(answer_->status.ok()) << answer_->status.to_string();
    const auto bytes = slabs_->bytes(slab).first(answer_->bytes);
    reduced.bytes.assign(bytes.begin(), bytes.end());
    pool_.release(slab);
    return reduced;
  }

  const std::shared_ptr<const TensorTable> table_ = std::make_shared<const TensorTable>(
      TensorTable{{.name = "weight", .elements = kElements, .shape = {kElements / 512, 512}}});
  std::vector<float> values_;
  ArenaTable arenas_;
  ArenaId arena_;
  std::shared_ptr<SlabStore> slabs_ = std::make_shared<SlabStore>(256 * 1024);
  BufferPool pool_;
  HostSite other_;
  std::unique_ptr<Site> site_;
  std::vector<Result<std::shared_ptr<const PreparedPlan>>> plans_;
  Presence all_{1, true};
  std::vector<std::byte> hand_;
  std::optional<SiteAnswer> answer_;
};

TEST_P(RackValues, AreDecodedWithoutAnAllocation) {
  const OperationSetup before = prepare({});
  const FrameBytes far = frame_of(before, false);
  // Jobs on each thread, of a plan without a codec of racks: lists of contributions are there.
  for (const FrameBytes& near : {far, far, live(far)}) reduce(before, near, far);
  for (const CodecSpec& rack_codec : {kEightBits, kRaw}) {
    const OperationSetup setup = prepare(rack_codec);
    const FrameBytes near = frame_of(setup, true);
    const Reduced held = reduce(setup, near, far), at_once = reduce(setup, live(near), far);
    EXPECT_EQ(held.allocations, 0u) << kernels::to_string(rack_codec);
    EXPECT_EQ(at_once.allocations, 0u) << kernels::to_string(rack_codec);
    EXPECT_EQ(held.bytes, at_once.bytes) << "an uncompressed frame may begin anywhere";
  }
  if (GetParam()) {
    EXPECT_EQ(static_cast<PooledSite&>(*site_).given(), 4u) << "the other three began in a hand";
  }
}

INSTANTIATE_TEST_SUITE_P(Of, RackValues, ::testing::Bool(), [](const auto& info) {
  return std::string(info.param ? "TwoThreads" : "OneThread");
});

}  // namespace
}  // namespace cgx::daemon
#endif
