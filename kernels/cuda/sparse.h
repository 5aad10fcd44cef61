// Every operation of a sparse codec on one bucket by one team: lanes/sparse.h in parallel.
//
// A bucket is read from the tensor once, into the team's scratch memory; entries are written to
// where they are staged, at the bucket's bound, and moved together later (sparse_table.h).
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/codec.h"
#include "kernels/cuda/cuda_lane.h"
#include "kernels/cuda/skeleton.h"
#include "kernels/cuda/sparse_entry.h"
#include "kernels/cuda/sparse_norms.h"
#include "kernels/cuda/sparse_select.h"
#include "kernels/cuda/views.h"
#include "kernels/draw.h"
#include "kernels/sums.h"

namespace cgx::kernels {
namespace {

// One bucket of a segment, and what the team that works on it has for it.
struct SparseBucket {
  uint64_t number, first;  // in its segment; its first element
  uint32_t n;
  const uint64_t* places;  // where in part p its entry starts: places[p * stride]
  uint64_t stride;
  uint8_t* entry;  // staged
  uint64_t* entry_bytes;
  float* x;  // n values, and room for whole quads
  Picked picked;
  Findings found;
};

constexpr uint64_t kNowhere = UINT64_MAX;

template <class Team, class Codec>
class SparseSkeleton {
 public:
  static CGX_DEVICE void run(Team& team, const EncodeJob& job, SparseBucket& at, SparseShared& s) {
    const Survey seen = look(team, job.spec, at, s, [&](uint32_t e, uint32_t count) {
      const Quad x = contribution_of(job.source, at.first + e, count);
      *reinterpret_cast<Quad*>(at.x + e) = x;
      return x;
    });
    const bool finite = seen.max_abs < kInfBits;
    put_entry(team, job.spec, key_of(job, at), finite, kInfBits, seen, at, s);
    team.add(&at.found.outcome->nonfinite_buckets, !finite);
    const bool keep = finite && (job.residual_out || job.norms);
    if (keep) deliver(team, job.spec, kInfBits, at.picked.sent, at);
    if (job.norms) put_norms(team, finite, seen.max_abs, at, s);
    if (job.residual_out == nullptr) return;
    if (finite) {
      put_errors(team, job.residual_out, at);
    } else {
      keep_residual(team, job.source.residual_in, job.source.residual_scale, job.residual_out,
                    at.first, at.n);
    }
  }

  static CGX_DEVICE void run(Team& team, const DecodeJob& job, SparseBucket& at, SparseShared& s) {
    bool nonfinite = false;
    const uint32_t limit = overflow_bits(job.dtype);
    if (!get_entry(team, job.spec, job.encoded, 0, nullptr, at, s, nonfinite, limit)) return;
    if (nonfinite) return put_nonfinite(team, job, at);
    deliver(team, job.spec, limit, at.picked.value, at);
    scatter(team, job, at.picked.value, at);
  }

  static CGX_DEVICE void run(Team& team, const DecodeAddJob& job, SparseBucket& at,
                             SparseShared& s) {
    bool nonfinite = false;
    if (!get_entry(team, job.spec, job.encoded, 0, nullptr, at, s, nonfinite, kInfBits)) return;
    float* sum = job.sum + at.first;
    team.add(&at.found.outcome->nonfinite_buckets, nonfinite);
    if (nonfinite) {
      each_quad(team, at.n, [&](uint32_t, uint32_t e, uint32_t count) {
        store_quad(sum, DType::kF32, e, count, nan_quad());
      });
      return;
    }
    deliver(team, job.spec, kInfBits, at.picked.value, at);
    each_picked(team, at.picked, [&](uint32_t, uint32_t i) {
      float& to = sum[at.picked.index[i]];
      to = canonical_nan(to + at.picked.value[i]);
    });
  }

  static CGX_DEVICE void run(Team& team, const ReduceJob& job, SparseBucket& at, SparseShared& s) {
    const uint32_t limit = overflow_bits(job.dtype);
    const uint64_t key = key_of(job, at);
    bool nonfinite = false;
    if (!add_parts(team, job, &key, at, s, nonfinite)) return;
    const Survey seen = look_again(team, job.spec, at, s);
    const bool finite = !nonfinite && seen.max_abs < limit;
    put_entry(team, job.spec, key, finite, limit, seen, at, s);
    if (finite) deliver(team, job.spec, limit, at.picked.sent, at);
    if (job.norms) put_norms(team, finite, seen.max_abs, at, s);
    if (!finite) return put_nonfinite(team, job, at);
    if (job.residual_out) put_errors(team, job.residual_out, at);
    scatter(team, job, at.picked.sent, at);
  }

