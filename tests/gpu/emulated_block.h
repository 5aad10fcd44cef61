// A block played by fibers, one for each lane: what kernels/cuda/team.h says of large teams, on the
// host. Warps of it are played by their first lane (emulated_warp.h), by a loop.
#pragma once

#include <cstdint>
#include <cstring>

#include "tests/gpu/emulated_warp.h"
#include "tests/gpu/fibers.h"

namespace cgx::kernels {

class EmulatedBlock {
 public:
  static constexpr uint32_t kSize = 64;
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

  EmulatedBlock(gpu::Fibers& fibers, Staging& staging, uint32_t lane)
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

  void add(uint64_t* p, uint64_t n) {
    if (lane_ == 0) *p += n;
  }
  void lower(uint64_t* p, uint64_t n) {
    if (lane_ == 0 && n < *p) *p = n;
  }

 private:
  enum Kind : uint32_t { kEach, kMerge, kScan, kWarps };

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
