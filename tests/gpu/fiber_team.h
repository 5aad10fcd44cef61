// Lanes of a team as fibers, each of which runs on to the next barrier alone: where a barrier is
// missing, a lane reads what another one has not written yet, or has overwritten already. What
// warps and blocks (kernels/cuda/team.h) have in common.
#pragma once

#include <cstdint>
#include <cstring>

#include "tests/gpu/fibers.h"

namespace cgx::kernels {

template <uint32_t kLanes>
class FiberTeam {
 public:
  static constexpr uint32_t kSize = kLanes;
  template <class T>
  struct Each {
    T value;
    T& operator[](uint32_t) { return value; }
    const T& operator[](uint32_t) const { return value; }
  };
  // What lanes tell each other.
  struct Staging {
    alignas(16) uint8_t bytes[kSize][16];
  };

  FiberTeam(gpu::Fibers& fibers, Staging& staging, uint32_t lane)
      : fibers_(fibers), staging_(staging), lane_(lane) {}

  template <class F>
  void each(F f) {
    f(lane_);
    fibers_.barrier(kEach);
  }
  template <class F>
  void lanes(F f) {
    f(lane_);
  }

  // Every lane folds in another order: they must agree all the same.
  template <class T, class F>
  T merge(const Each<T>& x, F f) {
    tell(x.value, kMerge);
    T all = told<T>(lane_);
    for (uint32_t i = 1; i < kSize; ++i) f(all, told<T>((lane_ + i) % kSize));
    fibers_.barrier(kMerge);
    return all;
  }

  void add(uint64_t* p, uint64_t n) {
    if (lane_ == 0) *p += n;
  }
  void lower(uint64_t* p, uint64_t n) {
    if (lane_ == 0 && n < *p) *p = n;
  }

 protected:
  enum Kind : uint32_t { kEach, kMerge, kScan, kWarps, kFold, kBallot };

  template <class T>
  void tell(const T& x, Kind kind) {
    static_assert(sizeof(T) <= sizeof(staging_.bytes[0]));
    std::memcpy(staging_.bytes[lane_], &x, sizeof(T));
    fibers_.barrier(kind);
  }
  template <class T>
  T told(uint32_t lane) const {
    T x;
    std::memcpy(&x, staging_.bytes[lane], sizeof(T));
    return x;
  }

  gpu::Fibers& fibers_;
  Staging& staging_;
  const uint32_t lane_;
};

}  // namespace cgx::kernels
