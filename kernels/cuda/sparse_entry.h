// The entry of one sparse bucket, written and read by a team: codecs/sparse_format.h in parallel.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/codecs/sparse.h"
#include "kernels/cuda/maxmin.h"
#include "kernels/cuda/memory.h"
#include "kernels/cuda/sparse_select.h"
#include "kernels/cuda/team.h"

namespace cgx::kernels {
namespace {

// What is sent of a bucket: values and their places, rising; what they decode to.
struct Picked {
  uint32_t count;
  uint16_t* index;
  float *value, *sent;
};

CGX_DEVICE inline uint32_t gap_before(const uint16_t* index, uint32_t i) {
  return i == 0 ? index[0] : index[i] - index[i - 1] - 1u;
}

// start[t]: where the gaps of lane t's run of values begin. Returns how many bytes there are.
template <class Team>
CGX_DEVICE uint32_t measure_gaps(Team& team, const uint16_t* index, uint32_t count,
                                 typename Team::template Each<uint32_t>& start) {
  team.lanes([&](uint32_t t) {
    const uint32_t end = run_begin<Team>(count, t + 1);
    start[t] = 0;
    for (uint32_t i = run_begin<Team>(count, t); i < end; ++i) {
      start[t] += 1 + gap_before(index, i) / kGapMore;
    }
  });
  return team.scan(start);
}

template <class Team>
CGX_DEVICE void put_gaps(Team& team, const uint16_t* index, uint32_t count,
                         const typename Team::template Each<uint32_t>& start, uint8_t* bytes) {
  team.each([&](uint32_t t) {
    const uint32_t end = run_begin<Team>(count, t + 1);
    uint8_t* to = bytes + start[t];
    for (uint32_t i = run_begin<Team>(count, t); i < end; ++i) {
      uint32_t gap = gap_before(index, i);
      for (; gap >= kGapMore; gap -= kGapMore) *to++ = static_cast<uint8_t>(kGapMore);
      *to++ = static_cast<uint8_t>(gap);
    }
  });
}

// The places of the marked values; s.over holds the same marks, as a bitmap on the wire does.
template <class Team>
CGX_DEVICE Indices put_indices(Team& team, const Picked& picked, uint32_t n, const SparseShared& s,
                               uint8_t* bytes) {
  typename Team::template Each<uint32_t> start;
  const uint32_t gaps = measure_gaps(team, picked.index, picked.count, start);
  const Indices indices = shortest_form(picked.count, gaps - picked.count, n);
  if (indices.form == IndexForm::kBitmap) {
    copy_bytes(team, reinterpret_cast<const uint8_t*>(s.over), bytes, indices.bytes);
    return indices;
  }
  team.each([&](uint32_t t) {
    if (t < 8 && indices.bytes > 0) bytes[indices.bytes - 8 + t] = 0;
  });
  if (indices.form == IndexForm::kList) {
    copy_bytes(team, reinterpret_cast<const uint8_t*>(picked.index), bytes, 2 * picked.count);
  } else {
    put_gaps(team, picked.index, picked.count, start, bytes);
  }
  return indices;
}

template <class Number, class Team>
CGX_DEVICE uint32_t put_numbers(Team& team, const Picked& picked, uint32_t limit, uint8_t* bytes) {
  using Word = typename Number::Word;
  typename Team::template Each<uint32_t> saturated;
  team.each([&](uint32_t t) {
    saturated[t] = 0;
    for (uint32_t i = t; i < picked.count; i += Team::kSize) {
      const Word word = Number::put(picked.value[i], limit, saturated[t]);
      std::memcpy(__builtin_assume_aligned(bytes + sizeof(Word) * i, sizeof(Word)), &word,
                  sizeof(Word));
      picked.sent[i] = Number::get(word);
    }
  });
  return team_total(team, saturated);
}

// A warp makes the codes of 512 values.
template <uint32_t bits, class Team>
CGX_DEVICE uint32_t put_levels(Team& team, const Picked& picked, uint32_t limit, uint8_t* bytes) {
  using Codec = MaxMinKernel<bits>;
  using Codes = Format<Codec>;
  const uint32_t buckets = static_cast<uint32_t>(buckets_of(picked.count, kValueBucket));
  typename Team::template Each<uint32_t> saturated;
  team.lanes([&](uint32_t t) { saturated[t] = 0; });
  team.warps([&](auto& warp, uint32_t own, uint32_t warps) {
    using Warp = std::remove_reference_t<decltype(warp)>;
    for (uint32_t b = own; b < buckets; b += warps) {
      const uint32_t first = b * kValueBucket, left = picked.count - first;
      const uint32_t n = left < kValueBucket ? left : kValueBucket;
      uint8_t* codes = bytes + 8 * buckets + b * Codec::code_bytes(kValueBucket);
      const MaxMinMeta meta = Codec::fit(team_fold<Codec>(warp, picked.value + first, n), n, limit);
      typename Warp::template Each<uint32_t> more;
      warp.lanes([&](uint32_t t) {
        more[t] = 0;
        if (t == 0) Codec::put_meta(meta, bytes + 8 * b);
      });
      Codes::code(warp, picked.value + first, n, meta, 0, CodecSpec(), codes, more);
      warp.each([&](uint32_t t) {
        for (uint32_t e = t; e < n; e += Warp::kSize) {
          picked.sent[first + e] = Codes::value(codes, e, meta);
        }
      });
      const uint32_t sum = team_total(warp, more);
      warp.lanes([&](uint32_t t) {
        if (t == 0) saturated[Warp::kSize * own] += sum;
      });
    }
  });
  return team_total(team, saturated);
}

// The picked values, finite ones, and their padding. Returns how many were saturated.
template <class Team>
CGX_DEVICE uint32_t put_values(Team& team, SparseValues kind, const Picked& picked, uint32_t limit,
                               uint8_t* bytes) {
  const uint64_t length = value_bytes(kind, picked.count);
  team.each([&](uint32_t t) {
    if (t < 8 && length > 0) bytes[length - 8 + t] = 0;
  });
  switch (kind) {
    case SparseValues::kF32:
      return put_numbers<RawNumber>(team, picked, limit, bytes);
    case SparseValues::kF16:
      return put_numbers<HalfNumber>(team, picked, limit, bytes);
    case SparseValues::kMaxMin8:
      return put_levels<8>(team, picked, limit, bytes);
    case SparseValues::kMaxMin4:
      return put_levels<4>(team, picked, limit, bytes);
  }
  return 0;
}

// Number i of an array at any address.
template <class Word>
CGX_DEVICE Word word_at(const uint8_t* bytes, uint32_t i) {
  Word word;
  if (misalignment(bytes, sizeof(Word)) == 0) {
    std::memcpy(&word, __builtin_assume_aligned(bytes + sizeof(Word) * i, sizeof(Word)),
                sizeof(Word));
  } else {
    std::memcpy(&word, bytes + sizeof(Word) * i, sizeof(Word));
  }
  return word;
}

// Readers return false, for all lanes, where no encoder writes such bytes.
template <class Team>
CGX_DEVICE bool none(Team& team, const typename Team::template Each<uint32_t>& bad) {
  return team.merge(bad, [](uint32_t& a, uint32_t b) { a |= b; }) == 0;
}

template <class Team>
CGX_DEVICE bool get_list(Team& team, const uint8_t* bytes, uint32_t count, uint32_t n,
                         uint16_t* index) {
  typename Team::template Each<uint32_t> bad;
  team.lanes([&](uint32_t t) {
    bad[t] = 0;
    for (uint32_t i = t; i < count; i += Team::kSize) {
      index[i] = word_at<uint16_t>(bytes, i);
      bad[t] |= index[i] >= n || (i > 0 && word_at<uint16_t>(bytes, i - 1) >= index[i]);
    }
  });
  return none(team, bad);
}

// Every byte but 255 ends a gap: its value's index is the sum of all bytes so far, and one for each
// value before.
template <class Team>
CGX_DEVICE bool get_gaps(Team& team, const uint8_t* bytes, uint32_t given, uint32_t count,
                         uint32_t n, uint16_t* index) {
  typename Team::template Each<uint32_t> ends, sum, used, bad;
  team.lanes([&](uint32_t t) {
    ends[t] = sum[t] = used[t] = bad[t] = 0;
    const uint32_t end = run_begin<Team>(given, t + 1);
    for (uint32_t i = run_begin<Team>(given, t); i < end; ++i) {
      ends[t] += bytes[i] != kGapMore;
      sum[t] += bytes[i];
    }
  });
  team.scan(ends);
  team.scan(sum);
  team.lanes([&](uint32_t t) {
    const uint32_t end = run_begin<Team>(given, t + 1);
    uint32_t at = sum[t], i = ends[t];
    for (uint32_t byte = run_begin<Team>(given, t); byte < end && i < count; ++byte) {
      at += bytes[byte];
      if (bytes[byte] == kGapMore) continue;
      bad[t] |= at + i >= n;
      index[i] = static_cast<uint16_t>(at + i);
      if (++i == count) used[t] = byte + 1;
    }
  });
  const uint32_t end = team_total(team, used);
  return none(team, bad) && whole_words(end) == given;  // end is 0 where there are too few
}

template <class Team>
CGX_DEVICE bool get_bitmap(Team& team, const uint8_t* bytes, uint32_t count, uint32_t n,
                           SparseShared& s, uint16_t* index) {
  typename Team::template Each<uint32_t> rank, bad;
  team.lanes([&](uint32_t t) { bad[t] = 0; });
  const uint32_t padded = (n + 63) / 64 * 64;  // whose bits must not be set
  each_word(team, padded, [&](uint32_t t, uint32_t w) {
    s.over[w] = word_at<uint32_t>(bytes, w);
    const uint32_t valid = n >= 32 * w + 32 ? ~0u : n <= 32 * w ? 0u : (1u << n % 32) - 1;
    bad[t] |= s.over[w] & ~valid;
  });
  if (!none(team, bad) || rank_marked(team, s.over, n, rank) != count) return false;
  each_marked(team, s.over, n,
              [&](uint32_t t, uint32_t e) { index[rank[t]++] = static_cast<uint16_t>(e); });
  return true;
}

template <class Team>
CGX_DEVICE bool get_indices(Team& team, IndexForm form, const uint8_t* bytes, uint64_t given,
                            uint32_t count, uint32_t n, SparseShared& s, uint16_t* index) {
  switch (form) {
    case IndexForm::kList:
      return given == list_bytes(count) && get_list(team, bytes, count, n, index);
    case IndexForm::kGaps:
      return get_gaps(team, bytes, static_cast<uint32_t>(given), count, n, index);
    case IndexForm::kBitmap:
      return given == bitmap_bytes(n) && get_bitmap(team, bytes, count, n, s, index);
    case IndexForm::kNone:
    case IndexForm::kDrawn:
      return false;
  }
  return false;
}

template <class Number, class Team>
CGX_DEVICE bool get_numbers(Team& team, const uint8_t* bytes, uint32_t count, float* value) {
  team.each([&](uint32_t t) {
    for (uint32_t i = t; i < count; i += Team::kSize) {
      value[i] = Number::get(word_at<typename Number::Word>(bytes, i));
    }
  });
  return true;
}

template <uint32_t bits, class Team>
CGX_DEVICE bool get_levels(Team& team, const uint8_t* bytes, uint32_t count, float* value) {
  using Codec = MaxMinKernel<bits>;
  const uint32_t buckets = static_cast<uint32_t>(buckets_of(count, kValueBucket));
  const uint8_t* codes = bytes + 8 * buckets;
  typename Team::template Each<uint32_t> bad;
  team.each([&](uint32_t t) {
    bad[t] = 0;
    for (uint32_t i = t; i < count; i += Team::kSize) {
      MaxMinMeta meta;
      const uint32_t b = i / kValueBucket;
      bad[t] |= !Codec::get_meta(bytes + 8 * b, meta);
      value[i] =
          Format<Codec>::value(codes + b * Codec::code_bytes(kValueBucket), i % kValueBucket, meta);
    }
  });
  return none(team, bad);
}

template <class Team>
CGX_DEVICE bool get_values(Team& team, SparseValues kind, const uint8_t* bytes, uint32_t count,
                           float* value) {
  switch (kind) {
    case SparseValues::kF32:
      return get_numbers<RawNumber>(team, bytes, count, value);
    case SparseValues::kF16:
      return get_numbers<HalfNumber>(team, bytes, count, value);
    case SparseValues::kMaxMin8:
      return get_levels<8>(team, bytes, count, value);
    case SparseValues::kMaxMin4:
      return get_levels<4>(team, bytes, count, value);
  }
  return false;
}

}  // namespace
}  // namespace cgx::kernels
