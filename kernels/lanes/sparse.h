// The skeleton of sparse codecs: every operation, bucket by bucket, for any lane.
//
// What touches every value of a bucket is the lane's (sparse_scalar.h, sparse_vector.h: read,
// add_raw, store, flush, squares); what touches the few selected ones is written here, once.
// Buckets are read completely before anything of them is written; from then on only copies are
// worked on, so that a source that changes during the call changes values, not accesses. A call
// needs 0.5 MiB of stack.
#pragma once

#include <cstring>

#include "kernels/codecs/sparse.h"
#include "kernels/draw.h"
#include "kernels/lanes/scalar.h"
#include "kernels/lanes/sources.h"
#include "kernels/ops.h"
#include "kernels/sums.h"

namespace cgx::kernels {
namespace {

// Values of one bucket with their indices, rising. More than kSentMax while candidates are
// collected; vector code may write one block further.
constexpr uint32_t kPickedMax = 24576;
struct Picked {
  uint32_t count;
  alignas(64) uint32_t index[kPickedMax + 96];
  alignas(64) float value[kPickedMax + 96];
};

struct SparseWork {
  uint32_t guess = 0;  // where the next bucket's cut may lie, as the one before tells; 0: unknown
  alignas(64) float x[kSparseBucket];  // a bucket, or its residual: zeros up to a whole block
  Picked picked;
  alignas(64) float sent[kSentMax];  // what the receiver makes of them
};

// x on its way to residual_out: stored while the next bucket comes in.
struct HeldResidual {
  float* to = nullptr;
  uint32_t n = 0;
  bool stream = false;
};

struct SparseTargets {
  void* const* targets;
  uint32_t count;
  DType dtype;
  bool stream;
};

// The largest T in lo..hi with count(T) >= wanted, or one that has exactly as many; count(lo) does
// and count falls.
template <class Count>
CGX_INLINE uint32_t highest_cut(uint32_t lo, uint32_t hi, uint32_t wanted, Count count) {
  while (lo < hi) {
    const uint32_t middle = lo + (hi - lo + 1) / 2, found = count(middle);
    if (found < wanted) {
      hi = middle - 1;
    } else {
      lo = middle;
      if (found == wanted) break;
    }
  }
  return lo;
}

// The exact selection from all of x: what every lane falls back on and the scalar lane always does.
template <class Count>
void pick_exactly(const float* x, uint32_t n, uint32_t max_abs, const Want& want, Count count,
                  Picked& picked) {
  const uint32_t found = count(want.floor);
  picked.count = 0;
  if (found == 0) return;
  uint32_t cut = want.floor, ties = n;
  if (found > want.most) {
    cut = highest_cut(want.floor, max_abs, want.most, count);
    ties = want.most - count(cut + 1);
  }
  for (uint32_t e = 0; e < n; ++e) {
    const uint32_t magnitude = abs_bits(x[e]);
    if (magnitude < cut || (magnitude == cut && ties == 0)) continue;
    ties -= magnitude == cut;
    picked.index[picked.count] = e;
    picked.value[picked.count++] = x[e];
  }
}

inline uint32_t sparse_count(uint64_t elements, uint64_t first) {
  return elements - first < kSparseBucket ? static_cast<uint32_t>(elements - first) : kSparseBucket;
}

// Where the entries of one range are read.
template <class Codec>
class SparseReader {
 public:
  SparseReader(const CodecSpec& spec, std::span<const std::byte> encoded)
      : spec_(spec),
        bytes_(reinterpret_cast<const uint8_t*>(encoded.data())),
        left_(encoded.size()) {}

