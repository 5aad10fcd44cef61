// A warp, or a part of one, played by a loop: what kernels/cuda/team.h says of a team, on the host.
//
// From one barrier to the next the lanes run one after the other, in a new order each time: a body
// that depends on the order has a race, and gives other bytes than the scalar lane sooner or later.
#pragma once

#include <cstdint>
#include <cstring>

namespace cgx::kernels {

template <uint32_t kLanes>
class EmulatedLanes {
 public:
  static constexpr uint32_t kSize = kLanes;
  template <class T>
  struct Each {
    T values[kSize];
    T& operator[](uint32_t t) { return values[t]; }
    const T& operator[](uint32_t t) const { return values[t]; }
  };

  template <class F>
  void each(F f) {
    lanes(f);
  }
  template <class F>
  void lanes(F f) {
    order_ = order_ * 1664525u + 1013904223u;
    const uint32_t flip = any();  // lane i ^ flip is i-th: another order for each flip
    for (uint32_t i = 0; i < kSize; ++i) f(i ^ flip);
  }

  template <class T, class F>
  T merge(Each<T> x, F f) {
    for (uint32_t distance = kSize / 2; distance > 0; distance /= 2) {
      const Each<T> before = x;
      for (uint32_t t = 0; t < kSize; ++t) f(x[t], before[t ^ distance]);
    }
    return x[any()];  // lanes must agree
  }

  float fold(Each<float> x) {
    for (uint32_t half = kSize / 2; half > 0; half /= 2) {
      for (uint32_t t = 0; t + half < kSize; ++t) x[t] += x[t + half];
    }
    return x[0];
  }

  template <class F>
  uint32_t ballot(F f) {
    uint32_t set = 0;
    lanes([&](uint32_t t) { set |= static_cast<uint32_t>(f(t) != 0) << t; });
    return set;
  }

  void add(uint64_t* p, uint64_t n) { *p += n; }
  void lower(uint64_t* p, uint64_t n) { *p = n < *p ? n : *p; }

 private:
  uint32_t any() const { return (order_ >> 27) % kSize; }

  uint32_t order_ = 1;
};

using EmulatedWarp = EmulatedLanes<32>;

}  // namespace cgx::kernels
