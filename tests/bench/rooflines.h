// What this core can do with memory: the loops every codec figure is measured against.
//
// Each loop does the least work that moves the bytes, with the widest registers there are.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace cgx::bench {

#define CGX_WIDE __attribute__((target("avx512f"), noinline))

// All sizes are in floats, multiples of 64; all pointers are aligned to 64 bytes.
CGX_WIDE inline float read_loop(const float* x, size_t n) {
  __m512i a = _mm512_setzero_si512(), b = a, c = a, d = a;
  for (size_t i = 0; i < n; i += 64) {
    a = _mm512_or_si512(a, _mm512_load_si512(x + i));
    b = _mm512_or_si512(b, _mm512_load_si512(x + i + 16));
    c = _mm512_or_si512(c, _mm512_load_si512(x + i + 32));
    d = _mm512_or_si512(d, _mm512_load_si512(x + i + 48));
  }
  const __m512i all = _mm512_or_si512(_mm512_or_si512(a, b), _mm512_or_si512(c, d));
  alignas(64) int32_t lanes[16];
  _mm512_store_si512(lanes, all);
  return static_cast<float>(lanes[0] ^ lanes[15]);
}

CGX_WIDE inline void stream_write_loop(float* y, size_t n, float value) {
  const __m512 v = _mm512_set1_ps(value);
  for (size_t i = 0; i < n; i += 16) _mm512_stream_ps(y + i, v);
  _mm_sfence();
}

CGX_WIDE inline void in_place_loop(float* y, size_t n, float value) {
  const __m512 v = _mm512_set1_ps(value);
  for (size_t i = 0; i < n; i += 16) {
    _mm512_store_ps(y + i, _mm512_add_ps(_mm512_load_ps(y + i), v));
  }
}

CGX_WIDE inline void two_read_one_write_plain(const float* a, const float* b, float* y, size_t n) {
  for (size_t i = 0; i < n; i += 16) {
    _mm512_store_ps(y + i, _mm512_add_ps(_mm512_load_ps(a + i), _mm512_load_ps(b + i)));
  }
}

CGX_WIDE inline void two_read_one_write_loop(const float* a, const float* b, float* y, size_t n) {
  for (size_t i = 0; i < n; i += 16) {
    _mm512_stream_ps(y + i, _mm512_add_ps(_mm512_load_ps(a + i), _mm512_load_ps(b + i)));
  }
  _mm_sfence();
}

CGX_WIDE inline void copy_loop(const float* x, float* y, size_t n) {
  for (size_t i = 0; i < n; i += 16) _mm512_stream_ps(y + i, _mm512_load_ps(x + i));
  _mm_sfence();
}

// Reads n floats and streams a `share`th of the bytes: a cast's traffic.
template <size_t share>
CGX_WIDE inline void narrow_loop(const float* x, float* y, size_t n) {
  for (size_t i = 0; i < n; i += 16 * share) {
    __m512 sum = _mm512_load_ps(x + i);
    for (size_t j = 16; j < 16 * share; j += 16) {
      sum = _mm512_add_ps(sum, _mm512_load_ps(x + i + j));
    }
    _mm512_stream_ps(y + i / share, sum);
  }
  _mm_sfence();
}

// Reads half as many bytes as the n floats that it streams: a cast's way back.
CGX_WIDE inline void widen_loop(const float* x, float* y, size_t n) {
  for (size_t i = 0; i < n; i += 32) {
    const __m512 both = _mm512_load_ps(x + i / 2);
    _mm512_stream_ps(y + i, both);
    _mm512_stream_ps(y + i + 16, both);
  }
  _mm_sfence();
}

#undef CGX_WIDE

}  // namespace cgx::bench