  // The next entry, of a bucket of n values. False if no encoder writes it, or not with this key.
  bool next(uint32_t n, const uint64_t* wanted_key, Picked& picked, bool& nonfinite) {
    SparseHeader header;
    if (!get_header<Codec>(spec_, n, bytes_, left_, header)) return false;
    const uint8_t* body = bytes_ + kSparseHeaderBytes;
    const uint64_t values = value_bytes(spec_.values, header.count);
    const uint64_t indices = header.bytes - kSparseHeaderBytes - values;
    bytes_ += header.bytes;
    left_ -= header.bytes;
    nonfinite = header.flags == kNonfiniteEntry;
    picked.count = header.count;
    if (nonfinite || header.form == IndexForm::kNone) return true;
    if constexpr (Codec::kDrawn) {
      uint64_t key;
      std::memcpy(&key, body, sizeof(key));
      if (wanted_key != nullptr && key != *wanted_key) return false;
      Codec::positions(spec_, key, n, picked.index);
    } else if (!get_indices(header.form, body, indices, header.count, n, picked.index)) {
      return false;
    }
    return get_values(spec_.values, body + indices, header.count, picked.value);
  }
  uint64_t left() const { return left_; }

 private:
  const CodecSpec& spec_;
  const uint8_t* bytes_;
  uint64_t left_;
};

template <class Lane, class Codec>
struct Sparse {
  static uint64_t encode(const EncodeJob& job, const Tuning& tuning, RangeStats& stats) {
    SparseWork work;
    HeldResidual held;
    uint8_t* out = bytes_of(job);
    const bool keep = job.residual_out != nullptr || job.norms;
    const bool stream = job.residual_out != nullptr && streams(tuning.feedback, job.elements);
    const Access& access = job.source.residual_in ? tuning.feedback : tuning.encode;
    for (uint64_t first = 0; first < job.elements; first += kSparseBucket) {
      const uint32_t n = sparse_count(job.elements, first);
      const uint32_t max_abs = Lane::read(job.source, access, job.elements, first, n,
                                          scanned(job.spec, n), keep, held, work);
      held = {};
      const uint64_t key = bucket_key(job.key.stream, job.key.first_bucket + first / kSparseBucket);
      const bool finite =
          max_abs < kInfBits && pick(job.spec, key, job.source, first, n, keep, work);
      out += put_entry(job.spec, key, n, finite, kInfBits, work, out, stats);
      if (!finite && job.residual_out) {
        keep_residual(job.source.residual_in, job.source.residual_scale, job.residual_out, first,
                      n);
      }
      if (!finite || !keep) continue;
      deliver(job.spec, n, kInfBits, work.picked, work.sent, stats);
      if (job.norms) add_norms(work, n, max_abs, stats);
      if (job.residual_out == nullptr) continue;
      put_error(work);
      held = {job.residual_out + first, n, stream};
    }
    Lane::flush(work.x, held);
    if (stream) Lane::fence();
    return static_cast<uint64_t>(out - bytes_of(job));
  }

  static uint64_t decode(const DecodeJob& job, const Tuning& tuning, RangeStats& stats) {
    SparseWork work;
    const bool stream = streams(tuning.decode, job.elements);
    SparseReader<Codec> reader(job.spec, job.encoded);
    const uint32_t limit = overflow_bits(job.dtype);
    clear(work.x, sparse_count(job.elements, 0));
    for (uint64_t first = 0; first < job.elements; first += kSparseBucket) {
      const uint32_t n = sparse_count(job.elements, first);
      Picked& picked = work.picked;
      bool nonfinite = false;
      if (!reader.next(n, nullptr, picked, nonfinite)) return first / kSparseBucket;
      nonfinite = nonfinite || max_abs_bits(picked.value, picked.count) >= limit;
      if (nonfinite) {
        put_nonfinite(job, stream, first, n, work.x, stats);
        clear(work.x, n);
        continue;
      }
      deliver(job.spec, n, limit, picked, picked.value, stats);
      for (uint32_t i = 0; i < picked.count; ++i) work.x[picked.index[i]] = picked.value[i];
      store(job, stream, first, n, work.x);
      for (uint32_t i = 0; i < picked.count; ++i) work.x[picked.index[i]] = 0;
    }
    if (stream) Lane::fence();
    return kNoBucket;
  }

