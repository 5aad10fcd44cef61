// Sixteen fp32 or int32 lanes as two 256-bit registers (AVX2, F16C).
//
// The same vocabulary as simd_avx512.h; codecs and skeletons are written against it. `a` holds
// lanes 0-7, `b` lanes 8-15.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "kernels/floats.h"

namespace cgx::kernels {
namespace {

// Byte i of entry m: which lane is the i-th that m names.
struct PackTable {
  uint64_t order[256];
  constexpr PackTable() : order() {
    for (uint32_t m = 0; m < 256; ++m) {
      for (uint32_t lane = 0, i = 0; lane < 8; ++lane) {
        if (m >> lane & 1) order[m] |= uint64_t{lane} << 8 * i++;
      }
    }
  }
};
constexpr PackTable kPack;

struct Avx2 {
  struct Floats {
    __m256 a, b;
    friend CGX_INLINE Floats operator+(Floats x, Floats y) {
      return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)};
    }
    friend CGX_INLINE Floats operator-(Floats x, Floats y) {
      return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)};
    }
    friend CGX_INLINE Floats operator*(Floats x, Floats y) {
      return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)};
    }
  };
  struct Ints {
    __m256i a, b;
    friend CGX_INLINE Ints operator+(Ints x, Ints y) {
      return {_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)};
    }
    friend CGX_INLINE Ints operator-(Ints x, Ints y) {
      return {_mm256_sub_epi32(x.a, y.a), _mm256_sub_epi32(x.b, y.b)};
    }
    friend CGX_INLINE Ints operator*(Ints x, Ints y) {
      return {_mm256_mullo_epi32(x.a, y.a), _mm256_mullo_epi32(x.b, y.b)};
    }
    friend CGX_INLINE Ints operator&(Ints x, Ints y) {
      return {_mm256_and_si256(x.a, y.a), _mm256_and_si256(x.b, y.b)};
    }
    friend CGX_INLINE Ints operator|(Ints x, Ints y) {
      return {_mm256_or_si256(x.a, y.a), _mm256_or_si256(x.b, y.b)};
    }
    friend CGX_INLINE Ints operator^(Ints x, Ints y) {
      return {_mm256_xor_si256(x.a, y.a), _mm256_xor_si256(x.b, y.b)};
    }
  };
  using Mask = Ints;  // all ones or zero in each lane

  static CGX_INLINE Floats load(const float* p) {
    return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
  }
  static CGX_INLINE void store(float* p, Floats x) {
    _mm256_storeu_ps(p, x.a);
    _mm256_storeu_ps(p + 8, x.b);
  }
  static CGX_INLINE void stream(float* p, Floats x) {
    _mm256_stream_ps(p, x.a);
    _mm256_stream_ps(p + 8, x.b);
  }
  static CGX_INLINE Floats splat(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
  static CGX_INLINE Ints splat(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
  static CGX_INLINE Ints splat(uint32_t x) { return splat(static_cast<int32_t>(x)); }
  static CGX_INLINE Ints iota() {
    return {_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7),
            _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15)};
  }

  static CGX_INLINE Ints bits(Floats x) {
    return {_mm256_castps_si256(x.a), _mm256_castps_si256(x.b)};
  }
  static CGX_INLINE Floats as_floats(Ints x) {
    return {_mm256_castsi256_ps(x.a), _mm256_castsi256_ps(x.b)};
  }
  static CGX_INLINE Ints round(Floats x) {
    return {_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b)};
  }
  static CGX_INLINE Floats to_floats(Ints x) {
    return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)};
  }

  template <int n>
  static CGX_INLINE Ints left(Ints x) {
    return {_mm256_slli_epi32(x.a, n), _mm256_slli_epi32(x.b, n)};
  }
  template <int n>
  static CGX_INLINE Ints right(Ints x) {
    return {_mm256_srli_epi32(x.a, n), _mm256_srli_epi32(x.b, n)};
  }
  static CGX_INLINE Ints min_signed(Ints x, Ints y) {
    return {_mm256_min_epi32(x.a, y.a), _mm256_min_epi32(x.b, y.b)};
  }
  static CGX_INLINE Ints max_signed(Ints x, Ints y) {
    return {_mm256_max_epi32(x.a, y.a), _mm256_max_epi32(x.b, y.b)};
  }
  static CGX_INLINE Ints min_unsigned(Ints x, Ints y) {
    return {_mm256_min_epu32(x.a, y.a), _mm256_min_epu32(x.b, y.b)};
  }
  static CGX_INLINE Ints max_unsigned(Ints x, Ints y) {
    return {_mm256_max_epu32(x.a, y.a), _mm256_max_epu32(x.b, y.b)};
  }
  // The least magnitude of each lane; a NaN may count or not.
  static CGX_INLINE Floats least_magnitude(Floats least, Floats a, Floats b, Floats c, Floats d) {
    Ints lowest = bits(least);
    for (const Floats& x : {a, b, c, d}) {
      lowest = min_unsigned(lowest, bits(x) & splat(kAbsMask));
    }
    return as_floats(lowest);
  }
  static CGX_INLINE int32_t lowest_signed(Ints x) {
    return fold(x, [](__m256i p, __m256i q) { return _mm256_min_epi32(p, q); });
  }
  // Lanes 8-15 added to 0-7, of those 4-7 to 0-3, and so on to lane 0.
  static CGX_INLINE float sum_of_halves(Floats x) {
    const __m256 eight = _mm256_add_ps(x.a, x.b);
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
  }
  static CGX_INLINE int32_t highest_signed(Ints x) {
    return fold(x, [](__m256i p, __m256i q) { return _mm256_max_epi32(p, q); });
  }
  static CGX_INLINE uint32_t lowest_unsigned(Ints x) {
    return static_cast<uint32_t>(
        fold(x, [](__m256i p, __m256i q) { return _mm256_min_epu32(p, q); }));
  }
  static CGX_INLINE uint32_t highest_unsigned(Ints x) {
    return static_cast<uint32_t>(
        fold(x, [](__m256i p, __m256i q) { return _mm256_max_epu32(p, q); }));
  }

  // The highest of x in lanes 0-7, the highest of y in lanes 8-15.
  static CGX_INLINE Ints highest_of_each(Ints x, Ints y) {
    return {spread_highest(_mm256_max_epi32(x.a, x.b)), spread_highest(_mm256_max_epi32(y.a, y.b))};
  }
  static CGX_INLINE uint32_t total(Ints x) {
    return static_cast<uint32_t>(
        fold(x, [](__m256i p, __m256i q) { return _mm256_add_epi32(p, q); }));
  }

  static CGX_INLINE Mask less(Ints x, Ints y) {
    return {_mm256_cmpgt_epi32(y.a, x.a), _mm256_cmpgt_epi32(y.b, x.b)};
  }
  static CGX_INLINE Mask both(Mask x, Mask y) { return x & y; }
  static CGX_INLINE Ints select(Mask m, Ints yes, Ints no) {
    return {_mm256_blendv_epi8(no.a, yes.a, m.a), _mm256_blendv_epi8(no.b, yes.b, m.b)};
  }

  // Bit by bit.
  static CGX_INLINE Ints select_bits(Ints bits, Ints yes, Ints no) {
    return {_mm256_or_si256(_mm256_and_si256(bits.a, yes.a), _mm256_andnot_si256(bits.a, no.a)),
            _mm256_or_si256(_mm256_and_si256(bits.b, yes.b), _mm256_andnot_si256(bits.b, no.b))};
  }
  static CGX_INLINE uint32_t count(Mask m) {
    return static_cast<uint32_t>(__builtin_popcount(lanes_of(m.a) | lanes_of(m.b) << 8));
  }
  static CGX_INLINE Ints load_ints(const uint32_t* p) {
    const auto* words = reinterpret_cast<const __m256i*>(p);
    return {_mm256_loadu_si256(words), _mm256_loadu_si256(words + 1)};
  }
  // The lanes that m names, side by side, and how many; writes whole vectors.
  static CGX_INLINE uint32_t pack(uint32_t* p, Mask m, Ints x) {
    const uint32_t low = pack_half(p, lanes_of(m.a), x.a);
    return low + pack_half(p + low, lanes_of(m.b), x.b);
  }

  // Low bytes or halfwords of the lanes, in order; any alignment.
  static CGX_INLINE Ints load_bytes(const uint8_t* p) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return {_mm256_cvtepu8_epi32(bytes), _mm256_cvtepu8_epi32(_mm_unpackhi_epi64(bytes, bytes))};
  }
  static CGX_INLINE Ints load_halfwords(const void* p) {
    const auto* words = static_cast<const __m128i*>(p);
    return {_mm256_cvtepu16_epi32(_mm_loadu_si128(words)),
            _mm256_cvtepu16_epi32(_mm_loadu_si128(words + 1))};
  }
  static CGX_INLINE void store_bytes(uint8_t* p, Ints x) {
    const __m256i words = halfwords(x & splat(0xff));
    const __m128i low = _mm256_castsi256_si128(words), high = _mm256_extracti128_si256(words, 1);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm_packus_epi16(low, high));
  }
  static CGX_INLINE void store_halfwords(void* p, Ints x) {
    _mm256_storeu_si256(static_cast<__m256i*>(p), halfwords(x & splat(0xffff)));
  }
  static CGX_INLINE Ints load_ints(const void* p) {
    const auto* words = static_cast<const __m256i*>(p);
    return {_mm256_loadu_si256(words), _mm256_loadu_si256(words + 1)};
  }
  static CGX_INLINE void store_ints(void* p, Ints x) {
    auto* words = static_cast<__m256i*>(p);
    _mm256_storeu_si256(words, x.a);
    _mm256_storeu_si256(words + 1, x.b);
  }
  // One bit per lane: bit 0 of a code, lane l to bit l.
  static CGX_INLINE uint16_t low_bits(Ints x) {
    const Ints signs = left<31>(x);
    const int low = _mm256_movemask_ps(_mm256_castsi256_ps(signs.a));
    const int high = _mm256_movemask_ps(_mm256_castsi256_ps(signs.b));
    return static_cast<uint16_t>(low | high << 8);
  }
  // The sign bits, lane l to bit l.
  static CGX_INLINE uint16_t sign_bits(Floats x) {
    return static_cast<uint16_t>(_mm256_movemask_ps(x.a) | _mm256_movemask_ps(x.b) << 8);
  }
  static CGX_INLINE Ints spread_bits(uint16_t bits, int32_t one) {
    const Ints lane_bit = {_mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128),
                           _mm256_setr_epi32(256, 512, 1024, 2048, 4096, 8192, 16384, 32768)};
    const Ints present = splat(int32_t{bits}) & lane_bit;
    const Mask set = {_mm256_cmpeq_epi32(present.a, lane_bit.a),
                      _mm256_cmpeq_epi32(present.b, lane_bit.b)};
    return set & splat(one);
  }

  // Sixteen values in two registers, picked by the low four bits of each lane.
  using Table = Floats;
  static CGX_INLINE Table table(Floats values) { return values; }
  static CGX_INLINE Floats lookup(Table t, Ints index) {
    const Ints upper = left<28>(index);  // bit 3 becomes the sign, which chooses the half
    return {pick(t, index.a, upper.a), pick(t, index.b, upper.b)};
  }

  static CGX_INLINE Floats canonical_nan(Floats x) {
    const __m256 nan = _mm256_set1_ps(float_of(kNanBits));
    return {_mm256_blendv_ps(x.a, nan, _mm256_cmp_ps(x.a, x.a, _CMP_UNORD_Q)),
            _mm256_blendv_ps(x.b, nan, _mm256_cmp_ps(x.b, x.b, _CMP_UNORD_Q))};
  }
  static CGX_INLINE Floats load_half(const uint16_t* p) {
    const auto* words = reinterpret_cast<const __m128i*>(p);
    return canonical_nan(
        {_mm256_cvtph_ps(_mm_loadu_si128(words)), _mm256_cvtph_ps(_mm_loadu_si128(words + 1))});
  }
  static CGX_INLINE void store_half(uint16_t* p, Floats x) {
    constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    const Floats y = canonical_nan(x);
    auto* words = reinterpret_cast<__m128i*>(p);
    _mm_storeu_si128(words, _mm256_cvtps_ph(y.a, kNearest));
    _mm_storeu_si128(words + 1, _mm256_cvtps_ph(y.b, kNearest));
  }

  // Brings the line of p into the first-level cache; any address is allowed.
  static CGX_INLINE void prefetch(const void* p) {
    _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0);
  }
  // Into the second-level cache.
  static CGX_INLINE void prefetch_second(const void* p) {
    _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1);
  }
  static CGX_INLINE void stream_fence() { _mm_sfence(); }

 private:
  static CGX_INLINE uint32_t lanes_of(__m256i m) {
    return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(m)));
  }
  static CGX_INLINE uint32_t pack_half(uint32_t* p, uint32_t lanes, __m256i x) {
    const __m128i order = _mm_cvtsi64_si128(static_cast<int64_t>(kPack.order[lanes]));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                        _mm256_permutevar8x32_epi32(x, _mm256_cvtepu8_epi32(order)));
    return static_cast<uint32_t>(__builtin_popcount(lanes));
  }

  template <class Op>
  static CGX_INLINE int32_t fold(Ints x, Op op) {
    __m256i m = op(x.a, x.b);
    m = op(m, _mm256_permute2x128_si256(m, m, 1));
    m = op(m, _mm256_shuffle_epi32(m, 0x4e));
    m = op(m, _mm256_shuffle_epi32(m, 0xb1));
    return _mm256_cvtsi256_si32(m);
  }
  static CGX_INLINE __m256i spread_highest(__m256i x) {
    __m256i m = _mm256_max_epi32(x, _mm256_permute2x128_si256(x, x, 1));
    m = _mm256_max_epi32(m, _mm256_shuffle_epi32(m, 0x4e));
    return _mm256_max_epi32(m, _mm256_shuffle_epi32(m, 0xb1));
  }
  // Lanes are at most 0xffff; pack works in 128-bit halves, so put the quarters in order.
  static CGX_INLINE __m256i halfwords(Ints x) {
    return _mm256_permute4x64_epi64(_mm256_packus_epi32(x.a, x.b), 0xd8);
  }
  static CGX_INLINE __m256 pick(Table t, __m256i index, __m256i upper) {
    return _mm256_blendv_ps(_mm256_permutevar8x32_ps(t.a, index),
                            _mm256_permutevar8x32_ps(t.b, index), _mm256_castsi256_ps(upper));
  }
};

}  // namespace
}  // namespace cgx::kernels
