// How far a decoded value may lie from what was encoded: one bound for each row of the codecs'
// table, in fp64. ARITHMETIC.md has them in words.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "kernels/codec.h"

namespace cgx::kernels::testing {

// One bucket as the bounds see it, in fp64.
struct Summary {
  explicit Summary(std::span<const float> x) {
    for (const float v : x) {
      lo = std::min(lo, double{v});
      hi = std::max(hi, double{v});
      squares += double{v} * v;
      zero |= v == 0;
      sums[std::signbit(v)] += v;
      counts[std::signbit(v)] += 1;
      magnitudes.push_back(std::abs(v));
    }
    std::ranges::sort(magnitudes, std::greater());
    largest = std::max(-lo, hi);
    count = counts[0] + counts[1];
  }
  double mean_magnitude() const { return (sums[0] - sums[1]) / count; }
  double root_mean_square() const { return std::sqrt(squares / count); }

  double lo = INFINITY, hi = -INFINITY, squares = 0, largest = 0, count = 0;
  double sums[2] = {}, counts[2] = {};  // without and with a sign
  std::vector<double> magnitudes;       // falling
  bool zero = false;
};

// The distance between the two values that x can become, and what else a bound needs.
inline double maxmin_step(const CodecSpec& spec, const Summary& bucket) {
  const double levels = (1 << spec.bits) - 1;
  const bool spare_code = bucket.zero && spec.bits > 1 && bucket.lo < 0 && bucket.hi > 0;
  return (bucket.hi - bucket.lo) / (spare_code ? levels - 1 : levels);
}

inline double symmetric_step(const CodecSpec& spec, const Summary& bucket) {
  const double norm = spec.flags & CodecSpec::kL2Norm ? std::sqrt(bucket.squares) : bucket.largest;
  return norm / ((1 << (spec.bits - 1)) - 1);
}

inline double rounding(const CodecSpec& spec, double step, double scale) {
  return step * (spec.stochastic() ? 1.0 : 0.5) + 0x1p-20 * scale;
}

// The bounds of |x - decoded x|.
inline double exact(const CodecSpec&, const Summary&, double) {
  return 0;
}
inline double half_error(const CodecSpec&, const Summary&, double x) {
  return std::max(std::abs(x) * 0x1p-11, 0x1p-25);
}
inline double brain_error(const CodecSpec&, const Summary&, double x) {
  return std::max(std::abs(x) * 0x1p-8, 0x1p-134);
}
inline double maxmin_error(const CodecSpec& spec, const Summary& bucket, double) {
  return rounding(spec, maxmin_step(spec, bucket), bucket.largest);
}
inline double sign_error(const CodecSpec&, const Summary& bucket, double x) {
  return std::abs(std::abs(x) - bucket.mean_magnitude()) + 0x1p-20 * bucket.largest;
}
inline double onebit_error(const CodecSpec&, const Summary& bucket, double x) {
  const double mean = bucket.sums[std::signbit(x)] / bucket.counts[std::signbit(x)];
  return std::abs(x - mean) + 0x1p-20 * bucket.largest;
}
inline double qsgd_error(const CodecSpec& spec, const Summary& bucket, double) {
  const double step = symmetric_step(spec, bucket);
  return rounding(spec, step, step * (1 << spec.bits));
}
inline double int8_error(const CodecSpec& spec, const Summary& bucket, double) {
  return rounding(spec, bucket.largest / 127, bucket.largest);
}
inline double natural_error(const CodecSpec& spec, const Summary& bucket, double x) {
  const int levels = (1 << (spec.bits - 1)) - 1;
  const double lowest = std::exp2(std::ceil(std::log2(bucket.largest)) - (levels - 1));
  if (!spec.stochastic()) return std::max(std::abs(x) / 3, lowest / 2) * (1 + 0x1p-20);
  return std::max(x == 0 ? 0 : std::exp2(std::floor(std::log2(std::abs(x)))), lowest);
}
inline double clip_of(const CodecSpec& spec, const Summary& bucket) {
  if ((spec.flags & CodecSpec::kClip) == 0) return bucket.largest;
  return std::min(bucket.largest, 2.5 * bucket.root_mean_square());
}
inline double terngrad_error(const CodecSpec& spec, const Summary& bucket, double x) {
  const double clip = clip_of(spec, bucket);
  return std::max(clip, std::abs(x) - clip) * (1 + 0x1p-20);
}
inline double fp8_error(const CodecSpec& spec, const Summary& scaled, double x) {
  if (spec.bits == 4) return std::max(std::abs(x) * 0x1p-4, scaled.largest * 0x1p-14);
  return std::max(std::abs(x) * 0x1p-3, scaled.largest * 0x1p-29);
}

// The k-th largest magnitude of a sparse codec's bucket; what it selects may itself be coded.
inline double selected_error(const CodecSpec& spec, const Summary& bucket, double x) {
  switch (spec.values) {
    case SparseValues::kF32:
      return 0;
    case SparseValues::kF16:
      return half_error(spec, bucket, x);
    case SparseValues::kMaxMin8:
      return 2 * bucket.largest / 254 / 2 * 1.0001;
    case SparseValues::kMaxMin4:
      return 2 * bucket.largest / 14 / 2 * 1.0001;
  }
  return 0;
}
inline double largest_error(const CodecSpec& spec, const Summary& bucket, double x, size_t count,
                            double floor) {
  const double last = count < bucket.magnitudes.size() ? bucket.magnitudes[count - 1] : 0;
  const double error = selected_error(spec, bucket, x);
  return std::abs(x) > std::max(last, floor) ? error : std::max(std::abs(x), error);
}
inline double topk_error(const CodecSpec& spec, const Summary& bucket, double x) {
  const double count = std::ceil(bucket.count * spec.amount);
  return largest_error(spec, bucket, x, static_cast<size_t>(count), 0);
}
inline double threshold_error(const CodecSpec& spec, const Summary& bucket, double x) {
  const double count = std::ceil(bucket.count / 4);
  return largest_error(spec, bucket, x, static_cast<size_t>(count), spec.amount);
}
inline double randomk_error(const CodecSpec& spec, const Summary& bucket, double x) {
  const double weight = std::round(1 / spec.amount);
  return weight * (std::abs(x) * (1 + 0x1p-20) + selected_error(spec, bucket, x));
}

using Bound = double (*)(const CodecSpec&, const Summary&, double x);
inline const std::map<std::string, Bound>& bounds() {
  static const std::map<std::string, Bound> all = {
      {"fp32", exact},          {"fp16", half_error},           {"bf16", brain_error},
      {"maxmin", maxmin_error}, {"efsign", sign_error},         {"signsgd", sign_error},
      {"onebit", onebit_error}, {"qsgd", qsgd_error},           {"natural", natural_error},
      {"fp8", fp8_error},       {"int8", int8_error},           {"terngrad", terngrad_error},
      {"topk", topk_error},     {"threshold", threshold_error}, {"randomk", randomk_error},
  };
  return all;
}

// How many values one scale or selection is for.
inline size_t scaled_together(const CodecSpec& spec) {
  return find_codec(spec.codec)->name == std::string_view("fp8") ? 32 : spec.bucket;
}

// Every value against its bound; the first that is beyond it is named.
inline ::testing::AssertionResult within_bounds(const CodecSpec& spec,
                                                std::span<const float> values,
                                                std::span<const float> decoded) {
  const std::string name = find_codec(spec.codec)->name;
  if (!bounds().contains(name)) return ::testing::AssertionFailure() << name << " has no bound";
  const Bound& bound = bounds().at(name);
  const size_t scaled = scaled_together(spec);
  for (size_t first = 0; first < values.size(); first += scaled) {
    const size_t n = std::min(scaled, values.size() - first);
    const Summary bucket(values.subspan(first, n));
    for (size_t i = first; i < first + n; ++i) {
      if (std::abs(double{values[i]} - decoded[i]) <= bound(spec, bucket, values[i])) continue;
      return ::testing::AssertionFailure() << to_string(spec) << ": value " << i << ", "
                                           << values[i] << ", became " << decoded[i];
    }
  }
  return ::testing::AssertionSuccess();
}

}  // namespace cgx::kernels::testing
