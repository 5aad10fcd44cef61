// Every lane gives the scalar lane's bits: random jobs over all codecs, types, sizes, alignments
// and special values. A failure prints the seed; CGX_TEST_SEED replays it.
#include <functional>

#include "tests/kernels/codec_cases.h"

namespace cgx::kernels::testing {
namespace {

constexpr DType kAllTypes[] = {DType::kF32, DType::kF16, DType::kBF16, DType::kF64,
                               DType::kI8,  DType::kU8,  DType::kI32,  DType::kI64};

// One random job's inputs as plain bytes, so that every lane starts from the same.
class RandomCase {
 public:
  explicit RandomCase(uint64_t seed) : random_(seed) {
    dtype_ = pick(3) ? kAllTypes[pick(3)] : kAllTypes[pick(8)];
    const uint32_t bucket = 64 * (1 + (pick(4) ? pick(8) : pick(64)));
    std::vector<CodecSpec> specs = all_specs(bucket);
    if (!dtype_is_small_float(dtype_)) specs.resize(1);
    spec_ = specs[pick(specs.size())];
    const size_t sizes[] = {pick(4), pick(200), bucket, bucket * (1 + pick(4)), pick(6 * bucket)};
    elements_ = sizes[pick(5)];
    if (is_sparse(spec_) && pick(48) == 0) elements_ = pick(3) * kSparseBucket + pick(20000);
    key_ = {random_(), pick(1000)};
    const double scales[] = {1.0, 1.0, 1.0 / 3, 0.5};
    scale_ = dtype_is_small_float(dtype_) || dtype_ == DType::kF64 ? scales[pick(4)] : 1.0;
    feedback_ = dtype_is_small_float(dtype_) && pick(2);
    ranks_ = static_cast<uint32_t>(pick(4) ? 1 + pick(3) : 0);
  }

  size_t pick(size_t n) { return random_() % n; }

  // Bytes of `elements` values: gradients, bit patterns, or special values mixed in.
  std::vector<uint8_t> values() {
    std::vector<uint8_t> bytes(elements_ * dtype_bytes(dtype_));
    const size_t kind = pick(8);
    const float sigma = std::ldexp(1.0f, static_cast<int>(pick(2) ? pick(20) : pick(250)) - 125);
    Floats floats = gradient(random_, elements_, sigma, 0.25 * static_cast<double>(pick(4)));
    for (size_t i = 0; i < elements_; ++i) {
      if (kind == 0 || (kind == 1 && pick(50) == 0)) floats[i] = special();
      if (kind == 2) floats[i] = 3.5f + 0.001f * floats[i];
      put(bytes.data(), i, floats[i]);
    }
    if (kind == 3 || !(dtype_is_small_float(dtype_) || dtype_ == DType::kF64)) {
      for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random_());
    }
    return bytes;
  }

  Floats residual() { return gradient(random_, elements_, 0.1f, 0.3); }

  float special() {
    const uint32_t kSpecial[] = {0,          0x80000000, 0x7f800000, 0xff800000, 0x7fc00000,
                                 0x7f800001, 0xffc12345, 0x7f7fffff, 0xff7fffff, 1,
                                 0x807fffff, 0x00800000, 0x477ff000, 0x477fefff, 0xc77ff000,
                                 0x477f8000, 0x477f7fff, 0x7f7f8000, 0x7f7f7fff, 0x7e000000,
                                 0x7dffffff, 0x3f800000, 0x33000000, 0x38800000};
    return from_bits(kSpecial[pick(std::size(kSpecial))]);
  }

  std::mt19937_64 random_;
  CodecSpec spec_;
  DType dtype_;
  size_t elements_;
  DrawKey key_;
  double scale_;
  bool feedback_;
  uint32_t ranks_;

 private:
  void put(uint8_t* bytes, size_t i, float x) const {
    const uint32_t bits = std::bit_cast<uint32_t>(x);
    const double wide = x;
    switch (dtype_) {
      case DType::kF64:
        std::memcpy(bytes + 8 * i, &wide, 8);
        return;
      case DType::kF16:
        put_half(bytes + 2 * i, x);
        return;
      case DType::kBF16:
        std::memcpy(bytes + 2 * i, reinterpret_cast<const uint8_t*>(&bits) + 2, 2);
        return;
      case DType::kF32:
        std::memcpy(bytes + 4 * i, &bits, 4);
        return;
      case DType::kI8:
      case DType::kU8:
      case DType::kI32:
      case DType::kI64:
        return;  // filled with random bytes
    }
  }
  static void put_half(uint8_t* bytes, float x) {
    const _Float16 half = static_cast<_Float16>(x);
    std::memcpy(bytes, &half, 2);
  }
};

// All outputs of one call, compared as bytes.
struct Outcome {
  std::vector<std::vector<uint8_t>> outputs;
  RangeStats stats;
  Status status;
  bool guards = true;

