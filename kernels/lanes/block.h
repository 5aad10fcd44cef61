// Sixty-four values as four vectors: element 16 * j + l of a block is lane l of vector j.
//
// What vector code works on; V is a lane's vocabulary (simd_avx512.h, simd_avx2.h). Element types
// of tensors are converted on the way in and out.
#pragma once

#include <cstdint>

#include "kernels/floats.h"
#include "kernels/range.h"
#include "kernels/sums.h"

namespace cgx::kernels {
namespace {

template <class V>
struct Block {
  typename V::Floats v[4];
};

template <class V>
struct Codes {
  typename V::Ints v[4];
};

template <int value>
struct Index {
  static constexpr int j = value;
};

// Calls f with Index<0> to Index<3>: the loop over a block's vectors, unrolled for certain.
template <class F>
CGX_INLINE void for_each_vector(F f) {
  f(Index<0>());
  f(Index<1>());
  f(Index<2>());
  f(Index<3>());
}

template <class V>
CGX_INLINE Block<V> operator+(const Block<V>& a, const Block<V>& b) {
  return {{a.v[0] + b.v[0], a.v[1] + b.v[1], a.v[2] + b.v[2], a.v[3] + b.v[3]}};
}

template <class V>
CGX_INLINE Block<V> operator-(const Block<V>& a, const Block<V>& b) {
  return {{a.v[0] - b.v[0], a.v[1] - b.v[1], a.v[2] - b.v[2], a.v[3] - b.v[3]}};
}

template <class V>
CGX_INLINE Block<V> operator*(const Block<V>& a, typename V::Floats b) {
  return {{a.v[0] * b, a.v[1] * b, a.v[2] * b, a.v[3] * b}};
}

template <class V>
CGX_INLINE Block<V> splat_block(float x) {
  return {{V::splat(x), V::splat(x), V::splat(x), V::splat(x)}};
}

template <class V, class F>
CGX_INLINE Block<V> map(const Block<V>& x, F f) {
  return {{f(x.v[0]), f(x.v[1]), f(x.v[2]), f(x.v[3])}};
}

template <class V>
CGX_INLINE Block<V> canonical_nan(const Block<V>& x) {
  return map(x, [](auto v) { return V::canonical_nan(v); });
}

template <class V>
CGX_INLINE Block<V> load_block(const float* p) {
  return {{V::load(p), V::load(p + 16), V::load(p + 32), V::load(p + 48)}};
}

template <class V>
CGX_INLINE void store_block(float* p, const Block<V>& x) {
  for_each_vector([&](auto i) { V::store(p + 16 * i.j, x.v[i.j]); });
}

template <class V>
CGX_INLINE void stream_block(float* p, const Block<V>& x) {
  for_each_vector([&](auto i) { V::stream(p + 16 * i.j, x.v[i.j]); });
}

template <class V>
CGX_INLINE void store_as(float* p, const Block<V>& x, bool stream) {
  if (stream) {
    stream_block<V>(p, x);
  } else {
    store_block<V>(p, x);
  }
}

// Sixty-four partial sums to one, as sums.h folds them.
template <class V>
CGX_INLINE float fold_block(const Block<V>& partials) {
  const auto low = partials.v[0] + partials.v[2], high = partials.v[1] + partials.v[3];
  return V::sum_of_halves(low + high);
}

template <class V>
CGX_INLINE typename V::Floats load_brain(const uint16_t* p) {
  return V::canonical_nan(V::as_floats(V::template left<16>(V::load_halfwords(p))));
}

// Nearest even; NaN, already canonical, stays 7FC0: rounding leaves its low half alone.
template <class V>
CGX_INLINE typename V::Ints brain_words(typename V::Floats x) {
  const auto bits = V::bits(V::canonical_nan(x));
  const auto odd = V::template right<16>(bits) & V::splat(1);
  return V::template right<16>(bits + V::splat(0x7fff) + odd);
}

// Values first .. first + 63 of an array of a small float type.
template <class V>
CGX_INLINE Block<V> load_values(const void* values, DType dtype, uint64_t first) {
  if (dtype == DType::kF32) return load_block<V>(static_cast<const float*>(values) + first);
  const uint16_t* p = static_cast<const uint16_t*>(values) + first;
  if (dtype == DType::kF16) {
    return {{V::load_half(p), V::load_half(p + 16), V::load_half(p + 32), V::load_half(p + 48)}};
  }
  return {{load_brain<V>(p), load_brain<V>(p + 16), load_brain<V>(p + 32), load_brain<V>(p + 48)}};
}

// The last cast: plain nearest even.
template <class V>
CGX_INLINE void store_values(void* values, DType dtype, uint64_t first, const Block<V>& x) {
  if (dtype == DType::kF32) return store_block<V>(static_cast<float*>(values) + first, x);
  uint16_t* p = static_cast<uint16_t*>(values) + first;
  if (dtype == DType::kF16) {
    for_each_vector([&](auto i) { V::store_half(p + 16 * i.j, x.v[i.j]); });
  } else {
    for_each_vector([&](auto i) { V::store_halfwords(p + 16 * i.j, brain_words<V>(x.v[i.j])); });
  }
}

}  // namespace
}  // namespace cgx::kernels
