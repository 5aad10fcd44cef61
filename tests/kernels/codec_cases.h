// What codec tests share: owned jobs, interesting inputs, all lanes that run here, all specs.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "kernels/codec.h"

namespace cgx::kernels::testing {

inline std::vector<const Lane*> viable_lanes() {
  std::vector<const Lane*> found;
  for (const Lane* lane : lanes()) {
    if (lane->viable()) found.push_back(lane);
  }
  return found;
}

inline const Lane& scalar_lane() {
  return *find_lane("scalar").value();
}

// A sparse codec with every kind of values, at an amount that selects some of normal values; bucket
// is always kSparseBucket.
inline void add_sparse_specs(const CodecRow& row, std::vector<CodecSpec>& specs) {
  const float amount = row.strength == Strength::kThreshold ? 1.5f : 0.04f;
  CodecSpec spec{.codec = row.number, .bucket = kSparseBucket, .amount = amount};
  for (const SparseValues values :
       {SparseValues::kF32, SparseValues::kF16, SparseValues::kMaxMin8, SparseValues::kMaxMin4}) {
    spec.values = values;
    specs.push_back(spec);
  }
  spec.values = SparseValues::kF32;
  spec.flags = CodecSpec::kFeedback;  // changes what is decoded where draws are shared
  if (row.shared_draws) specs.push_back(spec);
}

// Every codec at every strength, with each of its options (feedback apart) once.
inline std::vector<CodecSpec> all_specs(uint32_t bucket) {
  constexpr uint8_t kOptions[] = {0, CodecSpec::kStochastic, CodecSpec::kL2Norm, CodecSpec::kClip,
                                  CodecSpec::kL2Norm | CodecSpec::kStochastic};
  std::vector<CodecSpec> specs;
  for (const CodecRow& row : codecs()) {
    if (row.sparse) {
      add_sparse_specs(row, specs);
      continue;
    }
    for (uint8_t bits = row.bits_min; bits <= row.bits_max; ++bits) {
      for (const uint8_t option : kOptions) {
        if (!row.has(option)) continue;
        specs.push_back({.codec = row.number,
                         .bits = bits,
                         .flags = static_cast<uint8_t>(option | row.implied),
                         .bucket = bucket});
      }
    }
  }
  return specs;
}

inline bool is_quantizer(const CodecSpec& spec) {
  return find_codec(spec.codec)->quantizer;
}

// Bytes of metadata per bucket, as sizes show them; none that a sparse codec's has a fixed place.
inline uint64_t meta_bytes(CodecSpec spec) {
  if (find_codec(spec.codec)->sparse) return 0;
  constexpr uint64_t kElements = 1 << 15, kDifference = kElements / 64 - kElements / 4096;
  spec.bucket = 64;
  const uint64_t many = encoded_bytes(spec, DType::kF32, kElements);
  spec.bucket = 4096;
  return (many - encoded_bytes(spec, DType::kF32, kElements)) / kDifference;
}

inline bool is_vote(const CodecSpec& spec) {
  return find_codec(spec.codec)->name == std::string_view("signsgd");
}

inline bool is_sparse(const CodecSpec& spec) {
  return find_codec(spec.codec)->sparse;
}

// A buffer at a chosen distance from a 64-byte border, with guard bytes on both sides.
template <class T>
class Buffer {
 public:
  explicit Buffer(size_t count, size_t misalignment = 0)
      : bytes_(count * sizeof(T) + 3 * kGuard, kFill), count_(count) {
    const size_t to_border = kGuard - reinterpret_cast<uintptr_t>(bytes_.data()) % kGuard;
    offset_ = to_border + misalignment;
    std::memset(bytes_.data() + offset_, 0, count * sizeof(T));
  }
  Buffer(const std::vector<T>& values, size_t misalignment = 0)
      : Buffer(values.size(), misalignment) {
    if (!values.empty()) std::memcpy(data(), values.data(), values.size() * sizeof(T));
  }
  Buffer(const Buffer&) = delete;
  Buffer(Buffer&&) = default;  // a moved vector keeps its address

