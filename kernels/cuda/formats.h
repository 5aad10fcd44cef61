// How a team writes and reads the codes of one bucket: words (one number per value), planes
// (codecs/planes.h), or bytes under scales (codecs/fp8.h). Codes lie in memory that the team alone
// uses, aligned at least for a word.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/codecs/dither.h"
#include "kernels/codecs/fp8.h"
#include "kernels/codecs/planes.h"
#include "kernels/cuda/memory.h"
#include "kernels/cuda/scans.h"
#include "kernels/cuda/team.h"

namespace cgx::kernels {
namespace {

template <class Codec>
struct WordFormat {
  using Word = typename Codec::Word;
  using Meta = typename Codec::Meta;

  // Codes of x; returns how many values of each lane were saturated.
  template <class Team>
  static CGX_DEVICE void code(Team& team, const float* x, uint32_t n, const Meta& meta, uint64_t,
                              const CodecSpec&, uint8_t* codes,
                              typename Team::template Each<uint32_t>& saturated) {
    Word* words = reinterpret_cast<Word*>(codes);
    const uint32_t whole = misalignment(codes, kAligned) == 0 ? n & ~3u : 0;
    each_whole_quad(
        team, whole, [&](uint32_t e) { return line_at(x + e); },
        [&](uint32_t t, uint32_t e, const Quad& four) {
          Piece piece;
          for (uint32_t i = 0; i < 4; ++i) {
            piece.v[i] = Codec::word_of(four.v[i], meta, saturated[t]);
          }
          *reinterpret_cast<Piece*>(words + e) = piece;
        });
    team.each([&](uint32_t t) {
      CGX_ROLLED
      for (uint32_t e = whole + t; e < n; e += Team::kSize) {
        words[e] = Codec::word_of(x[e], meta, saturated[t]);
      }
    });
  }
  static CGX_DEVICE float value(const uint8_t* codes, uint32_t e, const Meta&) {
    return Codec::value_of(reinterpret_cast<const Word*>(codes)[e]);
  }

  static CGX_DEVICE bool is_plain(const Meta&) { return false; }

  struct alignas(4 * sizeof(Word)) [[gnu::may_alias]] Piece {
    Word v[4];
  };
  static constexpr uint32_t kAligned = sizeof(Piece);
  static CGX_DEVICE Piece piece(const uint8_t* codes, uint32_t e, const Meta&) {
    return *reinterpret_cast<const Piece*>(codes + sizeof(Word) * e);
  }
  static CGX_DEVICE Quad quad(const Piece& piece, uint32_t, const Meta&) {
    Quad x;
    for (uint32_t i = 0; i < 4; ++i) x.v[i] = Codec::value_of(piece.v[i]);
    return x;
  }
};

// The codec as kernels have it, where that differs from the functor: it may cover several functors
// (Dithered, fit with a CodecSpec) and say how a team finds its extent (team_extent).
template <class Codec>
struct KernelOf {
  using Type = Codec;
};

// A lane takes values l, 16 + l, 32 + l and 48 + l of a block, whose codes lie together in every
// plane and whose dithers come from the same draws.
template <class Codec>
struct PlaneFormat {
  using Meta = typename Codec::Meta;
  static constexpr uint32_t kBits = Codec::kBits, kBlockBytes = 8 * kBits;
  struct Codes {
    uint32_t v[4];
  };

  template <class Team>
  static CGX_DEVICE void code(Team& team, const float* x, uint32_t n, const Meta& meta,
                              uint64_t key, const CodecSpec& spec, uint8_t* codes,
                              typename Team::template Each<uint32_t>& saturated) {
    if constexpr (requires { typename Codec::Dithered; }) {
      if (spec.flags & CodecSpec::kStochastic) {
        code_as<typename Codec::Dithered>(team, x, n, meta, key, codes, saturated);
        return;
      }
    }
    code_as<Codec>(team, x, n, meta, key, codes, saturated);
  }

  static CGX_DEVICE float value(const uint8_t* codes, uint32_t e, const Meta& meta) {
    return Codec::value_of(get_code(codes + e / kBlock * kBlockBytes, kBits, e % kBlock), meta);
  }

  // Whether no value can be saturated, and codes need less care (plain_code_of).
  static CGX_DEVICE bool is_plain(const Meta& meta) {
    if constexpr (requires { Codec::is_plain(meta); }) return Codec::is_plain(meta);
    return false;
  }

