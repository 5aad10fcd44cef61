// The values that a sparse codec selected, one after the other: fp32, fp16, or max-min codes of 8
// or 4 bits, nearest, in buckets of 512 selected values (all metadata first, then all codes).
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/codecs/casts.h"
#include "kernels/codecs/maxmin.h"
#include "kernels/codecs/sparse_format.h"

namespace cgx::kernels {
namespace {

constexpr uint32_t kValueBucket = 512;

CGX_SHARED constexpr uint64_t value_bytes(SparseValues kind, uint64_t count) {
  switch (kind) {
    case SparseValues::kF32:
      return whole_words(4 * count);
    case SparseValues::kF16:
      return whole_words(2 * count);
    case SparseValues::kMaxMin8:
      return 8 * buckets_of(count, kValueBucket) + 64 * blocks_of(count);
    case SparseValues::kMaxMin4:
      return 8 * buckets_of(count, kValueBucket) + 32 * blocks_of(count);
  }
  return 0;
}

// Values to bytes, and what they decode to; `limit` is where the receiver's type overflows.
template <class Number>
void put_numbers(const float* x, uint32_t count, uint32_t limit, uint8_t* bytes, float* sent,
                 RangeStats& stats) {
  using Word = typename Number::Word;
  for (uint32_t i = 0; i < count; ++i) {
    const Word word = Number::put(x[i], limit, stats.saturated);
    std::memcpy(bytes + sizeof(Word) * i, &word, sizeof(Word));
    sent[i] = Number::get(word);
  }
}

template <class Number>
void get_numbers(const uint8_t* bytes, uint32_t count, float* x) {
  using Word = typename Number::Word;
  for (uint32_t i = 0; i < count; ++i) {
    Word word;
    std::memcpy(&word, bytes + sizeof(Word) * i, sizeof(Word));
    x[i] = Number::get(word);
  }
}

template <uint32_t bits>
void put_levels(const float* x, uint32_t count, uint32_t limit, uint8_t* bytes, float* sent,
                RangeStats& stats) {
  using Codec = MaxMin<bits, Rounding::kNearest>;
  uint8_t* codes = bytes + 8 * buckets_of(count, kValueBucket);
  for (uint32_t first = 0; first < count; first += kValueBucket, bytes += 8) {
    const uint32_t n = count - first < kValueBucket ? count - first : kValueBucket;
    const MaxMinMeta meta = Codec::fit(Codec::extent_of(x + first, n), n, limit);
    Codec::put_meta(meta, bytes);
    Codec::code(x + first, n, meta, 0, codes, stats);
    Codec::value(codes, n, meta, sent + first);
    codes += Codec::code_bytes(n);
  }
}

template <uint32_t bits>
bool get_levels(const uint8_t* bytes, uint32_t count, float* x) {
  using Codec = MaxMin<bits, Rounding::kNearest>;
  const uint8_t* codes = bytes + 8 * buckets_of(count, kValueBucket);
  for (uint32_t first = 0; first < count; first += kValueBucket, bytes += 8) {
    const uint32_t n = count - first < kValueBucket ? count - first : kValueBucket;
    MaxMinMeta meta;
    if (!Codec::get_meta(bytes, meta)) return false;
    Codec::value(codes, n, meta, x + first);
    codes += Codec::code_bytes(n);
  }
  return true;
}

// Finite values only. Padding becomes zeros.
inline void put_values(SparseValues kind, const float* x, uint32_t count, uint32_t limit,
                       uint8_t* bytes, float* sent, RangeStats& stats) {
  const uint64_t length = value_bytes(kind, count);
  if (length == 0) return;
  std::memset(bytes + length - 8, 0, 8);
  switch (kind) {
    case SparseValues::kF32:
      return put_numbers<RawNumber>(x, count, limit, bytes, sent, stats);
    case SparseValues::kF16:
      return put_numbers<HalfNumber>(x, count, limit, bytes, sent, stats);
    case SparseValues::kMaxMin8:
      return put_levels<8>(x, count, limit, bytes, sent, stats);
    case SparseValues::kMaxMin4:
      return put_levels<4>(x, count, limit, bytes, sent, stats);
  }
}

// False where a value is not finite: no encoder sends such a one.
inline bool get_values(SparseValues kind, const uint8_t* bytes, uint32_t count, float* x) {
  bool good = true;
  switch (kind) {
    case SparseValues::kF32:
      get_numbers<RawNumber>(bytes, count, x);
      break;
    case SparseValues::kF16:
      get_numbers<HalfNumber>(bytes, count, x);
      break;
    case SparseValues::kMaxMin8:
      good = get_levels<8>(bytes, count, x);
      break;
    case SparseValues::kMaxMin4:
      good = get_levels<4>(bytes, count, x);
      break;
  }
  return good && max_abs_bits(x, count) < kInfBits;
}

}  // namespace
}  // namespace cgx::kernels
