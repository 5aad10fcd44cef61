// One operation with a peer that says what it likes: every frame is used, ignored or refused by
// name.
#include "scheduler/exchange/operation.h"

#include <gtest/gtest.h>

#include <cstring>

#include "scheduler/exchange/host_site.h"
#include "scheduler/exchange/operations.h"
#include "scheduler/plan/way.h"
#include "tests/allocations.h"
#include "tests/scheduler/exchange/every_codec.h"

namespace cgx::scheduler {
namespace {

constexpr uint64_t kElements = 600'000;
constexpr CodecSpec kRaw{.codec = 0, .bucket = 512};

struct Sent {
  PartFrame frame;
  std::vector<std::byte> payload;
};

// Two machines' view of one group with one local rank each; what is sent is kept.
class Machine final : public OperationPort {
 public:
  Machine(uint32_t machine, const CodecSpec& spec, Collective collective, bool present = true)
      : slabs_(std::make_shared<SlabStore>(256 * 1024)),
        pool_(slabs_),
        values_(kElements + 3, static_cast<float>(machine + 1)),
        site_(kernels::best_lane(), arenas_, *slabs_) {
    EXPECT_TRUE(pool_.reserve({.received = 32, .own = 32}).ok());
    table_ = {{.name = "weight", .elements = kElements}, {.name = "bias", .elements = 3}};
    group_.segments = {{0, spec}, {1, kRaw}};
    const Setting setting{machine, 2, {.collective = collective, .ahead = gather_parts(2)}};
    layout_ = GroupLayout::create(group_, table_, Schedule::shards(setting), {});
    schedule_ = Schedule::create(setting, layout_);
    OperationSetup setup{
        .layout = &layout_, .schedule = &schedule_, .group = &group_, .table = &table_};
    setup.machine = machine;
    setup.machines = 2;
    setup.segments.resize(2);
    const ArenaId arena = arenas_.add(std::as_writable_bytes(std::span(values_)));
    for (LocalSegment& segment : setup.segments) {
      const uint64_t first = &segment == &setup.segments[0] ? 0 : kElements;
      const Place memory{arena, first * sizeof(float)};
      if (present || &segment == &setup.segments[1]) segment.inputs.push_back(memory);
      segment.outputs.push_back(memory);
    }
    began_ = setup;
    segments_ = std::exchange(began_.segments, {});
    operations_.begin(std::move(setup), site_, pool_, *this, 1);
  }

  // What follows a step: the next one, of the same tensors.
  void begin_again() {
    operations_.retire(operations_.take_complete());
    OperationSetup next = began_;
    next.segments = operations_.spare_segments(0);
    for (size_t i = 0; i < next.segments.size(); ++i) {
      next.segments[i].clear();
      for (const Place& each : segments_[i].inputs) next.segments[i].inputs.push_back(each);
      for (const Place& each : segments_[i].outputs) next.segments[i].outputs.push_back(each);
    }
    operations_.begin(std::move(next), site_, pool_, *this, 1);
  }

  void send_part(const Operation&, const PartFrame& frame) override {
    const auto payload = pool_.bytes(frame.slab).first(frame.length);
    sent.push_back({frame, {payload.begin(), payload.end()}});
    pool_.release(frame.slab);
  }
  void count(Counter, uint64_t) override {}
  void record(Event) override {}
  uint64_t fine_ns() override { return 0; }
  Ticket new_ticket() override { return 1; }
  void expect(Ticket, Operation&) override { FAIL() << "an inline site answers at once"; }

  void work() {
    Result<bool> worked = true;
    while (worked.ok() && *worked) worked = operation().advance(2);
    EXPECT_TRUE(worked.ok()) << worked.status().to_string();
  }
  Status receive(const Sent& from) {
    wire::FrameHeader header;
    header.source = 1 - from.frame.machine;
    header.round = from.frame.round;
    header.part = from.frame.part;
    if (from.frame.bitmap) header.flags |= wire::FrameHeader::kBitmap;
    return operation().receive(header, from.payload, 3);
  }
  Operation& operation() const { return *operations_.open().front(); }
  bool complete() const { return operation().state() == Operation::State::kComplete; }
  float value(uint64_t i) const { return values_[i]; }
  const GroupLayout& layout() const { return layout_; }

  std::vector<Sent> sent;