  // Where the codes of values e to e + 3 lie in each plane, e % 4 == 0.
  struct Piece {
    uint32_t eights = 0;
    PairWord fours = {};
    uint32_t twos = 0, ones = 0;
  };
  static constexpr uint32_t kAligned = 8;
  static CGX_DEVICE Piece piece(const uint8_t* codes, uint32_t e, const Meta&) {
    const uint8_t* block = codes + e / kBlock * kBlockBytes;
    const uint32_t l = e % 16;
    Piece piece;
    if constexpr (kBits & 8) piece.eights = *reinterpret_cast<const AliasWord*>(block + e % kBlock);
    if constexpr (kBits & 4) {
      piece.fours = *reinterpret_cast<const PairWord*>(block + plane_offset(kBits, 4) + 2 * l);
    }
    if constexpr (kBits & 2) {
      piece.twos = *reinterpret_cast<const AliasWord*>(block + plane_offset(kBits, 2) + l);
    }
    if constexpr (kBits & 1) piece.ones = block[plane_offset(kBits, 1) + e % kBlock / 8];
    return piece;
  }
  static CGX_DEVICE Quad quad(const Piece& piece, uint32_t e, const Meta& meta) {
    const uint32_t j = e % kBlock / 16;
    const uint32_t fours[2] = {piece.fours.v[0] >> 4 * j, piece.fours.v[1] >> 4 * j};
    const uint32_t twos = piece.twos >> 2 * j, ones = piece.ones >> e % 8;
    Quad x;
    for (uint32_t i = 0; i < 4; ++i) {
      uint32_t code = 0;
      if constexpr (kBits & 8) code = piece.eights >> 8 * i & 255u;
      if constexpr (kBits & 4) {
        code |= (fours[i / 2] >> 16 * (i % 2) & 15u) << plane_shift(kBits, 4);
      }
      if constexpr (kBits & 2) code |= (twos >> 8 * i & 3u) << plane_shift(kBits, 2);
      if constexpr (kBits & 1) code |= (ones >> i & 1u) << plane_shift(kBits, 1);
      x.v[i] = Codec::value_of(code, meta);
    }
    return x;
  }

 private:
  // Lane t takes place t, t + kSize, ... of all, sixteen to a block.
  template <class Rounded, class Team>
  static CGX_DEVICE void code_as(Team& team, const float* x, uint32_t n, const Meta& meta,
                                 uint64_t key, uint8_t* codes,
                                 typename Team::template Each<uint32_t>& saturated) {
    const uint32_t places = 16 * static_cast<uint32_t>(blocks_of(n));
    uint32_t first = 0;
    if (n % kBlock == 0 && is_plain(meta)) {
      constexpr uint32_t kAtOnce = Team::kSize < 32 ? 2 : 4, kStep = Team::kSize;
      CGX_ROLLED
      for (; first + kStep * kAtOnce <= places; first += kStep * kAtOnce) {
        for (uint32_t i = 0; i < kAtOnce; ++i) {
          put<true>(team, first + kStep * i, places, codes,
                    [&](uint32_t, uint32_t block, uint32_t l) {
                      return plain_codes_of<Rounded, Team>(x, meta, key, block, l);
                    });
        }
      }
    }
    CGX_ROLLED
    for (; first < places; first += Team::kSize) {
      put<false>(team, first, places, codes, [&](uint32_t t, uint32_t block, uint32_t l) {
        return meta.nonfinite ? Codes{}
                              : codes_of<Rounded>(x, n, meta, key, block, l, saturated[t]);
      });
    }
    team.each([](uint32_t) {});
  }

  // The codes of places first .. first + kSize - 1: get(lane, block, l), where there are so many.
  template <bool whole, class Team, class Get>
  static CGX_DEVICE void put(Team& team, uint32_t first, uint32_t places, uint8_t* codes, Get get) {
    typename Team::template Each<Codes> c;
    team.lanes([&](uint32_t t) {
      const uint32_t block = (first + t) / 16, l = (first + t) % 16;
      c[t] = {};
      if (whole || first + t < places) {
        c[t] = get(t, block, l);
        put_wide_planes(codes + kBlockBytes * block, l, c[t]);
      }
    });
    if constexpr (kBits & 1) put_bits(team, c, first, places, codes);
  }

  template <class Rounded, class Team>
  static CGX_DEVICE Codes plain_codes_of(const float* x, const Meta& meta, uint64_t key,
                                         uint32_t block, uint32_t l) {
    Codes c = {};
    if constexpr (requires { Rounded::is_plain(meta); }) {
      uint32_t dithers[4] = {};
      if constexpr (Rounded::kDithers) four_dithers<kBits>(key, block, l, dithers);
      const float* own = x + kBlock * block + l;
      // Every second block the other way round, so that lanes of two blocks read other banks.
      const uint32_t turn = Team::kSize > 16 ? 16 * (block & 1) : 0;
      float turned[4] = {own[turn], own[16 - turn], own[32 + turn], own[48 - turn]};
      for (uint32_t j = 0; j < 4; ++j) {
        const float value = turn ? turned[j ^ 1] : turned[j];
        c.v[j] = Rounded::plain_code_of(value, meta, dithers[j]);
      }
    }
    return c;
  }

  template <class Rounded>
  static CGX_DEVICE Codes codes_of(const float* x, uint32_t n, const Meta& meta, uint64_t key,
                                   uint32_t block, uint32_t l, uint32_t& saturated) {
    uint32_t dithers[4] = {};
    if constexpr (Rounded::kDithers) four_dithers<kBits>(key, block, l, dithers);
    Codes c = {};
    for (uint32_t j = 0; j < 4; ++j) {
      const uint32_t e = kBlock * block + 16 * j + l;
      if (e < n) c.v[j] = Rounded::code_of(x[e], meta, dithers[j], saturated);
    }
    return c;
  }

