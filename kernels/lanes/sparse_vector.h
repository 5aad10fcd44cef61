// Sparse codecs on sixteen lanes: one pass over a bucket, whatever is selected.
//
// A sample of the bucket tells a magnitude that some more values than wanted have; the pass
// collects these candidates as it goes, and the exact cut is looked for among them alone. Where the
// sample misleads, all values are candidates. So sampling buys speed and never changes what is
// selected.
#pragma once

#include <cmath>

#include "kernels/lanes/sparse.h"
#include "kernels/lanes/vector_decode.h"

namespace cgx::kernels {
namespace {

template <class V>
struct SparseVector {
  static uint32_t read(const RawView& source, const Access& access, uint64_t elements,
                       uint64_t first, uint32_t n, const Want& want, bool keep,
                       const HeldResidual& held, SparseWork& work) {
    if (is_plain(source)) {
      return read_from(Direct<V>(source, elements, access), source, first, n, want, keep, held,
                       work);
    }
    return read_from(Source<V>(source, elements, access), source, first, n, want, keep, held, work);
  }

  static uint32_t largest(const float* x, uint32_t n) {
    auto max_abs = V::splat(0);
    for (uint32_t e = 0; e < n; e += kBlock) {
      const Block<V> block = load_block<V>(x + e);
      for_each_vector([&](auto i) { max_abs = V::max_signed(max_abs, magnitude(block.v[i.j])); });
    }
    return static_cast<uint32_t>(V::highest_signed(max_abs));
  }

  static float squares(const float* x, uint32_t n, float scale) {
    SquareSum<V> sum(scale);
    for (uint32_t e = 0; e < n; e += kBlock) sum.add(load_block<V>(x + e));
    return sum.total();
  }

  static void add_raw(const RawView& view, const Access& access, uint64_t elements, uint64_t first,
                      uint32_t n, float* x) {
    const uint32_t whole = n / kBlock * kBlock;
    kernels::add_raw<V>(view, access, elements, first, whole, false, x);
    if (whole == n) return;
    float rest[kBlock];
    load_sum(view, first + whole, n - whole, rest);
    for (uint32_t e = whole; e < n; ++e) x[e] += rest[e - whole];
  }

  static void store(const SparseTargets& to, uint64_t first, uint32_t n, const float* x) {
    const Targets<V> targets(to.targets, to.count, to.dtype, to.stream);
    const uint32_t whole = n / kBlock * kBlock;
#pragma GCC unroll 1
    for (uint32_t e = 0; e < whole; e += kBlock) targets.store(first + e, load_block<V>(x + e));
    for (uint32_t t = 0; t < to.count; ++t) {
      for (uint32_t e = whole; e < n; ++e) store_element(to.targets[t], to.dtype, first + e, x[e]);
    }
  }

  static void flush(const float* x, const HeldResidual& held) {
    flush_from(x, held, 0);
  }
  static void fence() {
    V::stream_fence();
  }

 private:
  using Ints = typename V::Ints;

  static CGX_INLINE Ints magnitude(typename V::Floats x) {
    return V::bits(x) & V::splat(kAbsMask);
  }

  static void flush_from(const float* x, const HeldResidual& held, uint32_t e) {
    if (held.to == nullptr) return;
    const bool stream = held.stream && is_line(held.to);
    const uint32_t whole = held.n / kBlock * kBlock;
#pragma GCC unroll 1
    for (; e < whole; e += kBlock) store_as<V>(held.to + e, load_block<V>(x + e), stream);
    if (e < held.n) std::memcpy(held.to + e, x + e, (held.n - e) * sizeof(float));
  }

  template <class From>
  static uint32_t read_from(const From& source, const RawView& view, uint64_t first, uint32_t n,
                            const Want& want, bool keep, const HeldResidual& held,
                            SparseWork& work) {
    const bool guessed = want.most != 0 && work.guess >= want.floor && n >= kSampledFrom;
    uint32_t cut = want.most == 0 ? kNothing
                   : guessed      ? work.guess
                                  : sampled_cut(view, first, n, want);
    uint32_t max_abs = scan(source, view, first, n, cut, keep ? work.x : nullptr, held, work);
    Picked& picked = work.picked;
    work.guess = 0;
    if (want.most == 0 || max_abs >= kInfBits) return max_abs;
    if (guessed && !enough(picked, cut, want)) {
      cut = sampled_cut(view, first, n, want);
      max_abs = scan(source, view, first, n, cut, keep ? work.x : nullptr, {}, work);
      if (max_abs >= kInfBits) return max_abs;
    }
    if (enough(picked, cut, want)) {
      if (picked.count > want.most) work.guess = narrow(picked, cut, want, max_abs);
      return max_abs;
    }
    // More candidates than fit, or fewer than wanted: select from a copy of the whole bucket.
    if (!keep) max_abs = scan(source, view, first, n, kNothing, work.x, {}, work);
    if (max_abs >= kInfBits) return max_abs;
    const auto count = [&](uint32_t c) { return count_from(work.x, n, c); };
    pick_exactly(work.x, n, max_abs, want, count, picked);
    return max_abs;
  }

