// Sixteen fp32 or int32 lanes as one 512-bit register (AVX-512 F, BW, DQ, VL).
//
// The same vocabulary as simd_avx2.h; codecs and skeletons are written against it. Only IEEE add,
// sub, mul, conversions to nearest even and integer operations: see ARITHMETIC.md "Allowed".
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "kernels/floats.h"

namespace cgx::kernels {
namespace {

struct Avx512 {
  struct Floats {
    __m512 v;
    friend CGX_INLINE Floats operator+(Floats a, Floats b) { return {_mm512_add_ps(a.v, b.v)}; }
    friend CGX_INLINE Floats operator-(Floats a, Floats b) { return {_mm512_sub_ps(a.v, b.v)}; }
    friend CGX_INLINE Floats operator*(Floats a, Floats b) { return {_mm512_mul_ps(a.v, b.v)}; }
  };
  struct Ints {
    __m512i v;
    friend CGX_INLINE Ints operator+(Ints a, Ints b) { return {_mm512_add_epi32(a.v, b.v)}; }
    friend CGX_INLINE Ints operator-(Ints a, Ints b) { return {_mm512_sub_epi32(a.v, b.v)}; }
    friend CGX_INLINE Ints operator*(Ints a, Ints b) { return {_mm512_mullo_epi32(a.v, b.v)}; }
    friend CGX_INLINE Ints operator&(Ints a, Ints b) { return {_mm512_and_si512(a.v, b.v)}; }
    friend CGX_INLINE Ints operator|(Ints a, Ints b) { return {_mm512_or_si512(a.v, b.v)}; }
    friend CGX_INLINE Ints operator^(Ints a, Ints b) { return {_mm512_xor_si512(a.v, b.v)}; }
  };
  using Mask = __mmask16;

  static CGX_INLINE Floats load(const float* p) { return {_mm512_loadu_ps(p)}; }
  static CGX_INLINE void store(float* p, Floats x) { _mm512_storeu_ps(p, x.v); }
  static CGX_INLINE void stream(float* p, Floats x) { _mm512_stream_ps(p, x.v); }
  static CGX_INLINE Floats splat(float x) { return {_mm512_set1_ps(x)}; }
  static CGX_INLINE Ints splat(int32_t x) { return {_mm512_set1_epi32(x)}; }
  static CGX_INLINE Ints splat(uint32_t x) { return splat(static_cast<int32_t>(x)); }
  static CGX_INLINE Ints iota() {
    return {_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)};
  }

  static CGX_INLINE Ints bits(Floats x) { return {_mm512_castps_si512(x.v)}; }
  static CGX_INLINE Floats as_floats(Ints x) { return {_mm512_castsi512_ps(x.v)}; }
  static CGX_INLINE Ints round(Floats x) { return {_mm512_cvtps_epi32(x.v)}; }
  static CGX_INLINE Floats to_floats(Ints x) { return {_mm512_cvtepi32_ps(x.v)}; }

  template <int n>
  static CGX_INLINE Ints left(Ints x) {
    return {_mm512_slli_epi32(x.v, n)};
  }
  template <int n>
  static CGX_INLINE Ints right(Ints x) {
    return {_mm512_srli_epi32(x.v, n)};
  }
  static CGX_INLINE Ints min_signed(Ints a, Ints b) { return {_mm512_min_epi32(a.v, b.v)}; }
  static CGX_INLINE Ints max_signed(Ints a, Ints b) { return {_mm512_max_epi32(a.v, b.v)}; }
  static CGX_INLINE Ints min_unsigned(Ints a, Ints b) { return {_mm512_min_epu32(a.v, b.v)}; }
  static CGX_INLINE Ints max_unsigned(Ints a, Ints b) { return {_mm512_max_epu32(a.v, b.v)}; }
  // The least magnitude of each lane; a NaN may count or not. Not by integer minima: Intel has one
  // port for these, and two for this.
  static CGX_INLINE Floats least_magnitude(Floats least, Floats a, Floats b, Floats c, Floats d) {
    const auto of = [](__m512 x, __m512 y) { return _mm512_range_ps(x, y, 0b1010); };
    return {of(least.v, of(of(a.v, b.v), of(c.v, d.v)))};
  }
  static CGX_INLINE int32_t lowest_signed(Ints x) { return _mm512_reduce_min_epi32(x.v); }
  static CGX_INLINE int32_t highest_signed(Ints x) { return _mm512_reduce_max_epi32(x.v); }
  static CGX_INLINE uint32_t lowest_unsigned(Ints x) { return _mm512_reduce_min_epu32(x.v); }
  static CGX_INLINE uint32_t highest_unsigned(Ints x) { return _mm512_reduce_max_epu32(x.v); }

