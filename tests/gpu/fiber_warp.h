// A warp, or a part of one, played by fibers, one for each lane: what kernels/cuda/team.h says of a
// team, on the host. EmulatedLanes (emulated_warp.h) runs the lanes by a loop, so that they all
// meet wherever a call to the team ends; here they meet at barriers only.
#pragma once

#include <cstdint>

#include "tests/gpu/fiber_team.h"

namespace cgx::kernels {

template <uint32_t kLanes>
class FiberLanes : public FiberTeam<kLanes> {
 public:
  using Base = FiberTeam<kLanes>;
  using Base::Base, Base::kSize;

  float fold(const typename Base::template Each<float>& x) {
    tell(x.value, Base::kFold);
    float sums[kSize];
    for (uint32_t t = 0; t < kSize; ++t) sums[t] = this->template told<float>(t);
    fibers_.barrier(Base::kFold);
    for (uint32_t half = kSize / 2; half > 0; half /= 2) {
      for (uint32_t t = 0; t < half; ++t) sums[t] += sums[t + half];
    }
    return sums[0];
  }

  template <class F>
  uint32_t ballot(F f) {
    const uint32_t own = f(lane_) != 0;
    tell(own, Base::kBallot);
    uint32_t set = 0;
    for (uint32_t t = 0; t < kSize; ++t) set |= this->template told<uint32_t>(t) << t;
    fibers_.barrier(Base::kBallot);
    return set;
  }

 private:
  using Base::fibers_, Base::lane_, Base::tell;
};

using FiberWarp = FiberLanes<32>;

}  // namespace cgx::kernels