  static bool enough(const Picked& picked, uint32_t cut, const Want& want) {
    return picked.count <= kPickedMax && (picked.count >= want.most || cut == want.floor);
  }

  // How many candidates make it all but certain that there are `wanted`: four standard deviations
  // more.
  static float enough_for(float wanted) {
    return wanted + 4 * std::sqrt(wanted) + 3;
  }

  // No magnitude is as large.
  static constexpr uint32_t kNothing = kSignBit;

  static constexpr uint32_t kSamplePlaces = 64, kSample = 16 * kSamplePlaces;
  static constexpr uint32_t kSampledFrom = 8 * kSample;

  // Place i of the sample of a bucket: sixteen values, at no regular distance.
  static uint32_t sample_place(uint32_t n, uint32_t i) {
    const uint32_t blocks_each = n / kBlock / kSamplePlaces;
    return (i * blocks_each + (i * kGolden32 >> 16) % blocks_each) * kBlock + i % 4 * 16;
  }
  // Sixteen values of a contribution, without asking for what follows.
  static CGX_INLINE typename V::Floats peek(const RawView& view, uint64_t first) {
    auto x = V::splat(0.0f);
    for (uint32_t r = 0; r < view.rank_count; ++r) x = x + load_vector(view, r, first);
    x = x * V::splat(static_cast<float>(view.scale));
    if (view.residual_in == nullptr) return x;
    return x + V::load(view.residual_in + first) * V::splat(view.residual_scale);
  }
  static CGX_INLINE typename V::Floats load_vector(const RawView& view, uint32_t r,
                                                   uint64_t first) {
    if (view.dtype == DType::kF32) return V::load(static_cast<const float*>(view.ranks[r]) + first);
    const uint16_t* p = static_cast<const uint16_t*>(view.ranks[r]) + first;
    return view.dtype == DType::kF16 ? V::load_half(p) : load_brain<V>(p);
  }

  // A magnitude that probably some more than want.most values have: of a sample of 1,024 in 64
  // places, the one four standard deviations beyond where the cut is to be expected.
  static uint32_t sampled_cut(const RawView& view, uint64_t first, uint32_t n, const Want& want) {
    if (n < kSampledFrom) return want.floor;
    alignas(64) float sample[kSample];
    for (uint32_t i = 0; i < kSamplePlaces; ++i) {
      V::store(sample + 16 * i, peek(view, first + sample_place(n, i)));
    }
    const float expected = static_cast<float>(want.most) * kSample / static_cast<float>(n);
    const uint32_t wanted = static_cast<uint32_t>(enough_for(expected));
    if (wanted >= kSample || count_from(sample, kSample, want.floor) < wanted) return want.floor;
    const auto count = [&](uint32_t cut) {
      const uint32_t found = count_from(sample, kSample, cut);
      return found >= wanted && found <= wanted + wanted / 8 ? wanted : found;
    };
    const uint32_t highest = largest(sample, kSample);
    return highest_cut(want.floor, highest < kInfBits ? highest : kInfBits, wanted, count);
  }

  // How many of n values, zeros up to a whole block, have this magnitude or more.
  static CGX_INLINE uint32_t count_from(const float* x, uint32_t n, uint32_t cut) {
    const Ints below = V::splat(cut - 1);
    uint32_t found = 0;
#pragma GCC unroll 1
    for (uint32_t e = 0; e < n; e += kBlock) {
      const Block<V> block = load_block<V>(x + e);
      for_each_vector([&](auto i) { found += V::count(V::less(below, magnitude(block.v[i.j]))); });
    }
    return found;
  }

