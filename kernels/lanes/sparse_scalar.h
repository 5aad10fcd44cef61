// Sparse codecs, one value after the other: the reference for sparse_vector.h.
#pragma once

#include "kernels/lanes/sparse.h"

namespace cgx::kernels {
namespace {

struct SparseScalar {
  // work.x held the residual before and holds the bucket then; returns the largest magnitude.
  static uint32_t read(const RawView& source, const Access&, uint64_t, uint64_t first, uint32_t n,
                       const Want& want, bool, const HeldResidual& held, SparseWork& work) {
    flush(work.x, held);
    load_sum(source, first, n, work.x);
    const uint32_t max_abs = max_abs_bits(work.x, n);
    if (want.most == 0 || max_abs >= kInfBits) return max_abs;
    const auto count = [&](uint32_t cut) {
      uint32_t found = 0;
      for (uint32_t e = 0; e < n; ++e) found += abs_bits(work.x[e]) >= cut;
      return found;
    };
    pick_exactly(work.x, n, max_abs, want, count, work.picked);
    return max_abs;
  }

  static uint32_t largest(const float* x, uint32_t n) { return max_abs_bits(x, n); }

  static float squares(const float* x, uint32_t n, float scale) {
    return sum_of(x, n, [scale](float v) { return (v * scale) * (v * scale); });
  }

  static void add_raw(const RawView& source, const Access&, uint64_t, uint64_t first, uint32_t n,
                      float* x) {
    for (uint32_t e = 0; e < n; ++e) {
      float value;
      load_sum(source, first + e, 1, &value);
      x[e] += value;
    }
  }

  static void store(const SparseTargets& to, uint64_t first, uint32_t n, const float* x) {
    for (uint32_t t = 0; t < to.count; ++t) {
      for (uint32_t e = 0; e < n; ++e) store_element(to.targets[t], to.dtype, first + e, x[e]);
    }
  }

  static void flush(const float* x, const HeldResidual& held) {
    if (held.to != nullptr) std::memcpy(held.to, x, held.n * sizeof(float));
  }
  static void fence() {}
};

}  // namespace
}  // namespace cgx::kernels