  static uint64_t decode_add(const DecodeAddJob& job, const Tuning&, RangeStats& stats) {
    SparseWork work;
    SparseReader<Codec> reader(job.spec, job.encoded);
    for (uint64_t first = 0; first < job.elements; first += kSparseBucket) {
      const uint32_t n = sparse_count(job.elements, first);
      Picked& picked = work.picked;
      bool nonfinite = false;
      if (!reader.next(n, nullptr, picked, nonfinite)) return first / kSparseBucket;
      float* sum = job.sum + first;
      stats.nonfinite_buckets += nonfinite;
      if (nonfinite) {
        fill_nan(sum, n);
        continue;
      }
      deliver(job.spec, n, kInfBits, picked, picked.value, stats);
      for (uint32_t i = 0; i < picked.count; ++i) {
        float& to = sum[picked.index[i]];
        to = canonical_nan(to + picked.value[i]);
      }
    }
    return kNoBucket;
  }

  static uint64_t reduce(const ReduceJob& job, const Tuning& tuning, RangeStats& stats,
                         uint64_t* used) {
    SparseWork work;
    const bool stream = job.residual_out != nullptr && streams(tuning.feedback, job.elements);
    Parts parts(job.spec, job.contributions);
    uint8_t* out = bytes_of(job);
    const uint32_t limit = overflow_bits(job.dtype);
    const void* sum = work.x;
    const RawView sum_view{.ranks = &sum, .rank_count = 1};
    for (uint64_t first = 0; first < job.elements; first += kSparseBucket) {
      const uint32_t n = sparse_count(job.elements, first);
      const uint64_t key = bucket_key(job.key.stream, job.key.first_bucket + first / kSparseBucket);
      bool nonfinite = false;
      if (!parts.add(tuning.reduce, job.elements, first, n, &key, work, nonfinite))
        return first / kSparseBucket;
      const uint32_t max_abs =
          Lane::read(sum_view, {}, n, 0, n, scanned(job.spec, n), false, HeldResidual(), work);
      const bool finite = !nonfinite && max_abs < limit;
      if (finite) pick(job.spec, key, sum_view, 0, n, true, work);
      out += put_entry(job.spec, key, n, finite, limit, work, out, stats);
      if (!finite) {
        --stats.nonfinite_buckets;  // put_entry counted it, and so does put_nonfinite
        put_nonfinite(job, false, first, n, work.x, stats);
        continue;
      }
      deliver(job.spec, n, limit, work.picked, work.sent, stats);
      if (job.norms) add_norms(work, n, max_abs, stats);
      put_result(job, stream, first, n, work);
    }
    if (stream) Lane::fence();
    *used = static_cast<uint64_t>(out - bytes_of(job));
    return kNoBucket;
  }

  static uint64_t combine(const CombineJob& job, const Tuning& tuning, RangeStats& stats) {
    SparseWork work;
    const bool stream = streams(tuning.decode, job.elements);
    Parts parts(job.spec, job.contributions);
    const uint32_t limit = overflow_bits(job.dtype);
    for (uint64_t first = 0; first < job.elements; first += kSparseBucket) {
      const uint32_t n = sparse_count(job.elements, first);
      bool nonfinite = false;
      if (!parts.add(tuning.decode, job.elements, first, n, nullptr, work, nonfinite))
        return first / kSparseBucket;
      if (nonfinite || Lane::largest(work.x, n) >= limit) {
        put_nonfinite(job, stream, first, n, work.x, stats);
        continue;
      }
      weigh_all(job.spec, n, limit, work.x, stats);
      store(job, stream, first, n, work.x);
    }
    if (stream) Lane::fence();
    return kNoBucket;
  }

  static constexpr CodecOps kOps = {encode, decode, reduce, combine, decode_add};

 private:
  // What the lane's read looks for: nothing, where places are drawn.
  static Want scanned(const CodecSpec& spec, uint32_t n) {
    return Codec::kDrawn ? Want{0, 1} : Codec::want(spec, n);
  }

  // After a read: the picked values, if they were not picked by it. False if the source, read
  // again, is not finite any more.
  static bool pick(const CodecSpec& spec, uint64_t key, const RawView& source, uint64_t first,
                   uint32_t n, bool kept, SparseWork& work) {
    if constexpr (Codec::kDrawn) {
      Picked& picked = work.picked;
      picked.count = Codec::positions(spec, key, n, picked.index);
      for (uint32_t i = 0; i < picked.count; ++i) {
        if (kept) {
          picked.value[i] = work.x[picked.index[i]];
        } else {
          load_sum(source, first + picked.index[i], 1, picked.value + i);
        }
      }
      return max_abs_bits(picked.value, picked.count) < kInfBits;
    }
    return true;
  }

