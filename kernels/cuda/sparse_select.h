// Which values of a bucket a sparse codec sends: an exact selection by a team.
//
// Magnitudes are 31-bit numbers, looked at from the top. A histogram of their upper ten bits tells
// the bin that the last wanted value lies in; what is above is marked as selected, what is in the
// bin as a candidate. Eleven and then ten more bits decide among the candidates, and of those that
// are equal the first ones win.
#pragma once

#include <cstdint>

#include "kernels/codecs/sparse.h"
#include "kernels/cuda/memory.h"
#include "kernels/cuda/team.h"
#include "kernels/cuda/views.h"

namespace cgx::kernels {
namespace {

// The fast memory of a team that works on sparse buckets.
struct SparseShared {
  static constexpr uint32_t kBins = 4096, kWords = kSparseBucket / 32;
  uint32_t bins[kBins];
  uint32_t over[kWords], at[kWords];  // a bit per value: selected, candidate
};

// Part of a magnitude. Bins have several copies, so that neighbours rarely add to the same one.
struct Digit {
  uint32_t shift, bits;

  CGX_DEVICE uint32_t of(uint32_t magnitude) const { return magnitude >> shift & (bins() - 1); }
  CGX_DEVICE uint32_t bins() const { return 1u << bits; }
  CGX_DEVICE uint32_t copies() const { return SparseShared::kBins >> bits; }
  CGX_DEVICE uint32_t place(uint32_t magnitude, uint32_t lane) const {
    return of(magnitude) * copies() + lane % copies();
  }
};
constexpr uint32_t kDigits = 3;
CGX_DEVICE constexpr Digit digit_of(uint32_t i) {
  return i == 0 ? Digit{21, 10} : i == 1 ? Digit{10, 11} : Digit{0, 10};
}

CGX_DEVICE inline uint32_t bits_set(uint32_t x) {
#ifdef __CUDA_ARCH__
  return static_cast<uint32_t>(__popc(static_cast<int>(x)));
#else
  return static_cast<uint32_t>(__builtin_popcount(x));
#endif
}
// x is not 0.
CGX_DEVICE inline uint32_t lowest_bit(uint32_t x) {
  return bits_set((x & (0u - x)) - 1);
}

// Where lane t's run of `count` things begins; it ends where the next lane's does.
template <class Team>
CGX_DEVICE uint32_t run_begin(uint32_t count, uint32_t t) {
  const uint32_t run = (count + Team::kSize - 1) / Team::kSize;
  return t * run < count ? t * run : count;
}

// f(lane, word) for the words of a bitmap of n bits: each lane has a run of them.
template <class Team, class F>
CGX_DEVICE void each_word(Team& team, uint32_t n, F f) {
  const uint32_t words = (n + 31) / 32;
  team.each([&](uint32_t t) {
    const uint32_t end = run_begin<Team>(words, t + 1);
    for (uint32_t w = run_begin<Team>(words, t); w < end; ++w) f(t, w);
  });
}

// f(lane, e) for the places of a bitmap's set bits.
template <class Team, class F>
CGX_DEVICE void each_marked(Team& team, const uint32_t* marks, uint32_t n, F f) {
  each_word(team, n, [&](uint32_t t, uint32_t w) {
    for (uint32_t bits = marks[w]; bits != 0; bits &= bits - 1) f(t, 32 * w + lowest_bit(bits));
  });
}

// rank[t]: how many bits are set in front of lane t's words. Returns how many are in all.
template <class Team>
CGX_DEVICE uint32_t rank_marked(Team& team, const uint32_t* marks, uint32_t n,
                                typename Team::template Each<uint32_t>& rank) {
  team.lanes([&](uint32_t t) { rank[t] = 0; });
  each_word(team, n, [&](uint32_t t, uint32_t w) { rank[t] += bits_set(marks[w]); });
  return team.scan(rank);
}

template <class Team>
CGX_DEVICE void clear_words(Team& team, uint32_t* words, uint32_t n) {
  team.each([&](uint32_t t) {
    for (uint32_t w = t; w < n; w += Team::kSize) words[w] = 0;
  });
}

// What one pass over a bucket finds.
struct Survey {
  uint32_t max_abs, reaching;  // the largest magnitude; how many are at least want.floor
};

// get(e, count) is the Quad at e; the first digit's histogram is made on the way, if `bins`.
template <class Team, class Get>
CGX_DEVICE Survey survey(Team& team, uint32_t n, uint32_t floor, bool bins, SparseShared& s,
                         Get get) {
  if (bins) clear_words(team, s.bins, SparseShared::kBins);
  typename Team::template Each<Survey> seen;
  team.lanes([&](uint32_t t) { seen[t] = {0, 0}; });
  each_quad(team, n, [&](uint32_t t, uint32_t e, uint32_t count) {
    const Quad x = get(e, count);
    for (uint32_t i = 0; i < count; ++i) {
      const uint32_t magnitude = abs_bits(x.v[i]);
      seen[t].max_abs = magnitude > seen[t].max_abs ? magnitude : seen[t].max_abs;
      seen[t].reaching += magnitude >= floor;
      if (bins) team.bump(&s.bins[digit_of(0).place(magnitude, t)], 1);
    }
  });
  return team.merge(seen, [](Survey& a, const Survey& b) {
    a.max_abs = b.max_abs > a.max_abs ? b.max_abs : a.max_abs;
    a.reaching += b.reaching;
  });
}

// The bin that holds the last of `wanted` largest, and how many lie in higher ones.
struct Cut {
  uint32_t bin, above;
};
template <class Team>
CGX_DEVICE Cut find_cut(Team& team, const Digit& digit, uint32_t wanted, const SparseShared& s) {
  const uint32_t bins = digit.bins();
  // Each lane has a run of bins, counted from the highest down.
  const auto each_bin = [&](uint32_t t, auto f) {
    const uint32_t end = run_begin<Team>(bins, t + 1);
    for (uint32_t i = run_begin<Team>(bins, t); i < end; ++i) {
      uint32_t count = 0;
      for (uint32_t c = 0; c < digit.copies(); ++c) {
        count += s.bins[(bins - 1 - i) * digit.copies() + c];
      }
      f(bins - 1 - i, count);
    }
  };
  typename Team::template Each<uint32_t> above;
  typename Team::template Each<Cut> cut;
  team.lanes([&](uint32_t t) {
    above[t] = 0;
    each_bin(t, [&](uint32_t, uint32_t count) { above[t] += count; });
  });
  team.scan(above);
  team.lanes([&](uint32_t t) {
    cut[t] = {0, 0};
    uint32_t seen = above[t];
    each_bin(t, [&](uint32_t bin, uint32_t count) {
      if (seen < wanted && seen + count >= wanted) cut[t] = {bin, seen};
      seen += count;
    });
  });
  return team.merge(cut, [](Cut& a, const Cut& b) {
    a.bin += b.bin;  // one lane's, others have zeros
    a.above += b.above;
  });
}

// over := values above, at := values at what `side` says of a magnitude (2 and 1).
template <class Team, class Side>
CGX_DEVICE void mark(Team& team, const float* x, uint32_t n, SparseShared& s, Side side) {
  clear_words(team, s.over, SparseShared::kWords);
  clear_words(team, s.at, SparseShared::kWords);
  each_quad(team, n, [&](uint32_t, uint32_t e, uint32_t count) {
    const Quad quad = *reinterpret_cast<const Quad*>(x + e);
    uint32_t over = 0, at = 0;
    for (uint32_t i = 0; i < count; ++i) {
      const uint32_t which = side(abs_bits(quad.v[i]));
      over |= which / 2 << i;
      at |= which % 2 << i;
    }
    if (over) team.set(&s.over[e / 32], over << e % 32);
    if (at) team.set(&s.at[e / 32], at << e % 32);
  });
}

// Candidates decided by one more digit: of `wanted` the rest that still is.
template <class Team>
CGX_DEVICE uint32_t refine(Team& team, const float* x, uint32_t n, const Digit& digit,
                           uint32_t wanted, SparseShared& s) {
  clear_words(team, s.bins, SparseShared::kBins);
  each_marked(team, s.at, n, [&](uint32_t t, uint32_t e) {
    team.bump(&s.bins[digit.place(abs_bits(x[e]), t)], 1);
  });
  const Cut cut = find_cut(team, digit, wanted, s);
  each_word(team, n, [&](uint32_t, uint32_t w) {
    uint32_t over = 0, at = 0;
    for (uint32_t bits = s.at[w]; bits != 0; bits &= bits - 1) {
      const uint32_t place = lowest_bit(bits), value = digit.of(abs_bits(x[32 * w + place]));
      over |= uint32_t{value > cut.bin} << place;
      at |= uint32_t{value == cut.bin} << place;
    }
    s.over[w] |= over;
    s.at[w] = at;
  });
  return wanted - cut.above;
}

// The first `wanted` candidates are selected.
template <class Team>
CGX_DEVICE void take_first(Team& team, uint32_t n, uint32_t wanted, SparseShared& s) {
  typename Team::template Each<uint32_t> rank;
  rank_marked(team, s.at, n, rank);
  each_word(team, n, [&](uint32_t t, uint32_t w) {
    for (uint32_t bits = s.at[w]; bits != 0 && rank[t] < wanted; bits &= bits - 1, ++rank[t]) {
      s.over[w] |= bits & (0u - bits);
    }
  });
}

// s.over := the values of x that `want` selects. The bins hold the first digit's histogram where
// more reach the floor than are wanted.
template <class Team>
CGX_DEVICE void select(Team& team, const float* x, uint32_t n, const Want& want, const Survey& seen,
                       SparseShared& s) {
  if (seen.reaching <= want.most) {
    mark(team, x, n, s, [&](uint32_t magnitude) { return magnitude >= want.floor ? 2u : 0u; });
    return;
  }
  const Digit first = digit_of(0);
  const Cut cut = find_cut(team, first, want.most, s);
  mark(team, x, n, s, [&](uint32_t magnitude) {
    const uint32_t value = first.of(magnitude);
    return value > cut.bin ? 2u : value == cut.bin ? 1u : 0u;
  });
  uint32_t wanted = want.most - cut.above;
  for (uint32_t i = 1; i < kDigits; ++i) wanted = refine(team, x, n, digit_of(i), wanted, s);
  take_first(team, n, wanted, s);
}

}  // namespace
}  // namespace cgx::kernels
