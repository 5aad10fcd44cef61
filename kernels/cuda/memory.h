// Loads and stores of a team: sixteen bytes at a time wherever the address allows it.
#pragma once

#include <cstdint>

#include "kernels/cuda/team.h"
#include "kernels/floats.h"

namespace cgx::kernels {
namespace {

// Sixteen and eight aligned bytes, of whatever type lies there.
struct alignas(16) [[gnu::may_alias]] Quad {
  float v[4];
};
struct alignas(16) [[gnu::may_alias]] QuadWord {
  uint32_t v[4];
};
struct alignas(8) [[gnu::may_alias]] QuadHalf {
  uint16_t v[4];
};
typedef uint32_t AliasWord __attribute__((may_alias));
typedef uint16_t AliasHalf __attribute__((may_alias));

CGX_DEVICE inline uint32_t misalignment(const void* p, uint32_t width) {
  return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(p) & (width - 1));
}

// A pointer that a job holds: it leads to the device's memory, never to a team's own, which nvcc
// cannot see and needs to know to move loads across stores to shared memory.
template <class T>
CGX_DEVICE inline T* outside(T* p) {
#ifdef __CUDA_ARCH__
  __builtin_assume(__isGlobal(p));
#endif
  return p;
}

// What a job's list says at one place; nvcc 13.0 fails on `outside` of a pointer to such structs.
template <class T>
CGX_DEVICE inline T listed(const T* p) {
#ifdef __CUDA_ARCH__
  static_assert(sizeof(T) % 8 == 0 && alignof(T) == 8);
  struct Words {
    unsigned long long v[sizeof(T) / 8];
  } words;
  for (uint32_t i = 0; i < sizeof(T) / 8; ++i) {
    words.v[i] = __ldg(reinterpret_cast<const unsigned long long*>(p) + i);
  }
  return __builtin_bit_cast(T, words);
#else
  return *p;
#endif
}

// Whether an array can be moved sixteen bytes at a time.
CGX_DEVICE inline bool in_lines(const void* p, DType dtype) {
  return dtype == DType::kF32 && misalignment(p, 16) == 0;
}
CGX_DEVICE inline Quad line_at(const float* p) {
  return *reinterpret_cast<const Quad*>(p);
}
CGX_DEVICE inline void put_line(float* p, const Quad& x) {
  *reinterpret_cast<Quad*>(p) = x;
}

// to_half and from_half, without branches.
CGX_DEVICE inline uint16_t half_of(float x) {
#ifdef __CUDA_ARCH__
  uint16_t half;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(x));
  return is_nan(x) ? kHalfNan : half;
#else
  return to_half(x);
#endif
}
CGX_DEVICE inline float of_half(uint16_t x) {
#ifdef __CUDA_ARCH__
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(x));
  return canonical_nan(value);
#else
  return from_half(x);
#endif
}

// Values first .. first + 3 of an array of small floats, the first `count` of them.
CGX_DEVICE inline Quad load_quad(const void* values, DType dtype, uint64_t first, uint32_t count) {
  Quad x = {};
  if (dtype == DType::kF32) {
    const float* p = outside(static_cast<const float*>(values) + first);
    if (count == 4 && misalignment(p, 16) == 0) return *reinterpret_cast<const Quad*>(p);
    for (uint32_t i = 0; i < 4; ++i) {
      if (i < count) x.v[i] = p[i];
    }
    return x;
  }
  const uint16_t* p = outside(static_cast<const uint16_t*>(values) + first);
  QuadHalf words = {};
  if (count == 4 && misalignment(p, 8) == 0) {
    words = *reinterpret_cast<const QuadHalf*>(p);
  } else {
    for (uint32_t i = 0; i < 4; ++i) {
      if (i < count) words.v[i] = p[i];
    }
  }
  for (uint32_t i = 0; i < 4; ++i) {
    x.v[i] = dtype == DType::kF16 ? of_half(words.v[i]) : canonical_nan(from_brain(words.v[i]));
  }
  return x;
}

