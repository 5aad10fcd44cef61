// A team on a device: all lanes of a block.
#pragma once

#include <cstdint>

#include "kernels/cuda/team.h"
#include "kernels/cuda/warp.cuh"

namespace cgx::kernels {
namespace {

template <uint32_t size>
class ThreadBlock {
 public:
  static constexpr uint32_t kSize = size, kWarps = size / Warp::kSize;
  template <class T>
  using Each = Warp::Each<T>;
  // What warps tell each other, in shared memory.
  struct Staging {
    uint32_t words[kWarps][4];
  };

  __device__ explicit ThreadBlock(Staging& staging) : staging_(staging) {}

  template <class F>
  __device__ void each(F f) {
    f(threadIdx.x);
    __syncthreads();
  }
  template <class F>
  __device__ void lanes(F f) {
    f(threadIdx.x);
  }

  template <class T, class F>
  __device__ T merge(const Each<T>& x, F f) {
    tell(warp_.merge(x, f));
    T all = told<T>(0);
    for (uint32_t w = 1; w < kWarps; ++w) f(all, told<T>(w));
    __syncthreads();
    return all;
  }

  __device__ uint32_t scan(Each<uint32_t>& x) {
    const uint32_t lane = threadIdx.x % Warp::kSize, own = threadIdx.x / Warp::kSize;
    uint32_t sum = x[0];
    for (uint32_t distance = 1; distance < Warp::kSize; distance *= 2) {
      const uint32_t before = __shfl_up_sync(kAll, sum, distance);
      if (lane >= distance) sum += before;
    }
    x[0] = sum - x[0];
    tell(__shfl_sync(kAll, sum, Warp::kSize - 1));
    uint32_t total = 0;
    for (uint32_t w = 0; w < kWarps; ++w) {
      if (w == own) x[0] += total;
      total += told<uint32_t>(w);
    }
    __syncthreads();
    return total;
  }

  __device__ void bump(uint32_t* p, uint32_t n) { atomicAdd(p, n); }
  __device__ void set(uint32_t* p, uint32_t bits) { atomicOr(p, bits); }

  template <class F>
  __device__ void warps(F f) {
    f(warp_, threadIdx.x / Warp::kSize, kWarps);
    __syncthreads();
  }

  __device__ void add(uint64_t* p, uint64_t n) {
    if (threadIdx.x == 0 && n != 0) atomicAdd(reinterpret_cast<unsigned long long*>(p), n);
  }
  __device__ void lower(uint64_t* p, uint64_t n) {
    if (threadIdx.x == 0) atomicMin(reinterpret_cast<unsigned long long*>(p), n);
  }

 private:
  static constexpr uint32_t kAll = 0xffffffffu;

  // To the other warps what all lanes of this one know.
  template <class T>
  __device__ void tell(const T& x) {
    static_assert(sizeof(T) % 4 == 0 && sizeof(T) <= sizeof(Words));
    if (threadIdx.x % Warp::kSize == 0) {
      const auto words = __builtin_bit_cast(WordsOf<T>, x);
      for (uint32_t i = 0; i < sizeof(T) / 4; ++i) {
        staging_.words[threadIdx.x / Warp::kSize][i] = words.v[i];
      }
    }
    __syncthreads();
  }
  template <class T>
  __device__ T told(uint32_t warp) const {
    WordsOf<T> words;
    for (uint32_t i = 0; i < sizeof(T) / 4; ++i) words.v[i] = staging_.words[warp][i];
    return __builtin_bit_cast(T, words);
  }

  using Words = uint32_t[4];
  template <class T>
  struct WordsOf {
    uint32_t v[sizeof(T) / 4];
  };

  Staging& staging_;
  Warp warp_;
};

}  // namespace
}  // namespace cgx::kernels
