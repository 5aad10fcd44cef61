// Tuning changes no bit, is measured within its time, and keeps the default unless another choice
// is clearly faster.
#include "kernels/tuning.h"

#include <algorithm>
#include <chrono>

#include "tests/kernels/codec_cases.h"

namespace cgx::kernels::testing {
namespace {

uint64_t steady_ns() {
  return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
}

// A clock that moves on by a millisecond with each look.
uint64_t coarse_now_ns = 0;
uint64_t coarse_ns() {
  return coarse_now_ns += 1'000'000;
}
// And one that stands still, so that everything is equally fast.
uint64_t frozen_ns() {
  return 1;
}

std::vector<const Lane*> tuned_lanes() {
  std::vector<const Lane*> found = viable_lanes();
  std::erase(found, &scalar_lane());
  return found;
}

Tuning all(const Access& access) {
  Tuning tuning;
  for (const TunedOperation& one : kTunedOperations) tuning.*one.access = access;
  return tuning;
}

bool is_allowed(const TunedOperation& operation, Access access) {
  if (access.stream && !operation.streams) return false;
  access.stream = false;
  return std::find(std::begin(kReadsTried), std::end(kReadsTried), access) != std::end(kReadsTried);
}

// Every operation of a codec on one range, large enough to be streamed; outputs as bytes.
class Work {
 public:
  Work(const CodecSpec& spec, uint64_t elements, size_t shift)
      : spec_(spec), elements_(elements), shift_(shift) {
    std::mt19937_64 random(7);
    for (Floats& one : input_) one = gradient(random, elements, 0.1f, 0.01);
    input_[0][elements / 3] = from_bits(0x7fc00000);  // a bucket that is not finite
    part_ = encode(scalar_lane(), spec, input_[2], {5, 0}).bytes;
  }

  std::vector<Bytes> results(const Lane& lane) {
    outputs_.clear();
    encode_with(lane, false);
    encode_with(lane, true);
    decode_on(lane);
    combine_on(lane);
    add_on(lane);
    reduce_on(lane);
    local_reduce_on(lane);
    return outputs_;
  }

 private:
  template <class T>
  void keep(const Buffer<T>& buffer) {
    EXPECT_TRUE(buffer.guards_intact());
    const auto bytes = std::as_bytes(buffer.span());
    outputs_.emplace_back(bytes.begin(), bytes.end());
  }
  Buffer<float> values(int which) const { return Buffer<float>(input_[which], 4 * shift_); }
  Buffer<float> empty() const { return Buffer<float>(elements_, 4 * shift_); }
  Buffer<std::byte> stream() const {
    return Buffer<std::byte>(encoded_bytes(spec_, DType::kF32, elements_), shift_);
  }

  void encode_with(const Lane& lane, bool feedback) {
    Buffer<float> source = values(0), before = values(1), after = empty();
    Buffer<std::byte> encoded = stream();
    const void* rank = source.data();
    EncodeJob job{.spec = spec_, .elements = elements_, .key = {5, 0}};
    job.source = {.ranks = &rank, .rank_count = 1, .scale = feedback ? 0.5 : 1.0};
    job.source.residual_in = feedback ? before.data() : nullptr;
    job.residual_out = feedback ? after.data() : nullptr;
    job.encoded = encoded.span();
    lane.encode(job, stats_);
    keep(encoded);
    keep(after);
  }
  void decode_on(const Lane& lane) {
    Buffer<float> first = empty(), second = empty();
    void* targets[] = {first.data(), second.data()};
    DecodeJob job{.spec = spec_, .encoded = part_, .elements = elements_};
    job.targets = targets;
    job.target_count = 2;
    EXPECT_TRUE(lane.decode(job, stats_).ok());
    keep(first);
    keep(second);
  }
  void combine_on(const Lane& lane) {
    Buffer<float> target = empty();
    void* targets[] = {target.data()};
    std::vector<Contribution> parts(3);
    for (Contribution& part : parts) {
      part = {.kind = Contribution::Kind::kEncoded, .encoded = part_};
    }
    CombineJob job{.spec = spec_, .contributions = parts, .elements = elements_};
    job.targets = targets;
    job.target_count = 1;
    EXPECT_TRUE(lane.combine(job, stats_).ok());
    keep(target);
  }
  void add_on(const Lane& lane) {
    Buffer<float> sum = values(1);
    const DecodeAddJob job{
        .spec = spec_, .encoded = part_, .elements = elements_, .sum = sum.data()};
    EXPECT_TRUE(lane.decode_add(job, stats_).ok());
    keep(sum);
  }
  void reduce_on(const Lane& lane) {
    Buffer<float> source = values(0), before = values(1), after = empty();
    Buffer<std::byte> encoded = stream();
    void* ranks[] = {source.data()};
    std::vector<Contribution> parts(2);
    parts[0] = {.kind = Contribution::Kind::kRaw, .raw = {.ranks = ranks, .rank_count = 1}};
    parts[0].raw.residual_in = before.data();
    parts[1] = {.kind = Contribution::Kind::kEncoded, .encoded = part_};
    ReduceJob job{.spec = spec_, .contributions = parts, .elements = elements_, .key = {5, 0}};
    job.residual_in = before.data();
    job.residual_out = after.data();
    job.encoded = encoded.span();
    job.targets = ranks;
    job.target_count = 1;
    EXPECT_TRUE(lane.reduce(job, stats_).ok());
    keep(encoded);
    keep(after);
    keep(source);
  }
  void local_reduce_on(const Lane& lane) {
    Buffer<float> first = values(0), second = values(1);
    void* ranks[] = {first.data(), second.data()};
    LocalReduceJob job{.elements = elements_, .targets = ranks, .target_count = 2};
    job.source = {.ranks = ranks, .rank_count = 2, .scale = 0.5};
    lane.local_reduce(job);
    keep(first);
    keep(second);
  }