  static CGX_DEVICE void run(Team& team, const CombineJob& job, SparseBucket& at, SparseShared& s) {
    const uint32_t limit = overflow_bits(job.dtype);
    bool nonfinite = false;
    if (!add_parts(team, job, nullptr, at, s, nonfinite)) return;
    const Survey seen = survey(team, at.n, 1, false, s, [&](uint32_t e, uint32_t) {
      return *reinterpret_cast<const Quad*>(at.x + e);
    });
    if (nonfinite || seen.max_abs >= limit) return put_nonfinite(team, job, at);
    Counts saturated;
    team.lanes([&](uint32_t t) { saturated[t] = 0; });
    each_quad(team, at.n, [&](uint32_t t, uint32_t e, uint32_t count) {
      Quad x = *reinterpret_cast<const Quad*>(at.x + e);
      for (uint32_t i = 0; i < count; ++i) {
        x.v[i] = delivered(job.spec, at.n, e + i, x.v[i], limit, saturated[t]);
      }
      store(job, at.first + e, count, x);
    });
    team.add(&at.found.outcome->saturated, team_total(team, saturated));
  }

 private:
  using Counts = typename Team::template Each<uint32_t>;

  template <class Job>
  static CGX_DEVICE uint64_t key_of(const Job& job, const SparseBucket& at) {
    return bucket_key(job.key.stream, job.key.first_bucket + at.number);
  }
  static CGX_DEVICE Quad nan_quad() {
    const float nan = float_of(kNanBits);
    return {{nan, nan, nan, nan}};
  }
  template <class F>
  static CGX_DEVICE void each_picked(Team& team, const Picked& picked, F f) {
    team.each([&](uint32_t t) {
      for (uint32_t i = t; i < picked.count; i += Team::kSize) f(t, i);
    });
  }

  // A survey of what get gives, with what the selection is going to need: top-k, which has hardly
  // any floor, nearly always cuts.
  template <class Get>
  static CGX_DEVICE Survey look(Team& team, const CodecSpec& spec, const SparseBucket& at,
                                SparseShared& s, Get get) {
    const Want want = Codec::want(spec, at.n);
    return survey(team, at.n, want.floor, !Codec::kDrawn && want.floor == 1, s, get);
  }
  static CGX_DEVICE Survey look_again(Team& team, const CodecSpec& spec, const SparseBucket& at,
                                      SparseShared& s) {
    return look(team, spec, at, s,
                [&](uint32_t e, uint32_t) { return *reinterpret_cast<const Quad*>(at.x + e); });
  }

  static CGX_DEVICE void pick(Team& team, const CodecSpec& spec, uint64_t key, const Survey& seen,
                              SparseBucket& at, SparseShared& s) {
    if constexpr (Codec::kDrawn) {
      draw_places(team, spec, key, at);
    } else {
      const Want want = Codec::want(spec, at.n);
      if (want.floor != 1 && seen.reaching > want.most) {
        survey(team, at.n, want.floor, true, s,
               [&](uint32_t e, uint32_t) { return *reinterpret_cast<const Quad*>(at.x + e); });
      }
      select(team, at.x, at.n, want, seen, s);
      Counts rank;
      at.picked.count = rank_marked(team, s.over, at.n, rank);
      each_marked(team, s.over, at.n, [&](uint32_t t, uint32_t e) {
        at.picked.index[rank[t]++] = static_cast<uint16_t>(e);
      });
    }
    each_picked(team, at.picked,
                [&](uint32_t, uint32_t i) { at.picked.value[i] = at.x[at.picked.index[i]]; });
  }
  static CGX_DEVICE void draw_places(Team& team, const CodecSpec& spec, uint64_t key,
                                     SparseBucket& at) {
    const uint32_t step = Codec::stride(spec);
    at.picked.count = Codec::want(spec, at.n).most;
    each_picked(team, at.picked, [&](uint32_t, uint32_t i) {
      const uint32_t left = at.n - i * step;
      at.picked.index[i] =
          static_cast<uint16_t>(Codec::position(key, i, step, left < step ? left : step));
    });
  }