 private:
  std::shared_ptr<SlabStore> slabs_;
  BufferPool pool_;
  ArenaTable arenas_;
  TensorTable table_;
  Group group_;
  GroupLayout layout_;
  Schedule schedule_;
  std::vector<float> values_;
  HostSite site_;
  OperationSetup began_;  // without its segments
  std::vector<LocalSegment> segments_;
  Operations operations_;
};

bool refused(const Status& status, const char* part) {
  return status.code() == StatusCode::kPROTOCOL_ERROR &&
         status.message().find(part) != std::string::npos;
}

#ifdef CGX_COUNTS_ALLOCATIONS
TEST(Operations, AllocateNothingOnceOneOfTheirGroupHasBeen) {
  Machine ours(0, kRaw, Collective::kScatter), theirs(1, kRaw, Collective::kScatter);
  const auto exchange = [&] {
    size_t heard[2] = {0, 0};
    ours.sent.clear();
    theirs.sent.clear();
    for (int i = 0; i < 1000 && !(ours.complete() && theirs.complete()); ++i) {
      ours.work();
      theirs.work();
      for (; heard[0] < theirs.sent.size(); ++heard[0]) {
        ASSERT_TRUE(ours.receive(theirs.sent[heard[0]]).ok());
      }
      for (; heard[1] < ours.sent.size(); ++heard[1]) {
        ASSERT_TRUE(theirs.receive(ours.sent[heard[1]]).ok());
      }
    }
    ASSERT_TRUE(ours.complete() && theirs.complete());
  };
  exchange();
  const float first = ours.value(kElements / 2);
  for (int i = 0; i < 4; ++i) {
    const uint64_t before = allocations.load();
    ours.begin_again();
    theirs.begin_again();
    const uint64_t made = allocations.load() - before;
    EXPECT_TRUE(i == 0 || made == 0) << made;  // the first makes the list of lenders
    exchange();
  }
  EXPECT_EQ(ours.value(kElements / 2), 16 * first);
}
#endif

TEST(Allgather, KeepsAWindowOfOwnPartsAndGoesOnAsTheyAreCombined) {
  Machine ours(0, kRaw, Collective::kAllgather), theirs(1, kRaw, Collective::kAllgather);
  const uint32_t parts = ours.layout().parts(), window = gather_parts(2);
  ASSERT_GT(parts, window);
  ours.work();
  EXPECT_EQ(ours.sent.size(), window);
  for (uint32_t i = 0; i < parts; ++i) {
    ours.work();
    theirs.work();
    ASSERT_GT(ours.sent.size(), i);
    ASSERT_GT(theirs.sent.size(), i);
    EXPECT_EQ(ours.sent[i].frame.part, i);
    ASSERT_TRUE(ours.receive(theirs.sent[i]).ok());
    ASSERT_TRUE(theirs.receive(ours.sent[i]).ok());
  }
  EXPECT_TRUE(ours.complete() && theirs.complete());
  for (uint64_t i : {uint64_t{0}, kElements / 2, kElements - 1}) {
    EXPECT_EQ(ours.value(i), 3.0f);
    EXPECT_EQ(theirs.value(i), 3.0f);
  }
}

TEST(Allgather, EncodesItsOwnPartBeforeAnEarlyFrameOverwritesIt) {
  Machine ours(0, kRaw, Collective::kAllgather), theirs(1, kRaw, Collective::kAllgather);
  theirs.work();
  for (uint32_t i = 0; i < theirs.sent.size(); ++i) {
    ASSERT_TRUE(ours.receive(theirs.sent[i]).ok());
    ASSERT_EQ(ours.sent.size(), i + 1) << "the answer went out at once";
    float first = 0;
    std::memcpy(&first, ours.sent[i].payload.data(), sizeof(first));
    EXPECT_EQ(first, 1.0f) << "what was sent is the input, not the result";
  }
}

TEST(Allgather, IgnoresADuplicateAndRefusesWhatNobodyAskedFor) {
  Machine ours(0, kRaw, Collective::kAllgather), theirs(1, kRaw, Collective::kAllgather);
  theirs.work();
  ASSERT_TRUE(ours.receive(theirs.sent[0]).ok());
  ASSERT_TRUE(ours.receive(theirs.sent[0]).ok());
  for (const uint8_t round : {0, 2, 255}) {
    Sent later = theirs.sent[1];
    later.frame.round = round;
    EXPECT_TRUE(refused(ours.receive(later), "was not expected"));
  }
  Sent beyond = theirs.sent[1];
  beyond.frame.part = ours.layout().parts();
  EXPECT_TRUE(refused(ours.receive(beyond), "was not expected"));
}

TEST(Allgather, RefusesAMachineThatChangesItsMindAboutWhatItHas) {
  Machine ours(0, kRaw, Collective::kAllgather), theirs(1, kRaw, Collective::kAllgather);
  Machine without(1, kRaw, Collective::kAllgather, /*present=*/false);
  theirs.work();
  without.work();
  ASSERT_TRUE(ours.receive(theirs.sent[0]).ok());
  EXPECT_TRUE(refused(ours.receive(without.sent[1]), "says differently in two frames"));
}

class EveryCollective : public ::testing::TestWithParam<Collective> {};

// Bytes cut off, added or changed: a refusal or a result, never a step outside the frame.
TEST_P(EveryCollective, RefusesFramesOfAnotherSizeByNameWhateverTheCodec) {
  for (const CodecSpec& spec : every_codec()) {
    Machine theirs(1, spec, GetParam());
    theirs.work();
    ASSERT_FALSE(theirs.sent.empty());
    const Sent good = theirs.sent[0];
    for (const size_t size : {size_t{0}, size_t{64}, good.payload.size() - 64,
                              good.payload.size() + 64, good.payload.size() + 8}) {
      Machine ours(0, spec, GetParam());
      Sent bad = good;
      bad.payload.resize(size);
      const Status status = ours.receive(bad);
      EXPECT_TRUE(refused(status, "frame of machine 1"))
          << kernels::to_string(spec) << " " << size << " " << status.to_string();
    }
    Machine ours(0, spec, GetParam());
    EXPECT_TRUE(ours.receive(good).ok()) << kernels::to_string(spec);
  }
}

TEST_P(EveryCollective, StaysInsideFramesWithChangedBytes) {
  for (const CodecSpec& spec : every_codec()) {
    Machine theirs(1, spec, GetParam());
    theirs.work();
    for (size_t at = 0; at < theirs.sent[0].payload.size(); at = at * 2 + 1) {
      Machine ours(0, spec, GetParam());
      Sent changed = theirs.sent[0];
      changed.payload[at] ^= std::byte{0xff};
      const Status status = ours.receive(changed);
      EXPECT_TRUE(status.ok() || status.code() == StatusCode::kPROTOCOL_ERROR ||
                  status.code() == StatusCode::kCORRUPT)
          << kernels::to_string(spec) << " " << status.to_string();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Collectives, EveryCollective,
                         ::testing::Values(Collective::kScatter, Collective::kAllgather));

}  // namespace
}  // namespace cgx::scheduler
