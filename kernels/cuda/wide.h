// fp64 and integers, which travel as they are: every operation on one bucket by one team, as
// lanes/wide.h does it with one lane. Integers wrap: they are added as unsigned. Neither residuals
// nor scratch memory: each lane reads what it adds to a value before it writes that value.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/codec.h"
#include "kernels/cuda/memory.h"
#include "kernels/cuda/skeleton.h"
#include "kernels/cuda/team.h"
#include "kernels/floats.h"
#include "kernels/range.h"

namespace cgx::kernels {
namespace {

// What rows of kernels.def name.
template <class T>
struct WideKernel {
  using Value = T;
  static constexpr bool kFloat = T(0.5) != T(0);
  static constexpr uint32_t kMetaBytes = 0;
  CGX_SHARED static constexpr uint64_t code_bytes(uint64_t elements) {
    return sizeof(T) * elements;
  }
};
template <class Codec>
constexpr bool kIsWide = requires {
  typename Codec::Value;
};

template <class Team, class Codec>
class WideSkeleton {
 public:
  using T = typename Codec::Value;
  using WideRange = Range<Codec>;
  using Flags = typename Team::template Each<uint32_t>;

  static CGX_DEVICE void run(Team& team, const EncodeJob& job, const WideRange& range, uint64_t b,
                             Findings found) {
    uint8_t* const bytes = reinterpret_cast<uint8_t*>(job.encoded.data());
    each(team, range, b, found, [&](uint64_t i, uint64_t code) {
      const T x = sum_of(job.source, i);
      put(bytes + code, x);
      return x;
    });
    pad(team, range, b, bytes);
    if (job.norms) no_norms(team, found);
  }

  static CGX_DEVICE void run(Team& team, const DecodeJob& job, const WideRange& range, uint64_t b,
                             Findings found) {
    each(team, range, b, found, [&](uint64_t i, uint64_t code) {
      const T x = get(reinterpret_cast<const uint8_t*>(job.encoded.data()) + code);
      store(job, i, x);
      return x;
    });
  }

  static CGX_DEVICE void run(Team&, const DecodeAddJob&, const WideRange&, uint64_t, Findings) {
  }  // small floats only

  static CGX_DEVICE void run(Team& team, const ReduceJob& job, const WideRange& range, uint64_t b,
                             Findings found) {
    uint8_t* const bytes = reinterpret_cast<uint8_t*>(job.encoded.data());
    each(team, range, b, found, [&](uint64_t i, uint64_t code) {
      const T x = sum_of(job, i, code);
      put(bytes + code, x);
      store(job, i, x);
      return x;
    });
    pad(team, range, b, bytes);
    if (job.norms) no_norms(team, found);
  }

  static CGX_DEVICE void run(Team& team, const CombineJob& job, const WideRange& range, uint64_t b,
                             Findings found) {
    each(team, range, b, found, [&](uint64_t i, uint64_t code) {
      const T x = sum_of(job, i, code);
      store(job, i, x);
      return x;
    });
  }

 private:
  // f(value, its place in the encoded range) for every value of the bucket; counts what it returns.
  template <class F>
  static CGX_DEVICE void each(Team& team, const WideRange& range, uint64_t b, Findings found, F f) {
    Flags nonfinite;
    team.lanes([&](uint32_t t) { nonfinite[t] = 0; });
    const uint32_t n = range.count(b);
    team.each([&](uint32_t t) {
      for (uint32_t e = t; e < n; e += Team::kSize) {
        nonfinite[t] |= is_nonfinite(f(range.first(b) + e, range.codes(b) + sizeof(T) * e));
      }
    });
    const uint32_t any =
        team.merge(nonfinite, [](uint32_t& one, const uint32_t& other) { one |= other; });
    team.add(&found.outcome->nonfinite_buckets, any);
  }

  static CGX_DEVICE uint32_t is_nonfinite(T x) {
    if constexpr (Codec::kFloat) {
      return (__builtin_bit_cast(uint64_t, x) & ~(1ull << 63)) >= 0x7ff0000000000000u;
    }
    return 0;
  }
  static CGX_DEVICE T finished(T x) {
    if constexpr (Codec::kFloat) return canonical_nan(x);
    return x;
  }

  // Encoded bytes may lie anywhere, and mostly lie well.
  typedef T Alias __attribute__((may_alias));
  static CGX_DEVICE T get(const uint8_t* from) {
    if (misalignment(from, sizeof(T)) == 0) return *reinterpret_cast<const Alias*>(from);
    T x;
    memcpy(&x, from, sizeof(T));
    return x;
  }
  static CGX_DEVICE void put(uint8_t* to, T x) {
    if (misalignment(to, sizeof(T)) == 0) {
      *reinterpret_cast<Alias*>(to) = x;
    } else {
      memcpy(to, &x, sizeof(T));
    }
  }

  static CGX_DEVICE T sum_of(const RawView& view, uint64_t i) {
    if (view.rank_count == 0) return T(0);
    T x = static_cast<const T*>(view.ranks[0])[i];
    for (uint32_t r = 1; r < view.rank_count; ++r) {
      x = static_cast<T>(x + static_cast<const T*>(view.ranks[r])[i]);
    }
    if constexpr (Codec::kFloat) {
      if (view.scale != 1.0) x *= view.scale;
      if (view.rank_count > 1 || view.scale != 1.0) x = canonical_nan(x);
    }
    return x;
  }

  template <class Job>
  static CGX_DEVICE T sum_of(const Job& job, uint64_t i, uint64_t code) {
    T sum = T(0);
    for (uint32_t p = 0; p < job.contributions.size(); ++p) {
      const Contribution& part = job.contributions.data()[p];
      if (part.kind == Contribution::Kind::kAbsent) continue;
      const bool raw = part.kind == Contribution::Kind::kRaw;
      const uint8_t* const bytes = reinterpret_cast<const uint8_t*>(part.encoded.data());
      sum = static_cast<T>(sum + (raw ? sum_of(part.raw, i) : get(bytes + code)));
    }
    return finished(sum);
  }

  template <class Job>
  static CGX_DEVICE void store(const Job& job, uint64_t i, T x) {
    for (uint32_t t = 0; t < job.target_count; ++t) static_cast<T*>(job.targets[t])[i] = x;
  }

  static CGX_DEVICE void pad(Team& team, const WideRange& range, uint64_t b, uint8_t* bytes) {
    if (b + 1 < range.buckets()) return;
    team.lanes([&](uint32_t t) {
      for (uint64_t i = range.end() + t; i < range.padded_end(); i += Team::kSize) bytes[i] = 0;
    });
  }
  // Nothing is lost, so nothing is measured.
  static CGX_DEVICE void no_norms(Team& team, Findings found) {
    team.lanes([&](uint32_t t) {
      if (t == 0) *found.norms = {};
    });
  }
};

}  // namespace
}  // namespace cgx::kernels
