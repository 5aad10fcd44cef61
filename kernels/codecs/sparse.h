// Sparse codecs: of each bucket of 65,536 values some are sent, the others are zero to the
// receiver.
//
//   topk       the share of largest magnitude, exactly: ceil(n * share), at least 1;
//              of equal ones the first; zeros never
//   threshold  all magnitudes from the threshold on, but no more than a quarter of the bucket:
//              then its largest, as topk
//   randomk    one value of every stratum of round(1 / share), at a drawn place
//
// A codec here says how positions are chosen; sparse_format.h and sparse_values.h hold the bytes,
// lanes/sparse.h the operations. A non-finite value anywhere makes its whole bucket NaN.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/codec.h"
#include "kernels/codecs/sparse_format.h"
#include "kernels/codecs/sparse_values.h"
#include "kernels/draw.h"
#include "kernels/floats.h"

namespace cgx::kernels {
namespace {

// At most `most` values, none of a magnitude (as bits) below `floor`, which is 1 or more.
struct Want {
  uint32_t most, floor;
};

// ceil(n * share) without rounding: a float is m * 2^-shift with integer m, and n * m fits 64 bits.
CGX_SHARED inline uint32_t share_of(float share, uint32_t n) {
  const uint32_t bits = bits_of(share), exponent = bits >> 23 & 255;
  const uint32_t shift = 150 - exponent;
  if (exponent < 100 || shift < 23) return 1;  // no valid share
  const uint64_t product = uint64_t{n} * ((bits & 0x7fffffu) | 0x800000u);
  const uint64_t count = (product + (uint64_t{1} << shift) - 1) >> shift;
  return count == 0 ? 1 : static_cast<uint32_t>(count);
}

constexpr uint32_t kSparseHeaderBytes = sizeof(SparseHeader);

// What topk and threshold share: the largest of a bucket, with their indices.
template <class Codec>
struct Largest {
  static constexpr bool kDrawn = false;
  CGX_SHARED static uint64_t bytes_max(const CodecSpec& spec, uint32_t n) {
    const uint64_t most = Codec::want(spec, n).most;
    const uint64_t list = list_bytes(most), bitmap = bitmap_bytes(n);
    return kSparseHeaderBytes + (list < bitmap ? list : bitmap) + value_bytes(spec.values, most);
  }
};

struct TopK : Largest<TopK> {
  CGX_SHARED static Want want(const CodecSpec& spec, uint32_t n) {
    return {share_of(spec.amount, n), 1};
  }
};

struct Threshold : Largest<Threshold> {
  CGX_SHARED static Want want(const CodecSpec& spec, uint32_t n) {
    return {(n + 3) / 4, abs_bits(spec.amount)};
  }
};

// Every machine and both phases draw from one key, so that sums stay at the same places: the wire
// holds plain values, and who decodes multiplies them by the length of their stratum (feedback: by
// 1).
struct RandomK {
  static constexpr bool kDrawn = true;
  static constexpr uint32_t kKeyBytes = 8;

  CGX_SHARED static uint32_t stride(const CodecSpec& spec) {
    const float wanted = 1.0f / spec.amount + 0.5f;
    return wanted >= 4 && wanted < kSparseBucket ? static_cast<uint32_t>(wanted) : 4;
  }
  CGX_SHARED static Want want(const CodecSpec& spec, uint32_t n) {
    return {(n + stride(spec) - 1) / stride(spec), 1};
  }
  CGX_SHARED static uint64_t bytes_max(const CodecSpec& spec, uint32_t n) {
    return kSparseHeaderBytes + kKeyBytes + value_bytes(spec.values, want(spec, n).most);
  }
  // The place drawn in stratum i, which has `length` values.
  CGX_SHARED static uint32_t position(uint64_t key, uint32_t i, uint32_t step, uint32_t length) {
    return i * step + static_cast<uint32_t>(uint64_t{draw(key, i)} * length >> 32);
  }
  static uint32_t positions(const CodecSpec& spec, uint64_t key, uint32_t n, uint32_t* index) {
    const uint32_t step = stride(spec), whole = n / step;
    for (uint32_t i = 0; i < whole; ++i) index[i] = position(key, i, step, step);
    if (n % step == 0) return whole;
    index[whole] = position(key, whole, step, n % step);
    return whole + 1;
  }
  // How many values the one at `index` stands for.
  CGX_SHARED static float weight(const CodecSpec& spec, uint32_t n, uint32_t index) {
    if (spec.flags & CodecSpec::kFeedback) return 1.0f;
    const uint32_t step = stride(spec), left = n - index / step * step;
    return static_cast<float>(left < step ? left : step);
  }
};

// x * weight, staying below `limit`: finite input never becomes non-finite.
template <class Count>
CGX_SHARED inline float weighed(float x, float weight, uint32_t limit, Count& saturated) {
  const float y = x * weight;
  if (abs_bits(y) < limit) return y;
  ++saturated;
  return float_of((bits_of(y) & kSignBit) | (limit - 1));
}

// The entry that starts at `bytes`, of which `left` are there: its header, if one says so that an
// encoder could have written for a bucket of n values.
template <class Codec>
CGX_SHARED bool get_header(const CodecSpec& spec, uint32_t n, const uint8_t* bytes, uint64_t left,
                           SparseHeader& header) {
  if (left < kSparseHeaderBytes) return false;
  std::memcpy(&header, bytes, sizeof(header));
  const bool nonfinite = header.flags == kNonfiniteEntry;
  if (header.bytes > left || (header.flags != 0 && !nonfinite)) return false;
  const uint64_t most = Codec::want(spec, n).most, longest = Codec::bytes_max(spec, n);
  if constexpr (Codec::kDrawn) {
    return header.form == IndexForm::kDrawn && header.count == most && header.bytes == longest;
  }
  if (header.form == IndexForm::kNone) {
    return header.count == 0 && header.bytes == kSparseHeaderBytes;
  }
  const uint64_t least = kSparseHeaderBytes + value_bytes(spec.values, header.count);
  return !nonfinite && header.count > 0 && header.count <= most && header.bytes % 8 == 0 &&
         header.bytes > least && header.bytes <= longest;
}

template <class Codec>
struct SparseFamily {
  static uint64_t meta_bytes() { return 0; }
  static uint64_t code_bytes(const CodecSpec& spec, uint64_t elements) {
    const uint32_t tail = elements % kSparseBucket;
    return elements / kSparseBucket * Codec::bytes_max(spec, kSparseBucket) +
           (tail == 0 ? 0 : Codec::bytes_max(spec, tail));
  }
  // What the entries of a range take up; 0 if they do not end within `bytes`.
  static uint64_t length(const CodecSpec& spec, uint64_t elements, const uint8_t* bytes,
                         uint64_t left) {
    uint64_t used = 0;
    for (uint64_t first = 0; first < elements; first += kSparseBucket) {
      const uint64_t rest = elements - first;
      const uint32_t n = rest < kSparseBucket ? static_cast<uint32_t>(rest) : kSparseBucket;
      SparseHeader header;
      if (!get_header<Codec>(spec, n, bytes + used, left - used, header)) return 0;
      used += header.bytes;
    }
    return used;
  }
  template <template <class> class Skeleton>
  static const auto& ops(const CodecSpec&) {
    return Skeleton<Codec>::kOps;
  }
};
using TopKFamily = SparseFamily<TopK>;
using ThresholdFamily = SparseFamily<Threshold>;
using RandomKFamily = SparseFamily<RandomK>;

}  // namespace
}  // namespace cgx::kernels
