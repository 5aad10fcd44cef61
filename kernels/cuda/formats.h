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
    team.each([&](uint32_t t) {
      for (uint32_t e = t; e < n; e += Team::kSize) {
        words[e] = Codec::word_of(x[e], meta, saturated[t]);
      }
    });
  }
  static CGX_DEVICE float value(const uint8_t* codes, uint32_t e, const Meta&) {
    return Codec::value_of(reinterpret_cast<const Word*>(codes)[e]);
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

 private:
  template <class Rounded, class Team>
  static CGX_DEVICE void code_as(Team& team, const float* x, uint32_t n, const Meta& meta,
                                 uint64_t key, uint8_t* codes,
                                 typename Team::template Each<uint32_t>& saturated) {
    constexpr uint32_t kTogether = Team::kSize / 16;  // blocks at a time
    const uint32_t blocks = static_cast<uint32_t>(blocks_of(n));
    for (uint32_t first = 0; first < blocks; first += kTogether) {
      typename Team::template Each<Codes> c;
      team.lanes([&](uint32_t t) {
        const uint32_t block = first + t / 16, l = t % 16;
        c[t] =
            meta.nonfinite ? Codes{} : codes_of<Rounded>(x, n, meta, key, block, l, saturated[t]);
        if (block < blocks) put_wide_planes(codes + kBlockBytes * block, l, c[t]);
      });
      if constexpr (kBits & 1) put_bits(team, c, first, blocks, codes);
    }
    team.each([](uint32_t) {});
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

  // Halfword j of a block's plane is bit l of every code 16 * j + l.
  template <class Team>
  static CGX_DEVICE void put_bits(Team& team, const typename Team::template Each<Codes>& c,
                                  uint32_t first, uint32_t blocks, uint8_t* codes) {
    for (uint32_t j = 0; j < 4; ++j) {
      const uint32_t set =
          team.ballot([&](uint32_t t) { return c[t].v[j] >> plane_shift(kBits, 1) & 1; });
      team.lanes([&](uint32_t t) {
        const uint32_t block = first + t / 16;
        if (t % 16 != j || block >= blocks) return;
        uint8_t* plane = codes + kBlockBytes * block + plane_offset(kBits, 1);
        reinterpret_cast<AliasHalf*>(plane)[j] = static_cast<uint16_t>(set >> t / 16 * 16);
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
    static_assert(Team::kSize == kScaled && kBlock == 2 * kScaled);
    const uint32_t halves = 2 * static_cast<uint32_t>(blocks_of(n));
    for (uint32_t half = 0; half < halves; ++half) {
      const uint32_t first = kScaled * half, left = first < n ? n - first : 0;
      const uint32_t count = left < kScaled ? left : kScaled;
      const uint32_t largest = team_max_abs_bits(team, x + first, count);
      const uint32_t scale = count > 0 ? Codec::scale_of(largest, meta) : 0;
      team.lanes([&](uint32_t t) {
        if (t == 0) meta.scales_out[half] = static_cast<uint8_t>(scale);
        uint8_t code = 0;
        if (t < count && !meta.nonfinite) {
          code = Codec::code_of(x[first + t], meta, scale, saturated[t]);
        }
        codes[Codec::place_of(first + t)] = code;
      });
    }
    team.each([](uint32_t) {});
  }
  static CGX_DEVICE float value(const uint8_t* codes, uint32_t e, const Meta& meta) {
    return Codec::value_of(codes[Codec::place_of(e)], meta.scales[e / kScaled]);
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