  // The pass: every block of the bucket goes to x, if there is one, after what x held before has
  // gone to the residual; magnitudes from the cut on are collected. Returns the largest.
  template <class From>
  [[gnu::noinline]] static uint32_t scan(const From& source, const RawView& view, uint64_t first,
                                         uint32_t n, uint32_t cut, float* x, HeldResidual held,
                                         SparseWork& work) {
    Collector candidates(cut, work.picked);
    const uint32_t whole = n / kBlock * kBlock;
    held.stream = held.stream && is_line(held.to);
    const bool both = held.to != nullptr;
#pragma GCC unroll 1
    for (uint32_t e = 0; e < whole; e += kBlock) {
      const Block<V> block = source.get(first + e);
      if (both) store_as<V>(held.to + e, load_block<V>(work.x + e), held.stream);
      if (x != nullptr) store_block<V>(x + e, block);
      candidates.add(block);
    }
    if (both) flush_from(work.x, held, whole);
    if (whole < n) {
      alignas(64) float rest[kBlock] = {};
      load_sum(view, first + whole, n - whole, rest);
      const Block<V> block = load_block<V>(rest);
      if (x != nullptr) store_block<V>(x + whole, block);
      candidates.add(block);
    }
    return candidates.finish();
  }

  class Collector {
   public:
    CGX_INLINE Collector(uint32_t cut, Picked& picked)
        : picked_(picked), below_(V::splat(cut - 1)) {}

    // The next block of the bucket.
    CGX_INLINE void add(const Block<V>& x) {
      for_each_vector([&](auto i) {
        const Ints size = magnitude(x.v[i.j]);
        max_abs_ = V::max_signed(max_abs_, size);
        const auto wanted = V::less(below_, size);
        V::pack(picked_.index + count_, wanted, index_);
        index_ = index_ + V::splat(16);
        count_ +=
            V::pack(reinterpret_cast<uint32_t*>(picked_.value) + count_, wanted, V::bits(x.v[i.j]));
      });
      if (count_ > kPickedMax) [[unlikely]] {
        count_ = 0;
        overflow_ = true;
        below_ = V::splat(kAbsMask);
      }
    }
    CGX_INLINE uint32_t finish() {
      picked_.count = overflow_ ? UINT32_MAX : count_;
      return static_cast<uint32_t>(V::highest_signed(max_abs_));
    }

   private:
    Picked& picked_;
    Ints below_, max_abs_ = V::splat(0), index_ = V::iota();
    uint32_t count_ = 0;
    bool overflow_ = false;
  };

  // The want.most largest of more candidates, which have magnitudes from lo to hi; of equal ones
  // the first. Returns a guess for the next bucket: magnitudes near the cut lie about evenly.
  [[gnu::noinline]] static uint32_t narrow(Picked& picked, uint32_t lo, const Want& want,
                                           uint32_t hi) {
    const uint32_t most = want.most;
    const uint32_t before = picked.count;
    for (uint32_t i = before; i % kBlock != 0; ++i) picked.value[i] = 0;
    const auto count = [&](uint32_t c) { return count_from(picked.value, before, c); };
    const uint32_t cut = highest_cut(lo, hi, most, count);
    uint32_t ties = before;
    if (count(cut) > most) ties = most - count(cut + 1);
    uint32_t kept = 0;
    if (ties < before) {
      for (uint32_t i = 0; i < before; ++i) {
        const uint32_t size = abs_bits(picked.value[i]);
        if (size < cut || (size == cut && ties == 0)) continue;
        ties -= size == cut;
        picked.index[kept] = picked.index[i];
        picked.value[kept++] = picked.value[i];
      }
    } else {
      const Ints below = V::splat(cut - 1);
      auto* values = reinterpret_cast<uint32_t*>(picked.value);
      for (uint32_t i = 0; i < before; i += 16) {
        const Ints bits = V::load_ints(values + i), index = V::load_ints(picked.index + i);
        const auto wanted = V::less(below, bits & V::splat(kAbsMask));
        V::pack(picked.index + kept, wanted, index);
        kept += V::pack(values + kept, wanted, bits);
      }
    }
    picked.count = kept;
    const float spare = enough_for(static_cast<float>(most)) - static_cast<float>(most);
    const float step = static_cast<float>(cut - lo) * spare / static_cast<float>(before - most);
    return step < static_cast<float>(cut - want.floor) ? cut - static_cast<uint32_t>(step)
                                                       : want.floor;
  }
};

}  // namespace
}  // namespace cgx::kernels
