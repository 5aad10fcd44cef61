// Squared norms of a sparse bucket by a large team, in the order of sums.h: value e goes into
// partial e mod 64, so no more than 64 lanes add while all of them fetch.
#pragma once

#include <cstdint>

#include "kernels/cuda/scans.h"
#include "kernels/cuda/sparse_entry.h"
#include "kernels/cuda/sparse_select.h"
#include "kernels/sums.h"

namespace cgx::kernels {
namespace {

// fill(first, count) writes summands first .. first + count to `chunk` and ends with a barrier.
template <class Team, class Fill>
CGX_DEVICE float chunked_sum(Team& team, uint32_t n, float* chunk, Fill fill) {
  static_assert(Team::kSize >= kPartials && SparseShared::kBins % kPartials == 0);
  typename Team::template Each<float> partial;
  team.lanes([&](uint32_t t) { partial[t] = 0; });
  for (uint32_t first = 0; first < n; first += SparseShared::kBins) {
    const uint32_t left = n - first,
                   count = left < SparseShared::kBins ? left : SparseShared::kBins;
    fill(first, count);
    team.each([&](uint32_t t) {
      for (uint32_t e = t; t < kPartials && e < count; e += kPartials) partial[t] += chunk[e];
    });
  }
  team.each([&](uint32_t t) {
    if (t < kPartials) chunk[t] = partial[t];
  });
  for (uint32_t half = kPartials / 2; half > 0; half /= 2) {
    team.each([&](uint32_t t) {
      if (t < half) chunk[t] += chunk[t + half];
    });
  }
  const float sum = chunk[0];
  team.each([](uint32_t) {});
  return sum;
}

template <class Team>
CGX_DEVICE double intended_norm(Team& team, const float* x, uint32_t n, uint32_t max_abs,
                                float* chunk) {
  const float scale = square_scale(max_abs);
  const float sum = chunked_sum(team, n, chunk, [&](uint32_t first, uint32_t count) {
    team.each([&](uint32_t t) {
      for (uint32_t e = t; e < count; e += Team::kSize) chunk[e] = square_of(x[first + e], scale);
    });
  });
  return unscaled_square(sum, scale);
}

// Of the dense bucket: zeros lie in between.
template <class Team>
CGX_DEVICE double sent_norm(Team& team, const Picked& picked, uint32_t n, float* chunk) {
  const float scale = square_scale(team_max_abs_bits(team, picked.sent, picked.count));
  const float sum = chunked_sum(team, n, chunk, [&](uint32_t first, uint32_t count) {
    team.each([&](uint32_t t) {
      for (uint32_t e = t; e < count; e += Team::kSize) chunk[e] = 0;
    });
    team.each([&](uint32_t t) {
      for (uint32_t i = t; i < picked.count; i += Team::kSize) {
        const uint32_t e = picked.index[i] - first;
        if (e < count) chunk[e] = square_of(picked.sent[i], scale);
      }
    });
  });
  return unscaled_square(sum, scale);
}

}  // namespace
}  // namespace cgx::kernels
