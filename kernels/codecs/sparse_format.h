// How a sparse codec's bucket lies on the wire: a header, indices in the form that is shortest,
// values.
//
//   range  := entry*        one per bucket of 65,536 values, each whole words
//   entry  := u32 bytes (header included, a multiple of 8), u16 count, u8 form,
//             u8 flags (1: non-finite), indices, zeros up to 8 bytes, values, zeros up to 8 bytes
//   form   := 0 none: count is 0, nothing follows; a non-finite bucket is one, all of it NaN
//             1 list: u16 per value
//             2 gaps: a byte per value, how many lie between it and the one before; 255 stands
//               for 255 more and goes on
//             3 bitmap: bit e for value e
//             4 drawn: u64 key of the bucket; positions follow from it (sparse.h, RandomK)
//
// Forms of equal length: the one with the lower number. Indices rise strictly. A decoder takes any
// form, does not look at padding, and refuses all else that no encoder writes.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/codec.h"
#include "kernels/floats.h"

namespace cgx::kernels {
namespace {

enum class IndexForm : uint8_t { kNone = 0, kList = 1, kGaps = 2, kBitmap = 3, kDrawn = 4 };

struct SparseHeader {
  uint32_t bytes = 0;
  uint16_t count = 0;
  IndexForm form = IndexForm::kNone;
  uint8_t flags = 0;
};
static_assert(sizeof(SparseHeader) == 8);
constexpr uint8_t kNonfiniteEntry = 1;
constexpr uint32_t kGapMore = 255;

// No bucket sends more: a quarter of it.
constexpr uint32_t kSentMax = kSparseBucket / 4;

CGX_SHARED constexpr uint64_t whole_words(uint64_t bytes) {
  return (bytes + 7) & ~uint64_t{7};
}
CGX_SHARED constexpr uint64_t list_bytes(uint64_t count) {
  return whole_words(2 * count);
}
CGX_SHARED constexpr uint64_t bitmap_bytes(uint32_t n) {
  return whole_words((n + 7) / 8);
}

// Gaps: the bytes beyond one per value.
inline uint32_t gap_escapes(const uint32_t* index, uint32_t count) {
  uint32_t escapes = count > 0 ? index[0] / kGapMore : 0;
  for (uint32_t i = 1; i < count; ++i) escapes += (index[i] - index[i - 1] - 1) / kGapMore;
  return escapes;
}

struct Indices {
  IndexForm form = IndexForm::kNone;
  uint64_t bytes = 0;  // whole words
};

// Of `count` rising indices below n, whose gaps take `escapes` bytes beyond one each.
CGX_SHARED inline Indices shortest_form(uint32_t count, uint32_t escapes, uint32_t n) {
  if (count == 0) return {};
  Indices best{IndexForm::kList, list_bytes(count)};
  const uint64_t gaps = whole_words(uint64_t{count} + escapes);
  if (gaps < best.bytes) best = {IndexForm::kGaps, gaps};
  if (bitmap_bytes(n) < best.bytes) best = {IndexForm::kBitmap, bitmap_bytes(n)};
  return best;
}

inline void put_list(const uint32_t* index, uint32_t count, uint8_t* bytes) {
  for (uint32_t i = 0; i < count; ++i) {
    const uint16_t word = static_cast<uint16_t>(index[i]);
    std::memcpy(bytes + 2 * i, &word, sizeof(word));
  }
}

// May write one byte beyond the gaps: the padding's, or the values', which come later.
inline void put_gaps(const uint32_t* index, uint32_t count, uint8_t* bytes) {
  uint32_t next = 0;
  for (uint32_t i = 0; i < count; ++i) {
    uint32_t gap = index[i] - next;
    next = index[i] + 1;
    for (; gap >= 2 * kGapMore; gap -= kGapMore) *bytes++ = static_cast<uint8_t>(kGapMore);
    // Most gaps take a byte, some two, at no foreseeable places: no branch for those.
    const uint32_t more = gap >= kGapMore;
    const uint32_t two = kGapMore | (gap - kGapMore) << 8;
    const uint16_t both = static_cast<uint16_t>(more ? two : gap);
    std::memcpy(bytes, &both, sizeof(both));
    bytes += 1 + more;
  }
}

inline void put_bitmap(const uint32_t* index, uint32_t count, uint8_t* bytes) {
  for (uint32_t i = 0; i < count; ++i) {
    bytes[index[i] / 8] |= static_cast<uint8_t>(1u << index[i] % 8);
  }
}

inline void put_indices(const Indices& indices, const uint32_t* index, uint32_t count,
                        uint8_t* bytes) {
  if (indices.form == IndexForm::kBitmap) {
    std::memset(bytes, 0, indices.bytes);
    return put_bitmap(index, count, bytes);
  }
  std::memset(bytes + indices.bytes - 8, 0, 8);
  if (indices.form == IndexForm::kList) put_list(index, count, bytes);
  if (indices.form == IndexForm::kGaps) put_gaps(index, count, bytes);
}

inline bool get_list(const uint8_t* bytes, uint32_t count, uint32_t n, uint32_t* index) {
  uint32_t next = 0;
  bool good = true;
  for (uint32_t i = 0; i < count; ++i) {
    uint16_t word;
    std::memcpy(&word, bytes + 2 * i, sizeof(word));
    good &= word >= next;
    index[i] = word;
    next = word + 1u;
  }
  return good && next <= n;
}

// Reads at most `bytes_max`; *used: how many.
inline bool get_gaps(const uint8_t* bytes, uint64_t bytes_max, uint32_t count, uint32_t n,
                     uint32_t* index, uint64_t* used) {
  uint32_t next = 0;
  uint64_t at = 0;
  for (uint32_t i = 0; i < count; ++i) {
    uint32_t byte = kGapMore;
    while (byte == kGapMore) {
      if (at == bytes_max || next >= n) return false;
      byte = bytes[at++];
      next += byte;
    }
    if (next >= n) return false;
    index[i] = next++;
  }
  *used = at;
  return true;
}

inline bool get_bitmap(const uint8_t* bytes, uint32_t count, uint32_t n, uint32_t* index) {
  uint32_t found = 0;
  for (uint32_t first = 0; first < n; first += 64) {
    uint64_t word;
    std::memcpy(&word, bytes + first / 8, sizeof(word));
    if (found + static_cast<uint32_t>(__builtin_popcountll(word)) > count) return false;
    for (; word != 0; word &= word - 1) {
      index[found++] = first + static_cast<uint32_t>(__builtin_ctzll(word));
    }
  }
  return found == count && (count == 0 || index[count - 1] < n);
}

// The indices of `count` values, which take up `bytes_given` to the byte. False if they do not or
// are none of this bucket's.
inline bool get_indices(IndexForm form, const uint8_t* bytes, uint64_t bytes_given, uint32_t count,
                        uint32_t n, uint32_t* index) {
  uint64_t used = 0;
  switch (form) {
    case IndexForm::kList:
      return bytes_given == list_bytes(count) && get_list(bytes, count, n, index);
    case IndexForm::kGaps:
      return get_gaps(bytes, bytes_given, count, n, index, &used) &&
             whole_words(used) == bytes_given;
    case IndexForm::kBitmap:
      return bytes_given == bitmap_bytes(n) && get_bitmap(bytes, count, n, index);
    case IndexForm::kNone:
    case IndexForm::kDrawn:
      return false;
  }
  return false;
}

}  // namespace
}  // namespace cgx::kernels