  // The entry of a bucket; what its values decode to lies in work.sent then.
  static uint64_t put_entry(const CodecSpec& spec, uint64_t key, uint32_t n, bool finite,
                            uint32_t limit, SparseWork& work, uint8_t* out, RangeStats& stats) {
    const Picked& picked = work.picked;
    stats.nonfinite_buckets += !finite;
    if constexpr (Codec::kDrawn) {
      const uint32_t count = Codec::want(spec, n).most;
      const uint64_t bytes = Codec::bytes_max(spec, n);
      const uint8_t flags = finite ? 0 : kNonfiniteEntry;
      put_header(bytes, count, IndexForm::kDrawn, flags, out);
      std::memcpy(out + kSparseHeaderBytes, &key, sizeof(key));
      uint8_t* values = out + kSparseHeaderBytes + Codec::kKeyBytes;
      if (!finite) {
        std::memset(values, 0, value_bytes(spec.values, count));
      } else {
        put_values(spec.values, picked.value, count, limit, values, work.sent, stats);
      }
      return bytes;
    }
    const uint32_t count = finite ? picked.count : 0;
    const Indices indices = shortest_form(count, gap_escapes(picked.index, count), n);
    const uint64_t bytes = kSparseHeaderBytes + indices.bytes + value_bytes(spec.values, count);
    put_header(bytes, count, indices.form, finite ? 0 : kNonfiniteEntry, out);
    if (count == 0) return bytes;
    put_indices(indices, picked.index, count, out + kSparseHeaderBytes);
    put_values(spec.values, picked.value, count, limit, out + kSparseHeaderBytes + indices.bytes,
               work.sent, stats);
    return bytes;
  }

  static void put_header(uint64_t bytes, uint32_t count, IndexForm form, uint8_t flags,
                         uint8_t* out) {
    const SparseHeader header{static_cast<uint32_t>(bytes), static_cast<uint16_t>(count), form,
                              flags};
    std::memcpy(out, &header, sizeof(header));
  }

  // Wire values to what they stand for.
  static void deliver(const CodecSpec& spec, uint32_t n, uint32_t limit, const Picked& picked,
                      float* values, RangeStats& stats) {
    if constexpr (Codec::kDrawn) {
      if (spec.feedback()) return;
      for (uint32_t i = 0; i < picked.count; ++i) {
        values[i] =
            weighed(values[i], Codec::weight(spec, n, picked.index[i]), limit, stats.saturated);
      }
    }
  }
  static void weigh_all(const CodecSpec& spec, uint32_t n, uint32_t limit, float* x,
                        RangeStats& stats) {
    if constexpr (Codec::kDrawn) {
      if (spec.feedback()) return;
      const float common = Codec::weight(spec, n, 0), last = Codec::weight(spec, n, n - 1);
      const uint32_t step = Codec::stride(spec), whole = n / step * step;
      for (uint32_t e = 0; e < n; ++e) {
        x[e] = weighed(x[e], e < whole ? common : last, limit, stats.saturated);
      }
    }
  }

  // x, the sum, becomes what was not sent of it.
  static void put_error(SparseWork& work) {
    const Picked& picked = work.picked;
    for (uint32_t i = 0; i < picked.count; ++i) {
      work.x[picked.index[i]] = residual_of(picked.value[i], work.sent[i]);
    }
  }

  static void add_norms(const SparseWork& work, uint32_t n, uint32_t max_abs, RangeStats& stats) {
    const float scale = square_scale(max_abs);
    stats.intended_sq += unscaled_square(Lane::squares(work.x, n, scale), scale);
    const Picked& picked = work.picked;
    const float sent_scale = square_scale(max_abs_bits(work.sent, picked.count));
    float partials[kPartials] = {};  // the zeros in between add nothing
    for (uint32_t i = 0; i < picked.count; ++i) {
      const float y = work.sent[i] * sent_scale;
      partials[picked.index[i] % kPartials] += y * y;
    }
    stats.sent_sq += unscaled_square(fold_partials(partials), sent_scale);
  }