  // All planes but that of single bits, whose bytes hold codes of several lanes.
  static CGX_DEVICE void put_wide_planes(uint8_t* block, uint32_t l, const Codes& c) {
    if constexpr (kBits & 8) {
      for (uint32_t j = 0; j < 4; ++j) block[16 * j + l] = static_cast<uint8_t>(c.v[j]);
    }
    if constexpr (kBits & 4) {
      reinterpret_cast<AliasHalf*>(block + plane_offset(kBits, 4))[l] =
          static_cast<uint16_t>(joined<4>(c));
    }
    if constexpr (kBits & 2) {
      block[plane_offset(kBits, 2) + l] = static_cast<uint8_t>(joined<2>(c));
    }
  }
  template <uint32_t width>
  static CGX_DEVICE uint32_t joined(const Codes& c) {
    uint32_t word = 0;
    for (uint32_t j = 0; j < 4; ++j) {
      word |= (c.v[j] >> plane_shift(kBits, width) & ((1u << width) - 1)) << width * j;
    }
    return word;
  }

  // Bit e % 8 of byte e / 8 of a block's plane is code e's: eight places have four such bytes.
  template <class Team>
  static CGX_DEVICE void put_bits(Team& team, const typename Team::template Each<Codes>& c,
                                  uint32_t first, uint32_t places, uint8_t* codes) {
    constexpr uint32_t kBytes = Team::kSize / 8;  // for each j
    for (uint32_t j = 0; j < 4; ++j) {
      const uint32_t set =
          team.ballot([&](uint32_t t) { return c[t].v[j] >> plane_shift(kBits, 1) & 1; });
      team.lanes([&](uint32_t t) {
        const uint32_t place = first + 8 * (t % kBytes);
        if (t / kBytes != j || place >= places) return;
        uint8_t* plane = codes + kBlockBytes * (place / 16) + plane_offset(kBits, 1);
        plane[2 * j + place % 16 / 8] = static_cast<uint8_t>(set >> 8 * (t % kBytes));
      });
    }
  }
};

// A lane takes value t of every thirty-two under a scale. Scales lie where the metadata is.
template <class Codec>
struct ScaledFormat {
  using Meta = typename Codec::Meta;

  template <class Team>
  static CGX_DEVICE void code(Team& team, const float* x, uint32_t n, const Meta& meta, uint64_t,
                              const CodecSpec&, uint8_t* codes,
                              typename Team::template Each<uint32_t>& saturated) {
    static_assert(kBlock == 2 * kScaled);
    const uint32_t halves = 2 * static_cast<uint32_t>(blocks_of(n));
    for (uint32_t half = 0; half < halves; ++half) {
      const uint32_t first = kScaled * half, left = first < n ? n - first : 0;
      const uint32_t count = left < kScaled ? left : kScaled;
      const uint32_t largest = team_max_abs_bits(team, x + first, count);
      const uint32_t scale = count > 0 ? Codec::scale_of(largest, meta) : 0;
      team.lanes([&](uint32_t t) {
        if (t == 0) outside(meta.scales_out)[half] = static_cast<uint8_t>(scale);
        for (uint32_t e = t; e < kScaled; e += Team::kSize) {
          uint8_t code = 0;
          if (e < count && !meta.nonfinite) {
            code = Codec::code_of(x[first + e], meta, scale, saturated[t]);
          }
          codes[Codec::place_of(first + e)] = code;
        }
      });
    }
    team.each([](uint32_t) {});
  }
  static CGX_DEVICE float value(const uint8_t* codes, uint32_t e, const Meta& meta) {
    return Codec::value_of(codes[Codec::place_of(e)], outside(meta.scales)[e / kScaled]);
  }

  static CGX_DEVICE bool is_plain(const Meta&) { return false; }

  struct Piece {
    uint8_t v[4], scale;
  };
  static constexpr uint32_t kAligned = 1;
  static CGX_DEVICE Piece piece(const uint8_t* codes, uint32_t e, const Meta& meta) {
    Piece piece{{}, outside(meta.scales)[e / kScaled]};
    for (uint32_t i = 0; i < 4; ++i) piece.v[i] = codes[Codec::place_of(e) + 4 * i];
    return piece;
  }
  static CGX_DEVICE Quad quad(const Piece& piece, uint32_t, const Meta&) {
    Quad x;
    for (uint32_t i = 0; i < 4; ++i) x.v[i] = Codec::value_of(piece.v[i], piece.scale);
    return x;
  }
};

template <class Codec>
concept HasPlanes = requires {
  Codec::kBits;
};
template <class Codec>
concept HasScales = requires {
  Codec::kBlockMetaBytes;
};
template <class Codec>
struct FormatOf {
  using Type = WordFormat<Codec>;
};
template <HasPlanes Codec>
struct FormatOf<Codec> {
  using Type = PlaneFormat<Codec>;
};
template <HasScales Codec>
struct FormatOf<Codec> {
  using Type = ScaledFormat<Codec>;
};
template <class Codec>
using Format = typename FormatOf<Codec>::Type;

}  // namespace
}  // namespace cgx::kernels