  template <class T>
  void keep(const Buffer<T>& buffer) {
    const auto* bytes = reinterpret_cast<const uint8_t*>(buffer.data());
    outputs.emplace_back(bytes, bytes + buffer.size() * sizeof(T));
    guards &= buffer.guards_intact();
  }
};

void expect_same(const Outcome& a, const Outcome& b) {
  EXPECT_TRUE(b.guards) << "wrote outside a buffer";
  EXPECT_EQ(a.status.to_string(), b.status.to_string());
  EXPECT_EQ(a.stats.nonfinite_buckets, b.stats.nonfinite_buckets);
  EXPECT_EQ(a.stats.saturated, b.stats.saturated);
  if (!a.status.ok()) return;  // outputs are undefined then
  ASSERT_EQ(a.outputs.size(), b.outputs.size());
  for (size_t i = 0; i < a.outputs.size(); ++i) {
    EXPECT_TRUE(same_bits(a.outputs[i], b.outputs[i])) << "output " << i;
  }
}

// Runs `call` on every lane with the alignments of the case and compares with the scalar lane.
void compare_lanes(uint64_t seed,
                   const std::function<Outcome(const Lane&, RandomCase, size_t shift)>& call) {
  const RandomCase base(seed);
  const Outcome expected = call(scalar_lane(), base, 0);
  EXPECT_TRUE(expected.guards);
  for (const Lane* lane : viable_lanes()) {
    SCOPED_TRACE(std::string(lane->name) + " " + to_string(base.spec_) + " " +
                 std::string(dtype_name(base.dtype_)) + " x" + std::to_string(base.elements_) +
                 ", CGX_TEST_SEED=" + std::to_string(seed));
    for (const size_t shift : {size_t{0}, size_t{1}, size_t{5}}) {
      expect_same(expected, call(*lane, base, shift));
    }
  }
}

// Elements stay aligned to their size, encoded bytes need not be.
using Elements = Buffer<uint8_t>;

struct Source {
  Source(RandomCase& random, size_t shift) {
    const size_t step = shift * dtype_bytes(random.dtype_);
    for (uint32_t r = 0; r < random.ranks_; ++r) ranks.emplace_back(random.values(), step);
    for (Elements& rank : ranks) pointers.push_back(rank.data());
    residual = std::make_unique<Buffer<float>>(random.residual(), 4 * shift);
    view = {.ranks = pointers.data(),
            .rank_count = random.ranks_,
            .dtype = random.dtype_,
            .scale = random.scale_,
            .residual_in = random.feedback_ && random.pick(4) ? residual->data() : nullptr};
  }
  std::vector<Elements> ranks;
  std::vector<void*> pointers;
  std::unique_ptr<Buffer<float>> residual;
  RawView view;
};

struct TargetBuffers {
  TargetBuffers(const RandomCase& random, size_t count, size_t shift) {
    const size_t width = dtype_bytes(random.dtype_);
    for (size_t t = 0; t < count; ++t) {
      buffers.emplace_back(random.elements_ * width, shift * width * (t + 1));
    }
    for (Elements& buffer : buffers) pointers.push_back(buffer.data());
  }
  std::vector<Elements> buffers;
  std::vector<void*> pointers;
};

Buffer<std::byte> encoded_buffer(const RandomCase& random, size_t shift) {
  return Buffer<std::byte>(encoded_bytes(random.spec_, random.dtype_, random.elements_), shift);
}

// What another machine would send, always from the scalar lane.
Bytes scalar_bytes(RandomCase& random) {
  Source source(random, 0);
  Bytes bytes(encoded_bytes(random.spec_, random.dtype_, random.elements_));
  EncodeJob job{.spec = random.spec_, .elements = random.elements_, .key = random.key_};
  job.source = source.view;
  job.encoded = bytes;
  RangeStats stats;
  bytes.resize(scalar_lane().encode(job, stats));
  return bytes;
}

Outcome run_encode(const Lane& lane, RandomCase random, size_t shift) {
  Source source(random, shift);
  Buffer<std::byte> encoded = encoded_buffer(random, shift);
  Buffer<float> residual(random.feedback_ ? random.elements_ : 0, 4 * shift);
  EncodeJob job{.spec = random.spec_, .elements = random.elements_, .key = random.key_};
  job.source = source.view;
  job.encoded = encoded.span();
  job.residual_out = random.feedback_ ? residual.data() : nullptr;
  Outcome outcome;
  lane.encode(job, outcome.stats);
  outcome.keep(encoded);
  outcome.keep(residual);
  for (const Elements& rank : source.ranks) outcome.keep(rank);
  return outcome;
}

// Damages some bytes now and then: lanes agree on what they refuse and on what they make of the
// rest.
void damage(RandomCase& random, Buffer<std::byte>& encoded) {
  if (encoded.size() == 0 || random.pick(4) != 0) return;
  for (size_t i = 0; i < 1 + random.pick(8); ++i) {
    encoded[random.pick(encoded.size())] = static_cast<std::byte>(random.random_());
  }
}

Outcome run_decode(const Lane& lane, RandomCase random, size_t shift) {
  Buffer<std::byte> encoded(scalar_bytes(random), shift);
  damage(random, encoded);
  TargetBuffers targets(random, random.pick(4), shift);
  const Floats old_residual = random.residual();
  Buffer<float> residual(random.feedback_ ? random.elements_ : 0, 4 * shift);
  DecodeJob job{.spec = random.spec_, .encoded = encoded.span(), .elements = random.elements_};
  job.dtype = random.dtype_;
  job.targets = targets.pointers.data();
  job.target_count = static_cast<uint32_t>(targets.pointers.size());
  job.residual_in = random.pick(2) ? old_residual.data() : nullptr;
  job.residual_out = random.feedback_ ? residual.data() : nullptr;
  Outcome outcome;
  outcome.status = lane.decode(job, outcome.stats);
  for (const Elements& buffer : targets.buffers) outcome.keep(buffer);
  outcome.keep(residual);
  return outcome;
}

Outcome run_reduce(const Lane& lane, RandomCase random, size_t shift) {
  std::vector<Contribution> parts(random.pick(5));
  std::vector<Buffer<std::byte>> streams;
  std::vector<std::unique_ptr<Source>> sources;
  streams.reserve(parts.size());
  const size_t own = random.pick(5);
  for (size_t i = 0; i < parts.size(); ++i) {
    if (i == own) {
      sources.push_back(std::make_unique<Source>(random, shift));
      parts[i].kind = Contribution::Kind::kRaw;
      parts[i].raw = sources.back()->view;
    } else if (random.pick(5) != 0) {
      streams.emplace_back(scalar_bytes(random), shift);
      if (random.pick(8) == 0) damage(random, streams.back());
      parts[i].kind = Contribution::Kind::kEncoded;
      parts[i].encoded = streams.back().span();
    }
  }
  TargetBuffers targets(random, random.pick(3), shift);
  if (!sources.empty() && random.pick(2)) targets.pointers = sources[0]->pointers;  // in place
  const Floats old_residual = random.residual();
  Buffer<std::byte> encoded = encoded_buffer(random, shift);
  Buffer<float> residual(random.feedback_ ? random.elements_ : 0, 4 * shift);
  ReduceJob job{.spec = random.spec_, .contributions = parts, .elements = random.elements_};
  job.dtype = random.dtype_;
  job.key = random.key_;
  job.residual_in = random.pick(2) ? old_residual.data() : nullptr;
  job.residual_out = random.feedback_ ? residual.data() : nullptr;
  job.encoded = encoded.span();
  job.targets = targets.pointers.data();
  job.target_count = static_cast<uint32_t>(targets.pointers.size());
  Outcome outcome;
  outcome.status = lane.reduce(job, outcome.stats).status();
  outcome.keep(encoded);
  outcome.keep(residual);
  for (const Elements& buffer : targets.buffers) outcome.keep(buffer);
  for (const auto& source : sources) {
    for (const Elements& rank : source->ranks) outcome.keep(rank);
  }
  return outcome;
}

Outcome run_decode_add(const Lane& lane, RandomCase random, size_t shift) {
  random.dtype_ = DType::kF32;
  Buffer<std::byte> encoded(scalar_bytes(random), shift);
  damage(random, encoded);
  const std::vector<uint8_t> start = random.values();
  Elements sum(start, 4 * shift);
  DecodeAddJob job{.spec = random.spec_, .encoded = encoded.span(), .elements = random.elements_};
  job.sum = reinterpret_cast<float*>(sum.data());
  Outcome outcome;
  outcome.status = lane.decode_add(job, outcome.stats);
  outcome.keep(sum);
  return outcome;
}

Outcome run_local_reduce(const Lane& lane, RandomCase random, size_t shift) {
  Source source(random, shift);
  TargetBuffers targets(random, random.pick(3), shift);
  if (random.pick(2)) targets.pointers = source.pointers;  // in place
  Buffer<float> residual(random.feedback_ ? random.elements_ : 0, 4 * shift);
  LocalReduceJob job{.source = source.view, .elements = random.elements_};
  job.targets = targets.pointers.data();
  job.target_count = static_cast<uint32_t>(targets.pointers.size());
  job.residual_out = random.feedback_ ? residual.data() : nullptr;
  job.bucket = random.spec_.bucket;
  lane.local_reduce(job);
  Outcome outcome;
  for (const Elements& buffer : targets.buffers) outcome.keep(buffer);
  for (const Elements& rank : source.ranks) outcome.keep(rank);
  outcome.keep(residual);
  return outcome;
}

class LanesAgree : public ::testing::Test {
 protected:
  static constexpr int kCases = 1200;
  template <class Run>
  void check(Run run) {
    for (int i = 0; i < kCases && !HasFailure(); ++i) compare_lanes(test_seed() + i, run);
  }
};

TEST_F(LanesAgree, OnEncodedBytesAndResiduals) {
  check(run_encode);
}
TEST_F(LanesAgree, OnDecodedValuesAndOnWhatIsCorrupt) {
  check(run_decode);
}
TEST_F(LanesAgree, OnReducedBytesResidualsAndResults) {
  check(run_reduce);
}
TEST_F(LanesAgree, OnDecodeAdd) {
  check(run_decode_add);
}
TEST_F(LanesAgree, OnLocalReduction) {
  check(run_local_reduce);
}

}  // namespace
}  // namespace cgx::kernels::testing
