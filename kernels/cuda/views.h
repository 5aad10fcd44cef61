// What jobs say about tensors and residuals, four neighbouring values at a time.
#pragma once

#include <cstdint>

#include "kernels/codec.h"
#include "kernels/cuda/memory.h"
#include "kernels/cuda/team.h"
#include "kernels/floats.h"

namespace cgx::kernels {
namespace {

// f(lane, first, count) for every four values of a bucket, four neighbours to a lane.
template <class Team, class F>
CGX_DEVICE void each_quad(Team& team, uint32_t n, F f) {
  team.each([&](uint32_t t) {
    for (uint32_t e = 4 * t; e < n; e += 4 * Team::kSize) f(t, e, n - e < 4 ? n - e : 4);
  });
}

// What the view contributes to values first .. first + 3, the first `count` of them. A NaN that
// arithmetic touched becomes the canonical one; a single fp32 rank without arithmetic keeps its
// bits.
CGX_DEVICE inline Quad contribution_of(const RawView& view, uint64_t first, uint32_t count) {
  const float scale = static_cast<float>(view.scale);
  const bool untouched = view.rank_count == 1 && scale == 1.0f && view.residual_in == nullptr;
  Quad sum = {};
  if (view.rank_count > 0) sum = load_quad(view.ranks[0], view.dtype, first, count);
  if (untouched) return sum;  // before arithmetic that a compiler may think changes nothing
  for (uint32_t r = 1; r < view.rank_count; ++r) {
    const Quad more = load_quad(view.ranks[r], view.dtype, first, count);
    for (uint32_t i = 0; i < 4; ++i) sum.v[i] += more.v[i];
  }
  Quad old = {};
  if (view.residual_in) old = load_quad(view.residual_in, DType::kF32, first, count);
  for (uint32_t i = 0; i < 4; ++i) {
    if (scale != 1.0f) sum.v[i] *= scale;
    if (view.residual_in) sum.v[i] += old.v[i] * view.residual_scale;
    sum.v[i] = canonical_nan(sum.v[i]);
  }
  return sum;
}

// Non-finite buckets keep their old residual, in today's units.
template <class Team>
CGX_DEVICE void keep_residual(Team& team, const float* in, float scale, float* out, uint64_t first,
                              uint32_t n) {
  each_quad(team, n, [&](uint32_t, uint32_t e, uint32_t count) {
    Quad x = {};
    if (in) x = load_quad(in, DType::kF32, first + e, count);
    for (uint32_t i = 0; i < 4; ++i) x.v[i] = in ? rescaled(x.v[i], scale) : 0.0f;
    store_quad(out, DType::kF32, first + e, count, x);
  });
}

// The same values to every local result.
template <class Job>
CGX_DEVICE void store(const Job& job, uint64_t first, uint32_t count, const Quad& x) {
  for (uint32_t target = 0; target < job.target_count; ++target) {
    store_quad(job.targets[target], job.dtype, first, count, x);
  }
}

}  // namespace
}  // namespace cgx::kernels
