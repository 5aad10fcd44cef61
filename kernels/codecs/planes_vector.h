// planes.h on sixteen lanes: the codes of one block to and from memory.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/codecs/planes.h"
#include "kernels/lanes/block.h"

namespace cgx::kernels {
namespace {

// Whether one 16-lane word holds four codes side by side, so that they can be added in place.
constexpr bool one_word_plane(uint32_t bits) {
  return bits == 4 || bits == 2;
}

template <class V, uint32_t width>
CGX_INLINE void store_words(uint8_t* p, typename V::Ints words) {
  if constexpr (width == 4) {
    V::store_halfwords(p, words);
  } else {
    V::store_bytes(p, words);
  }
}

template <class V, uint32_t width>
CGX_INLINE typename V::Ints load_words(const uint8_t* p) {
  if constexpr (width == 4) {
    return V::load_halfwords(p);
  } else {
    return V::load_bytes(p);
  }
}

// Codes are below 2^bits.
template <class V, uint32_t bits>
CGX_INLINE void store_codes(uint8_t* block, const Codes<V>& c) {
  const auto plane = [&](auto bits_of_plane) {
    constexpr uint32_t width = bits_of_plane.j;
    constexpr uint32_t shift = plane_shift(bits, width);
    const auto mask = V::splat((1 << width) - 1);
    const auto part = [&](auto i) { return V::template right<shift>(c.v[i.j]) & mask; };
    const auto words = part(Index<0>()) | V::template left<width>(part(Index<1>())) |
                       V::template left<2 * width>(part(Index<2>())) |
                       V::template left<3 * width>(part(Index<3>()));
    store_words<V, width>(block + plane_offset(bits, width), words);
  };
  if constexpr (bits & 8) {
    for_each_vector([&](auto i) { V::store_bytes(block + 16 * i.j, c.v[i.j]); });
  }
  if constexpr (bits & 4) plane(Index<4>());
  if constexpr (bits & 2) plane(Index<2>());
  if constexpr (bits & 1) {
    for_each_vector([&](auto i) {
      const uint16_t set = V::low_bits(V::template right<plane_shift(bits, 1)>(c.v[i.j]));
      std::memcpy(block + plane_offset(bits, 1) + 2 * i.j, &set, sizeof(set));
    });
  }
}

template <class V, uint32_t bits>
CGX_INLINE Codes<V> load_codes(const uint8_t* block) {
  Codes<V> c{{V::splat(0), V::splat(0), V::splat(0), V::splat(0)}};
  const auto plane = [&](auto bits_of_plane) {
    constexpr uint32_t width = bits_of_plane.j;
    const auto words = load_words<V, width>(block + plane_offset(bits, width));
    for_each_vector([&](auto i) {
      const auto part = V::template right<width * i.j>(words) & V::splat((1 << width) - 1);
      c.v[i.j] = c.v[i.j] | V::template left<plane_shift(bits, width)>(part);
    });
  };
  if constexpr (bits & 8) {
    for_each_vector([&](auto i) { c.v[i.j] = V::load_bytes(block + 16 * i.j); });
  }
  if constexpr (bits & 4) plane(Index<4>());
  if constexpr (bits & 2) plane(Index<2>());
  if constexpr (bits & 1) {
    for_each_vector([&](auto i) {
      uint16_t set;
      std::memcpy(&set, block + plane_offset(bits, 1) + 2 * i.j, sizeof(set));
      c.v[i.j] = c.v[i.j] | V::spread_bits(set, 1 << plane_shift(bits, 1));
    });
  }
  return c;
}

}  // namespace
}  // namespace cgx::kernels