  // Lanes 8-15 added to 0-7, of those 4-7 to 0-3, and so on to lane 0.
  static CGX_INLINE float sum_of_halves(Floats x) {
    const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(x.v), _mm512_extractf32x8_ps(x.v, 1));
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
  }

  // The highest of a in lanes 0-7, the highest of b in lanes 8-15.
  static CGX_INLINE Ints highest_of_each(Ints a, Ints b) {
    __m512i m = _mm512_max_epi32(_mm512_shuffle_i64x2(a.v, b.v, 0x44),
                                 _mm512_shuffle_i64x2(a.v, b.v, 0xee));
    m = _mm512_max_epi32(m, _mm512_shuffle_i64x2(m, m, 0xb1));
    m = _mm512_max_epi32(m, _mm512_shuffle_epi32(m, _MM_PERM_BADC));
    return {_mm512_max_epi32(m, _mm512_shuffle_epi32(m, _MM_PERM_CDAB))};
  }

  static CGX_INLINE uint32_t total(Ints x) {
    return static_cast<uint32_t>(_mm512_reduce_add_epi32(x.v));
  }

  static CGX_INLINE Mask less(Ints a, Ints b) { return _mm512_cmplt_epi32_mask(a.v, b.v); }
  static CGX_INLINE Mask both(Mask a, Mask b) { return a & b; }
  static CGX_INLINE Ints select(Mask m, Ints yes, Ints no) {
    return {_mm512_mask_mov_epi32(no.v, m, yes.v)};
  }

  // Bit by bit.
  static CGX_INLINE Ints select_bits(Ints bits, Ints yes, Ints no) {
    return {_mm512_ternarylogic_epi32(bits.v, yes.v, no.v, 0xca)};
  }

  static CGX_INLINE uint32_t count(Mask m) { return static_cast<uint32_t>(__builtin_popcount(m)); }
  static CGX_INLINE Ints load_ints(const uint32_t* p) { return {_mm512_loadu_si512(p)}; }
  // The lanes that m names, side by side, and how many; writes whole vectors.
  static CGX_INLINE uint32_t pack(uint32_t* p, Mask m, Ints x) {
    _mm512_storeu_si512(p, _mm512_maskz_compress_epi32(m, x.v));
    return count(m);
  }

  // Low bytes or halfwords of the lanes, in order; any alignment.
  static CGX_INLINE Ints load_bytes(const uint8_t* p) {
    return {_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
  }
  static CGX_INLINE Ints load_halfwords(const void* p) {
    return {_mm512_cvtepu16_epi32(_mm256_loadu_si256(static_cast<const __m256i*>(p)))};
  }
  static CGX_INLINE void store_bytes(uint8_t* p, Ints x) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(x.v));
  }
  static CGX_INLINE void store_halfwords(void* p, Ints x) {
    _mm256_storeu_si256(static_cast<__m256i*>(p), _mm512_cvtepi32_epi16(x.v));
  }
  static CGX_INLINE Ints load_ints(const void* p) { return {_mm512_loadu_si512(p)}; }
  static CGX_INLINE void store_ints(void* p, Ints x) { _mm512_storeu_si512(p, x.v); }
  // One bit per lane: bit 0 of a code, lane l to bit l.
  static CGX_INLINE uint16_t low_bits(Ints x) {
    return _mm512_test_epi32_mask(x.v, _mm512_set1_epi32(1));
  }
  // The sign bits, lane l to bit l.
  static CGX_INLINE uint16_t sign_bits(Floats x) { return _mm512_movepi32_mask(bits(x).v); }
  static CGX_INLINE Ints spread_bits(uint16_t bits, int32_t one) {
    return {_mm512_maskz_set1_epi32(bits, one)};
  }

  // Sixteen values in a register, picked by the low four bits of each lane.
  using Table = Floats;
  static CGX_INLINE Table table(Floats values) { return values; }
  static CGX_INLINE Floats lookup(Table t, Ints index) {
    return {_mm512_permutexvar_ps(index.v, t.v)};
  }

  static CGX_INLINE Floats canonical_nan(Floats x) {
    const Mask nan = _mm512_cmp_ps_mask(x.v, x.v, _CMP_UNORD_Q);
    return {_mm512_mask_mov_ps(x.v, nan, _mm512_set1_ps(float_of(kNanBits)))};
  }
  static CGX_INLINE Floats load_half(const uint16_t* p) {
    const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return canonical_nan({_mm512_cvtph_ps(words)});
  }
  static CGX_INLINE void store_half(uint16_t* p, Floats x) {
    const __m512 y = canonical_nan(x).v;
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                        _mm512_cvtps_ph(y, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
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
};

}  // namespace
}  // namespace cgx::kernels
