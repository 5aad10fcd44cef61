// A block played by fibers, one for each lane: what kernels/cuda/team.h says of large teams, on the
// host. Warps of it are played by their first lane (emulated_warp.h), by a loop.
#pragma once

#include <cstdint>

#include "tests/gpu/emulated_warp.h"
#include "tests/gpu/fiber_team.h"

namespace cgx::kernels {

class EmulatedBlock : public FiberTeam<64> {
 public:
  using FiberTeam::FiberTeam;

  uint32_t scan(Each<uint32_t>& x) {
    tell(x.value, kScan);
    uint32_t sum = 0;
    for (uint32_t t = 0; t < kSize; ++t) {
      if (t == lane_) x.value = sum;
      sum += told<uint32_t>(t);
    }
    fibers_.barrier(kScan);
    return sum;
  }

  void bump(uint32_t* p, uint32_t n) { *p += n; }
  void set(uint32_t* p, uint32_t bits) { *p |= bits; }

  template <class F>
  void warps(F f) {
    if (lane_ % EmulatedWarp::kSize == 0) {
      EmulatedWarp warp;
      f(warp, lane_ / EmulatedWarp::kSize, kSize / EmulatedWarp::kSize);
    }
    fibers_.barrier(kWarps);
  }
};

}  // namespace cgx::kernels
