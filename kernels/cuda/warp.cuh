// A team on a device: the thirty-two lanes of one warp.
#pragma once

#include <cstdint>

#include "kernels/cuda/team.h"

namespace cgx::kernels {
namespace {

class Warp {
 public:
  static constexpr uint32_t kSize = 32;
  template <class T>
  struct Each {
    T value;
    __device__ T& operator[](uint32_t) { return value; }
    __device__ const T& operator[](uint32_t) const { return value; }
  };

  __device__ Warp() : lane_(threadIdx.x % kSize) {}

  template <class F>
  __device__ void each(F f) {
    f(lane_);
    __syncwarp();
  }
  template <class F>
  __device__ void lanes(F f) {
    f(lane_);
  }

  template <class T, class F>
  __device__ T merge(const Each<T>& x, F f) {
    __syncwarp();  // shuffles and ballots order no memory
    T all = x.value;
    for (uint32_t distance = kSize / 2; distance > 0; distance /= 2) f(all, across(all, distance));
    return all;
  }

  __device__ float fold(const Each<float>& x) {
    __syncwarp();
    float sum = x.value;
    for (uint32_t half = kSize / 2; half > 0; half /= 2) sum += __shfl_down_sync(kAll, sum, half);
    return __shfl_sync(kAll, sum, 0);
  }

  template <class F>
  __device__ uint32_t ballot(F f) {
    __syncwarp();
    return __ballot_sync(kAll, f(lane_));
  }

  __device__ void add(uint64_t* p, uint64_t n) {
    if (lane_ == 0 && n != 0) atomicAdd(reinterpret_cast<unsigned long long*>(p), n);
  }
  __device__ void lower(uint64_t* p, uint64_t n) {
    if (lane_ == 0) atomicMin(reinterpret_cast<unsigned long long*>(p), n);
  }

 private:
  static constexpr uint32_t kAll = 0xffffffffu;

  template <class T>
  static __device__ T across(const T& x, uint32_t distance) {
    static_assert(sizeof(T) % 4 == 0);
    struct Words {
      uint32_t v[sizeof(T) / 4];
    };
    Words words = __builtin_bit_cast(Words, x);
    for (uint32_t& word : words.v) word = __shfl_xor_sync(kAll, word, distance);
    return __builtin_bit_cast(T, words);
  }

  uint32_t lane_;
};

}  // namespace
}  // namespace cgx::kernels