  static void put_result(const ReduceJob& job, bool stream, uint64_t first, uint32_t n,
                         SparseWork& work) {
    const Picked& picked = work.picked;
    if (job.residual_out) {
      put_error(work);
      Lane::flush(work.x, {job.residual_out + first, n, stream});
    }
    if (job.target_count == 0) return;
    clear(work.x, n);
    for (uint32_t i = 0; i < picked.count; ++i) work.x[picked.index[i]] = work.sent[i];
    store(job, false, first, n, work.x);
  }

  // A result that is NaN everywhere; x is scratch.
  template <class Job>
  static void put_nonfinite(const Job& job, bool stream, uint64_t first, uint32_t n, float* x,
                            RangeStats& stats) {
    ++stats.nonfinite_buckets;
    if (job.residual_out) {
      keep_residual(job.residual_in, job.residual_scale, job.residual_out, first, n);
    }
    fill_nan(x, n);
    store(job, stream, first, n, x);
  }

  template <class Job>
  static void store(const Job& job, bool stream, uint64_t first, uint32_t n, const float* x) {
    Lane::store({job.targets, job.target_count, job.dtype, stream}, first, n, x);
  }

  static void fill_nan(float* x, uint32_t n) {
    for (uint32_t e = 0; e < n; ++e) x[e] = float_of(kNanBits);
  }
  // Whole blocks, so that what lies beyond n never counts.
  static void clear(float* x, uint32_t n) {
    std::memset(x, 0, blocks_of(n) * kBlock * sizeof(float));
  }

  // The contributions to one range, bucket after bucket.
  class Parts {
   public:
    Parts(const CodecSpec& spec, std::span<const Contribution> parts)
        : spec_(spec), parts_(parts) {}

    // work.x := the sum of the present parts, in order from +0.0. False if one is corrupt, or drawn
    // with another key than the sum is going to be.
    bool add(const Access& access, uint64_t elements, uint64_t first, uint32_t n,
             const uint64_t* key, SparseWork& work, bool& nonfinite) {
      clear(work.x, n);
      for (size_t p = 0; p < parts_.size(); ++p) {
        const Contribution& part = parts_[p];
        if (part.kind == Contribution::Kind::kRaw) {
          Lane::add_raw(part.raw, access, elements, first, n, work.x);
        } else if (part.kind == Contribution::Kind::kEncoded) {
          if (!add_encoded(p, first, n, key, work, nonfinite)) return false;
        }
      }
      return true;
    }

   private:
    // Where the part's next entry starts; beyond the first so many the way there is walked again.
    static constexpr size_t kRemembered = 256;

    bool add_encoded(size_t p, uint64_t first, uint32_t n, const uint64_t* key, SparseWork& work,
                     bool& nonfinite) {
      const std::span<const std::byte> encoded = parts_[p].encoded;
      const uint64_t at = p < kRemembered && first > 0 ? offset_[p] : walk(encoded, first);
      SparseReader<Codec> reader(spec_, encoded.subspan(at));
      bool bad = false;
      if (!reader.next(n, key, work.picked, bad)) return false;
      if (p < kRemembered) offset_[p] = encoded.size() - reader.left();
      nonfinite = nonfinite || bad;
      if (bad) return true;
      const Picked& picked = work.picked;
      for (uint32_t i = 0; i < picked.count; ++i) work.x[picked.index[i]] += picked.value[i];
      return true;
    }
    // Over entries that were read, and so checked, before.
    static uint64_t walk(std::span<const std::byte> encoded, uint64_t first) {
      uint64_t at = 0;
      for (uint64_t before = 0; before < first; before += kSparseBucket) {
        SparseHeader header;
        std::memcpy(&header, encoded.data() + at, sizeof(header));
        at += header.bytes;
      }
      return at;
    }

    const CodecSpec& spec_;
    std::span<const Contribution> parts_;
    uint64_t offset_[kRemembered];
  };
};

}  // namespace
}  // namespace cgx::kernels
