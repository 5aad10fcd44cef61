// A team on a device: the lanes of one warp, or eight of them, whose warp has four such teams.
//
// Teams of one warp need not do the same: every barrier, shuffle and ballot is of the own lanes.
#pragma once

#include <cstdint>

#include "kernels/cuda/team.h"

namespace cgx::kernels {
namespace {

template <uint32_t size>
class WarpLanes {
 public:
  static constexpr uint32_t kSize = size;
  template <class T>
  struct Each {
    T value;
    __device__ T& operator[](uint32_t) { return value; }
    __device__ const T& operator[](uint32_t) const { return value; }
  };

  __device__ WarpLanes() : lane_(threadIdx.x % kSize) {}

  template <class F>
  __device__ void each(F f) {
    f(lane_);
    meet();
  }
  template <class F>
  __device__ void lanes(F f) {
    f(lane_);
  }

  template <class T, class F>
  __device__ T merge(const Each<T>& x, F f) {
    return of_own([&](auto own) {
      __syncwarp(own());  // shuffles and ballots order no memory
      T all = x.value;
      for (uint32_t distance = kSize / 2; distance > 0; distance /= 2) {
        f(all, across(own, all, distance));
      }
      return all;
    });
  }

  __device__ float fold(const Each<float>& x) {
    return of_own([&](auto own) {
      __syncwarp(own());
      float sum = x.value;
      for (uint32_t half = kSize / 2; half > 0; half /= 2) {
        sum += __shfl_down_sync(own(), sum, half, kSize);
      }
      return __shfl_sync(own(), sum, 0, kSize);
    });
  }

  template <class F>
  __device__ uint32_t ballot(F f) {
    const bool set = f(lane_);
    return of_own([&](auto own) {
      __syncwarp(own());
      return __ballot_sync(own(), set) >> first() & (kAll >> (kWarp - kSize));
    });
  }

  __device__ void add(uint64_t* p, uint64_t n) {
    if (lane_ == 0 && n != 0) atomicAdd(reinterpret_cast<unsigned long long*>(p), n);
  }
  __device__ void lower(uint64_t* p, uint64_t n) {
    if (lane_ == 0) atomicMin(reinterpret_cast<unsigned long long*>(p), n);
  }

 private:
  static constexpr uint32_t kWarp = 32, kAll = 0xffffffffu;

  // Whom a call is of: all lanes of the warp, or those of this team. Functions, because nvcc asks
  // at every shuffle who takes part where it does not know that by itself.
  struct All {
    __device__ uint32_t operator()() const { return kAll; }
  };
  struct Own {
    __device__ uint32_t operator()() const { return (kAll >> (kWarp - kSize)) << first(); }
  };
  static __device__ uint32_t first() { return threadIdx.x & (kWarp - kSize); }

  // f(whom): where all teams of the warp are at the same place, as they mostly are, that is all.
  template <class F>
  static __device__ auto of_own(F f) {
    if (kSize == kWarp || __activemask() == kAll) return f(All());
    return f(Own());
  }
  static __device__ void meet() {
    of_own([](auto own) { __syncwarp(own()); });
  }

  template <class Whom, class T>
  static __device__ T across(Whom whom, const T& x, uint32_t distance) {
    static_assert(sizeof(T) % 4 == 0);
    struct Words {
      uint32_t v[sizeof(T) / 4];
    };
    Words words = __builtin_bit_cast(Words, x);
    for (uint32_t& word : words.v) word = __shfl_xor_sync(whom(), word, distance);
    return __builtin_bit_cast(T, words);
  }

  uint32_t lane_;
};

using Warp = WarpLanes<32>;
using QuarterWarp = WarpLanes<8>;

}  // namespace
}  // namespace cgx::kernels