  // Selects, and writes the entry; what its values decode to lies in at.picked.sent then.
  static CGX_DEVICE void put_entry(Team& team, const CodecSpec& spec, uint64_t key, bool finite,
                                   uint32_t limit, const Survey& seen, SparseBucket& at,
                                   SparseShared& s) {
    at.picked.count = 0;
    if (finite) pick(team, spec, key, seen, at, s);
    uint8_t* body = at.entry + kSparseHeaderBytes;
    Indices indices{IndexForm::kDrawn, 8};
    uint32_t count = at.picked.count;
    if constexpr (Codec::kDrawn) {
      count = Codec::want(spec, at.n).most;
      if (!finite) clear_values(team, body + Codec::kKeyBytes, value_bytes(spec.values, count));
    } else {
      indices = count > 0 ? put_indices(team, at.picked, at.n, s, body) : Indices();
    }
    const uint64_t bytes = kSparseHeaderBytes + indices.bytes + value_bytes(spec.values, count);
    team.lanes([&](uint32_t t) {
      if (t != 0) return;
      const SparseHeader header{static_cast<uint32_t>(bytes), static_cast<uint16_t>(count),
                                indices.form, finite ? uint8_t{0} : kNonfiniteEntry};
      std::memcpy(at.entry, &header, sizeof(header));
      if constexpr (Codec::kDrawn) std::memcpy(body, &key, sizeof(key));
      *at.entry_bytes = bytes;
    });
    if (at.picked.count == 0) return;
    team.add(&at.found.outcome->saturated,
             put_values(team, spec.values, at.picked, limit, body + indices.bytes));
  }
  static CGX_DEVICE void clear_values(Team& team, uint8_t* bytes, uint64_t n) {
    team.each([&](uint32_t t) {
      for (uint64_t i = t; i < n; i += Team::kSize) bytes[i] = 0;
    });
  }

  // What a wire value at place e stands for.
  static CGX_DEVICE float delivered(const CodecSpec& spec, uint32_t n, uint32_t e, float x,
                                    uint32_t limit, uint32_t& saturated) {
    if constexpr (Codec::kDrawn) {
      if (spec.flags & CodecSpec::kFeedback) return x;
      return weighed(x, Codec::weight(spec, n, e), limit, saturated);
    }
    return x;
  }
  static CGX_DEVICE void deliver(Team& team, const CodecSpec& spec, uint32_t limit, float* values,
                                 SparseBucket& at) {
    if constexpr (Codec::kDrawn) {
      Counts saturated;
      team.lanes([&](uint32_t t) { saturated[t] = 0; });
      each_picked(team, at.picked, [&](uint32_t t, uint32_t i) {
        values[i] = delivered(spec, at.n, at.picked.index[i], values[i], limit, saturated[t]);
      });
      team.add(&at.found.outcome->saturated, team_total(team, saturated));
    }
  }

  // The entry of part p to at.picked. False if no encoder writes it, or not with this key.
  static CGX_DEVICE bool get_entry(Team& team, const CodecSpec& spec,
                                   std::span<const std::byte> encoded, uint32_t p,
                                   const uint64_t* key, SparseBucket& at, SparseShared& s,
                                   bool& nonfinite, uint32_t limit) {
    const bool good = read_entry(team, spec, encoded, p, key, at, s, nonfinite, limit);
    if (!good) team.lower(&at.found.outcome->bad_bucket, at.number);
    return good;
  }
  static CGX_DEVICE bool read_entry(Team& team, const CodecSpec& spec,
                                    std::span<const std::byte> encoded, uint32_t p,
                                    const uint64_t* key, SparseBucket& at, SparseShared& s,
                                    bool& nonfinite, uint32_t limit) {
    const uint64_t place = Codec::kDrawn ? at.number * Codec::bytes_max(spec, kSparseBucket)
                                         : at.places[p * at.stride];
    if (place > encoded.size()) return false;
    const uint8_t* bytes = reinterpret_cast<const uint8_t*>(encoded.data()) + place;
    SparseHeader header;
    if (!get_header<Codec>(spec, at.n, bytes, encoded.size() - place, header)) return false;
    at.picked.count = 0;
    const bool bad = header.flags == kNonfiniteEntry;
    nonfinite = nonfinite || bad;
    if (bad || header.form == IndexForm::kNone) return true;
    at.picked.count = header.count;
    const uint8_t* body = bytes + kSparseHeaderBytes;
    const uint64_t indices =
        header.bytes - kSparseHeaderBytes - value_bytes(spec.values, header.count);
    if (!read_places(team, spec, header, body, indices, key, at, s)) return false;
    if (!get_values(team, spec.values, body + indices, header.count, at.picked.value)) return false;
    const uint32_t max_abs = team_max_abs_bits(team, at.picked.value, at.picked.count);
    nonfinite = nonfinite || max_abs >= limit;
    return max_abs < kInfBits;
  }
  static CGX_DEVICE bool read_places(Team& team, const CodecSpec& spec, const SparseHeader& header,
                                     const uint8_t* body, uint64_t bytes, const uint64_t* key,
                                     SparseBucket& at, SparseShared& s) {
    if constexpr (Codec::kDrawn) {
      uint64_t drawn;
      std::memcpy(&drawn, body, sizeof(drawn));
      if (key != nullptr && drawn != *key) return false;
      draw_places(team, spec, drawn, at);
      return true;
    } else {
      return get_indices(team, header.form, body, bytes, header.count, at.n, s, at.picked.index);
    }
  }