  T* data() { return reinterpret_cast<T*>(bytes_.data() + offset_); }
  const T* data() const { return reinterpret_cast<const T*>(bytes_.data() + offset_); }
  size_t size() const { return count_; }
  T& operator[](size_t i) { return data()[i]; }
  const T& operator[](size_t i) const { return data()[i]; }
  std::span<T> span() { return {data(), count_}; }
  std::span<const T> span() const { return {data(), count_}; }
  std::vector<T> values() const { return std::vector<T>(data(), data() + count_); }

  bool guards_intact() const {
    for (size_t i = 0; i < bytes_.size(); ++i) {
      const bool inside = i >= offset_ && i < offset_ + count_ * sizeof(T);
      if (!inside && bytes_[i] != kFill) return false;
    }
    return true;
  }

 private:
  static constexpr size_t kGuard = 64;
  static constexpr uint8_t kFill = 0xa5;
  std::vector<uint8_t> bytes_;
  size_t count_, offset_ = 0;
};

using Bytes = std::vector<std::byte>;
using Floats = std::vector<float>;

struct Encoded {
  Bytes bytes;
  RangeStats stats;
};

inline Encoded encode(const Lane& lane, const CodecSpec& spec, const Floats& values,
                      DrawKey key = {}, const float* residual_in = nullptr,
                      float* residual_out = nullptr, float residual_scale = 1.0f) {
  const void* rank = values.data();
  Encoded result;
  result.bytes.resize(encoded_bytes(spec, DType::kF32, values.size()));
  EncodeJob job{.spec = spec, .elements = values.size(), .key = key};
  job.source = {.ranks = &rank,
                .rank_count = 1,
                .residual_in = residual_in,
                .residual_scale = residual_scale};
  job.residual_out = residual_out;
  job.encoded = result.bytes;
  result.bytes.resize(lane.encode(job, result.stats));
  return result;
}

inline Floats decode(const Lane& lane, const CodecSpec& spec, const Bytes& bytes, size_t elements) {
  Floats values(elements);
  void* target = values.data();
  DecodeJob job{.spec = spec, .encoded = bytes, .elements = elements};
  job.targets = &target;
  job.target_count = 1;
  RangeStats stats;
  const Status status = lane.decode(job, stats);
  EXPECT_TRUE(status.ok()) << status.to_string();
  return values;
}

inline Floats round_trip(const Lane& lane, const CodecSpec& spec, const Floats& values,
                         DrawKey key = {}) {
  return decode(lane, spec, encode(lane, spec, values, key).bytes, values.size());
}

// Bit equality, with the first difference named.
template <class T>
::testing::AssertionResult same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  if (a.size() != b.size()) return ::testing::AssertionFailure() << a.size() << " and " << b.size();
  for (size_t i = 0; i < a.size(); ++i) {
    // The bits are what is compared. NOLINTNEXTLINE(bugprone-suspicious-memory-comparison)
    if (std::memcmp(&a[i], &b[i], sizeof(T)) == 0) continue;
    return ::testing::AssertionFailure()
           << "differ at " << i << ": " << ::testing::PrintToString(a[i]) << " and "
           << ::testing::PrintToString(b[i]);
  }
  return ::testing::AssertionSuccess();
}

// Values that look like a gradient: normal, a per-call scale, a share of exact zeros.
inline Floats gradient(std::mt19937_64& random, size_t n, float sigma = 1.0f, double zeros = 0.0) {
  std::normal_distribution<float> normal(0.0f, sigma);
  std::bernoulli_distribution zero(zeros);
  Floats values(n);
  for (float& x : values) x = zero(random) ? 0.0f : normal(random);
  return values;
}

inline float from_bits(uint32_t bits) {
  return std::bit_cast<float>(bits);
}

// A seed per test run that can be given again: CGX_TEST_SEED=... Printed by SCOPED_TRACE users.
inline uint64_t test_seed() {
  static const uint64_t seed = [] {
    const char* given = std::getenv("CGX_TEST_SEED");
    return given ? std::strtoull(given, nullptr, 0) : std::random_device{}();
  }();
  return seed;
}

}  // namespace cgx::kernels::testing