  CodecSpec spec_;
  uint64_t elements_;
  size_t shift_;
  Floats input_[3];
  Bytes part_;
  RangeStats stats_;
  std::vector<Bytes> outputs_;
};

TEST(TuningTest, ChangesNoBit) {
  const Tuning tunings[] = {all({.stream = true}), all({64}), all({10240, false, true}),
                            all({8192, true}), all({1u << 20, true, true})};
  for (const CodecSpec& spec : all_specs(512)) {
    // Beyond the least that is streamed, and ending within a block.
    const uint64_t elements = kStreamBytes / sizeof(float) + 1024 + 77;
    for (const size_t shift : {0, 3}) {
      Work work(spec, elements, shift);
      for (const Lane* lane : tuned_lanes()) {
        const std::vector<Bytes> expected = work.results(*lane);
        for (const Tuning& tuning : tunings) {
          const std::vector<Bytes> results = work.results(lane->with(tuning));
          ASSERT_EQ(results.size(), expected.size());
          for (size_t i = 0; i < results.size(); ++i) {
            ASSERT_TRUE(same_bits(results[i], expected[i]))
                << lane->name << " " << to_string(spec) << ", " << to_string(tuning) << ", output "
                << i << ", shift " << shift;
          }
        }
      }
    }
  }
}

TEST(TuningTest, IsMeasuredAmongWhatIsAllowed) {
  for (const Lane* lane : viable_lanes()) {
    const Tuning tuning = measure_tuning(*lane, steady_ns);
    for (const TunedOperation& one : kTunedOperations) {
      EXPECT_TRUE(is_allowed(one, tuning.*one.access)) << lane->name << " " << one.name;
    }
  }
}

// Looks at the clock some times per sample: a few samples after the budget nothing more is tried.
TEST(TuningTest, StopsMeasuringWhenItsTimeIsUp) {
  for (const Lane* lane : tuned_lanes()) {
    coarse_now_ns = 0;
    EXPECT_EQ(measure_tuning(*lane, coarse_ns), Tuning());
    EXPECT_LE(coarse_now_ns, kTuningBudgetNs + 60'000'000);
  }
}

TEST(TuningTest, KeepsTheDefaultWhereNothingIsFaster) {
  for (const Lane* lane : tuned_lanes()) {
    EXPECT_EQ(measure_tuning(*lane, frozen_ns), Tuning()) << lane->name;
  }
}

TEST(TuningTest, IsTheDefaultOnALaneThatKnowsNone) {
  EXPECT_EQ(measure_tuning(scalar_lane(), steady_ns), Tuning());
}

TEST(TuningTest, SaysWhatDiffersFromTheDefault) {
  Tuning tuning;
  EXPECT_EQ(to_string(tuning), "default");
  tuning.encode = {4096, true};
  tuning.decode = {.stream = true};
  EXPECT_EQ(to_string(tuning), "encode 4096 B ahead into L2; decode streamed");
}

}  // namespace
}  // namespace cgx::kernels::testing
