// A warp played by fibers, one for each lane: what kernels/cuda/team.h says of a team, on the host.
//
// EmulatedWarp (emulated_warp.h) runs the lanes by a loop, so that they all meet wherever a call to
// the team ends. Here each lane runs on to the next barrier alone: where a barrier is missing, it
// reads what another lane has not written yet, or has overwritten already.
#pragma once

#include <cstdint>
#include <cstring>

#include "tests/gpu/fibers.h"

namespace cgx::kernels {

class FiberWarp {
 public:
  static constexpr uint32_t kSize = 32;
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

  FiberWarp(gpu::Fibers& fibers, Staging& staging, uint32_t lane)
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

  float fold(const Each<float>& x) {
    tell(x.value, kFold);
    float sums[kSize];
    for (uint32_t t = 0; t < kSize; ++t) sums[t] = told<float>(t);
    fibers_.barrier(kFold);
    for (uint32_t half = kSize / 2; half > 0; half /= 2) {
      for (uint32_t t = 0; t < half; ++t) sums[t] += sums[t + half];
    }
    return sums[0];
  }

  template <class F>
  uint32_t ballot(F f) {
    const uint32_t own = f(lane_) != 0;
    tell(own, kBallot);
    uint32_t set = 0;
    for (uint32_t t = 0; t < kSize; ++t) set |= told<uint32_t>(t) << t;
    fibers_.barrier(kBallot);
    return set;
  }

  void add(uint64_t* p, uint64_t n) {
    if (lane_ == 0) *p += n;
  }
  void lower(uint64_t* p, uint64_t n) {
    if (lane_ == 0 && n < *p) *p = n;
  }

 private:
  enum Kind : uint32_t { kEach, kMerge, kFold, kBallot };

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
  uint32_t lane_;
};

}  // namespace cgx::kernels