// The last cast: plain nearest even.
CGX_DEVICE inline void store_quad(void* values, DType dtype, uint64_t first, uint32_t count,
                                  const Quad& x) {
  if (dtype == DType::kF32) {
    float* p = outside(static_cast<float*>(values) + first);
    if (count == 4 && misalignment(p, 16) == 0) {
      *reinterpret_cast<Quad*>(p) = x;
      return;
    }
    for (uint32_t i = 0; i < 4; ++i) {
      if (i < count) p[i] = x.v[i];
    }
    return;
  }
  uint16_t* p = outside(static_cast<uint16_t*>(values) + first);
  QuadHalf words;
  for (uint32_t i = 0; i < 4; ++i) {
    words.v[i] = dtype == DType::kF16 ? half_of(x.v[i]) : to_brain(x.v[i]);
  }
  if (count == 4 && misalignment(p, 8) == 0) {
    *reinterpret_cast<QuadHalf*>(p) = words;
    return;
  }
  for (uint32_t i = 0; i < 4; ++i) {
    if (i < count) p[i] = words.v[i];
  }
}

// How far into a sixteen-byte line bytes at `p` start, so that a copy of them elsewhere can start
// as far in; 0 where they are not even aligned for eight bytes, as codes elsewhere have to be.
CGX_DEVICE inline uint32_t line_offset(const uint8_t* p) {
  return misalignment(p, 8) == 0 ? misalignment(p, 16) : 0;
}

struct alignas(8) [[gnu::may_alias]] PairWord {
  uint32_t v[2];
};

// A copy that has neither head nor tail.
template <class Word, class Team>
CGX_DEVICE void copy_words_of(Team& team, const uint8_t* from, uint8_t* to, uint64_t n) {
  team.each([&](uint32_t t) {
    for (uint64_t i = sizeof(Word) * t; i < n; i += sizeof(Word) * Team::kSize) {
      *reinterpret_cast<Word*>(to + i) = *reinterpret_cast<const Word*>(from + i);
    }
  });
}

// The middle of a copy between places that start equally far into a Word, and its ends.
template <class Word, class Team>
CGX_DEVICE void copy_as(Team& team, const uint8_t* from, uint8_t* to, uint64_t n) {
  team.each([&](uint32_t t) {
    const uint32_t to_word = (0u - misalignment(to, sizeof(Word))) & (sizeof(Word) - 1);
    const uint64_t head = to_word < n ? to_word : n, words = (n - head) / sizeof(Word);
    const uint64_t tail = head + sizeof(Word) * words;
    CGX_ROLLED
    for (uint64_t i = t; i < head; i += Team::kSize) to[i] = from[i];
    CGX_ROLLED
    for (uint64_t i = t; i < words; i += Team::kSize) {
      reinterpret_cast<Word*>(to + head)[i] = reinterpret_cast<const Word*>(from + head)[i];
    }
    CGX_ROLLED
    for (uint64_t i = tail + t; i < n; i += Team::kSize) to[i] = from[i];
  });
}

// Sixteen bytes at a time between places that start equally far into a line, or else eight, four or
// one. Most codes start and end with eight bytes.
template <class Team>
CGX_DEVICE void copy_bytes(Team& team, const uint8_t* from, uint8_t* to, uint64_t n) {
  if (misalignment(from, 8) == 0 && misalignment(to, 8) == 0 && n % 8 == 0) {
    return copy_words_of<PairWord>(team, from, to, n);
  }
  if (misalignment(from, 16) == misalignment(to, 16)) return copy_as<QuadWord>(team, from, to, n);
  if (misalignment(from, 4) == misalignment(to, 4)) return copy_as<AliasWord>(team, from, to, n);
  copy_as<uint8_t>(team, from, to, n);
}

// A few bytes of metadata, by one lane.
template <uint32_t n>
CGX_DEVICE inline void copy_words(const uint8_t* from, uint8_t* to) {
  if (n == 8 && misalignment(from, 8) == 0 && misalignment(to, 8) == 0) {
    *reinterpret_cast<PairWord*>(to) = *reinterpret_cast<const PairWord*>(from);
  } else if (n % 4 == 0 && misalignment(from, 4) == 0 && misalignment(to, 4) == 0) {
    for (uint32_t i = 0; i < n / 4; ++i) {
      reinterpret_cast<AliasWord*>(to)[i] = reinterpret_cast<const AliasWord*>(from)[i];
    }
  } else {
    for (uint32_t i = 0; i < n; ++i) to[i] = from[i];
  }
}

}  // namespace
}  // namespace cgx::kernels
