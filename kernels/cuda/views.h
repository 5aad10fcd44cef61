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
    CGX_ROLLED
    for (uint32_t e = 4 * t; e < n; e += 4 * Team::kSize) f(t, e, n - e < 4 ? n - e : 4);
  });
}

// How many fours a lane has under way: as many as the buckets that its team is for have for it.
template <class Team>
constexpr uint32_t kFoursAtOnce = Team::kSize < 32 ? 2 : 4;

// The same for whole fours, n % 4 == 0: use(lane, first, load(first)). Several loads of a lane are
// under way before the first is used. What is stored to may be what was loaded at the same place.
template <class Team, class Load, class Use>
CGX_DEVICE void each_whole_quad(Team& team, uint32_t n, Load load, Use use) {
  constexpr uint32_t kStep = 4 * Team::kSize, kAtOnce = kFoursAtOnce<Team>;
  team.each([&](uint32_t t) {
    uint32_t e = 4 * t;
    CGX_ROLLED
    for (; e + kStep * (kAtOnce - 1) < n; e += kStep * kAtOnce) {
      decltype(load(e)) loaded[kAtOnce];
      for (uint32_t i = 0; i < kAtOnce; ++i) loaded[i] = load(e + kStep * i);
      for (uint32_t i = 0; i < kAtOnce; ++i) use(t, e + kStep * i, loaded[i]);
    }
    CGX_ROLLED
    for (; e < n; e += kStep) use(t, e, load(e));
  });
}

// What the view contributes to values first .. first + 3, the first `count` of them. A NaN that
// arithmetic touched becomes the canonical one; a single fp32 rank without arithmetic keeps its
// bits.
CGX_DEVICE inline Quad contribution_of(const RawView& view, uint64_t first, uint32_t count) {
  const float scale = static_cast<float>(view.scale);
  const bool untouched = view.rank_count == 1 && scale == 1.0f && view.residual_in == nullptr;
  Quad sum = {};
  const void* const* ranks = outside(view.ranks);
  if (view.rank_count > 0) sum = load_quad(ranks[0], view.dtype, first, count);
  if (untouched) return sum;  // before arithmetic that a compiler may think changes nothing
  for (uint32_t r = 1; r < view.rank_count; ++r) {
    const Quad more = load_quad(ranks[r], view.dtype, first, count);
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

// One rank of fp32 and its residual, if there is one, all of it aligned: what most tensors are.
struct LinedView {
  const float *values, *residual;
  float scale, residual_scale;
  bool untouched;

  struct Lines {
    Quad values, residual;
  };
  CGX_DEVICE Lines load(uint32_t e) const {
    Lines lines{line_at(outside(values + e)), Quad{}};
    if (residual) lines.residual = line_at(outside(residual + e));
    return lines;
  }
  CGX_DEVICE Quad contribution(const Lines& lines) const {  // as contribution_of
    Quad sum = lines.values;
    if (untouched) return sum;
    for (uint32_t i = 0; i < 4; ++i) {
      if (scale != 1.0f) sum.v[i] *= scale;
      if (residual) sum.v[i] += lines.residual.v[i] * residual_scale;
      sum.v[i] = canonical_nan(sum.v[i]);
    }
    return sum;
  }
};

// False if the view's bucket is not like that.
CGX_DEVICE inline bool lined(const RawView& view, uint64_t first, uint32_t n, LinedView& lined) {
  if (view.rank_count != 1 || n % 4 != 0) return false;
  lined.values = static_cast<const float*>(outside(view.ranks)[0]) + first;
  lined.residual = view.residual_in ? view.residual_in + first : nullptr;
  lined.scale = static_cast<float>(view.scale);
  lined.residual_scale = view.residual_scale;
  lined.untouched = lined.scale == 1.0f && lined.residual == nullptr;
  return in_lines(lined.values, view.dtype) && in_lines(lined.residual, DType::kF32);
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
    store_quad(outside(job.targets)[target], job.dtype, first, count, x);
  }
}

// The one local result of a job, from element `first` on, if it is aligned fp32.
template <class Job>
CGX_DEVICE float* lined_target(const Job& job, uint64_t first) {
  if (job.target_count != 1) return nullptr;
  float* to = static_cast<float*>(outside(job.targets)[0]) + first;
  return in_lines(to, job.dtype) ? to : nullptr;
}

}  // namespace
}  // namespace cgx::kernels
