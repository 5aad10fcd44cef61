// Random draws for stochastic rounding: one 64-bit key per bucket, 32-bit draws by index.
//
// Pure functions of (stream, bucket, index): the same on every lane, thread and grouping.
#pragma once

#include <cstdint>

#include "kernels/floats.h"

namespace cgx::kernels {
namespace {

constexpr uint64_t kGolden64 = 0x9e3779b97f4a7c15u;
constexpr uint32_t kGolden32 = 0x9e3779b9u;
constexpr uint32_t kDrawMultiplier1 = 0x7feb352du;
constexpr uint32_t kDrawMultiplier2 = 0x846ca68bu;

// The finaliser of SplitMix64.
CGX_SHARED inline uint64_t mix64(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

CGX_SHARED inline uint64_t bucket_key(uint64_t stream, uint64_t bucket) {
  return mix64(stream + (bucket + 1) * kGolden64);
}

// Draw `index` of a bucket: two multiply-xorshift rounds, the key's halves entering before each.
CGX_SHARED inline uint32_t draw(uint64_t key, uint32_t index) {
  uint32_t x = index * kGolden32 + static_cast<uint32_t>(key);
  x = (x ^ (x >> 16)) * kDrawMultiplier1;
  x ^= static_cast<uint32_t>(key >> 32);
  x = (x ^ (x >> 15)) * kDrawMultiplier2;
  return x ^ (x >> 16);
}

}  // namespace
}  // namespace cgx::kernels