  // at.x := the sum of the present parts, in order from +0.0. False if one is corrupt, or drawn
  // with another key than the sum is going to be.
  template <class Job>
  static CGX_DEVICE bool add_parts(Team& team, const Job& job, const uint64_t* key,
                                   SparseBucket& at, SparseShared& s, bool& nonfinite) {
    each_quad(team, at.n,
              [&](uint32_t, uint32_t e, uint32_t) { *reinterpret_cast<Quad*>(at.x + e) = Quad{}; });
    for (uint32_t p = 0; p < job.contributions.size(); ++p) {
      const Contribution& part = job.contributions.data()[p];
      if (part.kind == Contribution::Kind::kRaw) {
        each_quad(team, at.n, [&](uint32_t, uint32_t e, uint32_t count) {
          const Quad more = contribution_of(part.raw, at.first + e, count);
          Quad* to = reinterpret_cast<Quad*>(at.x + e);
          for (uint32_t i = 0; i < 4; ++i) to->v[i] += more.v[i];
        });
      } else if (part.kind == Contribution::Kind::kEncoded) {
        if (!get_entry(team, job.spec, part.encoded, p, key, at, s, nonfinite, kInfBits)) {
          return false;
        }
        each_picked(team, at.picked,
                    [&](uint32_t, uint32_t i) { at.x[at.picked.index[i]] += at.picked.value[i]; });
      }
    }
    return true;
  }

  // Zeros and what was sent, to every local result.
  template <class Job>
  static CGX_DEVICE void scatter(Team& team, const Job& job, const float* values,
                                 const SparseBucket& at) {
    if (job.target_count == 0) return;
    each_quad(team, at.n, [&](uint32_t, uint32_t e, uint32_t count) {
      store(job, at.first + e, count, Quad{});
    });
    each_picked(team, at.picked, [&](uint32_t, uint32_t i) {
      for (uint32_t target = 0; target < job.target_count; ++target) {
        store_element(job.targets[target], job.dtype, at.first + at.picked.index[i], values[i]);
      }
    });
  }

  // A result that is NaN everywhere.
  template <class Job>
  static CGX_DEVICE void put_nonfinite(Team& team, const Job& job, const SparseBucket& at) {
    team.add(&at.found.outcome->nonfinite_buckets, 1);
    if (job.residual_out) {
      keep_residual(team, job.residual_in, job.residual_scale, job.residual_out, at.first, at.n);
    }
    each_quad(team, at.n, [&](uint32_t, uint32_t e, uint32_t count) {
      store(job, at.first + e, count, nan_quad());
    });
  }

  // What was not sent of at.x, which it becomes.
  static CGX_DEVICE void put_errors(Team& team, float* residual, SparseBucket& at) {
    const Picked& picked = at.picked;
    each_picked(team, picked, [&](uint32_t, uint32_t i) {
      at.x[picked.index[i]] = saturated(picked.value[i] - picked.sent[i]);
    });
    each_quad(team, at.n, [&](uint32_t, uint32_t e, uint32_t count) {
      store_quad(residual, DType::kF32, at.first + e, count,
                 *reinterpret_cast<const Quad*>(at.x + e));
    });
  }

  static CGX_DEVICE void put_norms(Team& team, bool finite, uint32_t max_abs,
                                   const SparseBucket& at, SparseShared& s) {
    cuda::Norms norms = {};
    if (finite) {
      float* chunk = reinterpret_cast<float*>(s.bins);
      norms.intended_sq = intended_norm(team, at.x, at.n, max_abs, chunk);
      norms.sent_sq = sent_norm(team, at.picked, at.n, chunk);
    }
    team.lanes([&](uint32_t t) {
      if (t == 0) *at.found.norms = norms;
    });
  }
};

}  // namespace
}  // namespace cgx::kernels
