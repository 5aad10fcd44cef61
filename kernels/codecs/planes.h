// How codes of 1 to 8 bits lie in memory: blocks of 64 values, each 8 * bits bytes.
//
// A code is cut into planes of 8, 4, 2 and 1 bits, the widest first and taking the lowest bits, as
// the binary digits of `bits` say (7 = 4 + 2 + 1). Inside a plane, with value e = 16 * j + l (l <
// 16):
//   8 bits: 64 bytes, byte e
//   4 bits: 16 little-endian halfwords, halfword l holds j = 0..3 from the lowest bits up
//   2 bits: 16 bytes, byte l holds j = 0..3 from the lowest bits up
//   1 bit:  one little-endian 64-bit word, bit e
// So one 16-lane vector holds, for every lane, what four vectors of values need (ARITHMETIC.md).
#pragma once

#include <cstdint>

#include "kernels/floats.h"
#include "kernels/range.h"

namespace cgx::kernels {
namespace {

// Where plane `width` of a `bits`-wide code starts, and by how much its part of the code is
// shifted.
constexpr uint32_t plane_shift(uint32_t bits, uint32_t width) {
  return bits & ~(2 * width - 1);
}
constexpr uint32_t plane_offset(uint32_t bits, uint32_t width) {
  return 8 * (bits & ~(2 * width - 1));
}

// One code of one block, the scalar way. put_code ORs into zeroed bytes.
CGX_SHARED inline void put_code(uint8_t* block, uint32_t bits, uint32_t e, uint32_t code) {
  const uint32_t j = e / 16, l = e % 16;
  if (bits & 8) block[e] |= static_cast<uint8_t>(code);
  if (bits & 4) {
    const uint32_t part = code >> plane_shift(bits, 4) & 15;
    block[plane_offset(bits, 4) + 2 * l + j / 2] |= static_cast<uint8_t>(part << 4 * (j % 2));
  }
  if (bits & 2) {
    const uint32_t part = code >> plane_shift(bits, 2) & 3;
    block[plane_offset(bits, 2) + l] |= static_cast<uint8_t>(part << 2 * j);
  }
  if (bits & 1) {
    const uint32_t part = code >> plane_shift(bits, 1) & 1;
    block[plane_offset(bits, 1) + e / 8] |= static_cast<uint8_t>(part << e % 8);
  }
}

CGX_SHARED inline uint32_t get_code(const uint8_t* block, uint32_t bits, uint32_t e) {
  const uint32_t j = e / 16, l = e % 16;
  uint32_t code = 0;
  if (bits & 8) code = block[e];
  if (bits & 4) {
    code |= (block[plane_offset(bits, 4) + 2 * l + j / 2] >> 4 * (j % 2) & 15u)
            << plane_shift(bits, 4);
  }
  if (bits & 2) {
    code |= (block[plane_offset(bits, 2) + l] >> 2 * j & 3u) << plane_shift(bits, 2);
  }
  if (bits & 1) {
    code |= (block[plane_offset(bits, 1) + e / 8] >> e % 8 & 1u) << plane_shift(bits, 1);
  }
  return code;
}

}  // namespace
}  // namespace cgx::kernels
