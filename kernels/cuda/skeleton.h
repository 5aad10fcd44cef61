// The skeleton: every operation of a codec on one bucket by one team, as lanes/scalar.h does it
// with one lane. A bucket is read from the tensor once and then lies in the team's scratch memory.
//
// Each bucket is read completely before anything of it is written, so results may lie where ranks
// do.
#pragma once

#include <cstdint>

#include "kernels/codec.h"
#include "kernels/cuda/cuda_lane.h"
#include "kernels/cuda/formats.h"
#include "kernels/cuda/memory.h"
#include "kernels/cuda/scans.h"
#include "kernels/cuda/team.h"
#include "kernels/cuda/views.h"
#include "kernels/draw.h"
#include "kernels/lanes/votes.h"
#include "kernels/range.h"
#include "kernels/sums.h"

namespace cgx::kernels {
namespace {

// A team's own memory: one bucket of values, another where machines vote, and codes, which start as
// far into a line as they do in the encoded range.
struct Scratch {
  float *x, *vote;
  uint8_t* codes;
};
template <class Codec>
CGX_SHARED constexpr uint32_t scratch_bytes(uint32_t bucket) {
  const uint32_t arrays = is_vote<Codec>() ? 2 : 1;
  return static_cast<uint32_t>(arrays * sizeof(float) * bucket +
                               (Codec::code_bytes(bucket) + 31) / 16 * 16);
}
template <class Codec>
CGX_DEVICE Scratch scratch_at(uint8_t* memory, uint32_t bucket) {
  float* x = reinterpret_cast<float*>(memory);
  float* vote = is_vote<Codec>() ? x + bucket : nullptr;
  return {x, vote, reinterpret_cast<uint8_t*>(x + (is_vote<Codec>() ? 2 : 1) * bucket)};
}

// Teams of quantizers: thirty-two lanes, or, of small buckets, eight, so that all lanes of a warp
// have values, and share what is done once for a bucket among four.
constexpr uint32_t kLanes = 32, kSmallLanes = 8, kSmallBucket = 256;
constexpr uint32_t kDenseLanes = 256;  // of a block
constexpr uint32_t lanes_for(uint32_t bucket_max) {
  return bucket_max <= kSmallBucket ? kSmallLanes : kLanes;
}
// How far apart small teams' memories lie: then lanes of four read other banks.
constexpr uint32_t small_stride(uint32_t bytes) {
  constexpr uint32_t kLine = 128, kOwn = kLine / 4;
  return bytes + (kOwn + kLine - bytes % kLine) % kLine;
}

// Where a bucket's findings go.
struct Findings {
  cuda::Outcome* outcome;
  cuda::Norms* norms;  // this bucket's
};

// A reduced value that the tensor's dtype cannot hold counts as infinite.
CGX_DEVICE inline float held_by(float x, uint32_t limit) {
  if (abs_bits(x) < limit || is_nan(x)) return x;
  return float_of((bits_of(x) & kSignBit) | kInfBits);
}

template <class Team, class Codec>
class Skeleton {
 public:
  using Meta = typename Codec::Meta;
  using Extent = typename Codec::Extent;
  using CodecRange = Range<Codec>;

  static CGX_DEVICE void run(Team& team, const EncodeJob& job, const CodecRange& range, uint64_t b,
                             Scratch s, Findings found) {
    const uint64_t first = range.first(b);
    const uint32_t n = range.count(b);
    load_sum<false>(team, job.source, first, n, s.x);
    uint8_t* bytes = bytes_of(job);
    const Meta meta = put(team, n, kInfBits, job, b, range, bytes, s, found);
    if (job.norms) put_norms(team, s, n, meta, found);
    if (job.residual_out == nullptr) return;
    const RawView& source = job.source;
    if (meta.nonfinite) {
      keep_residual(team, source.residual_in, source.residual_scale, job.residual_out, first, n);
    } else {
      put_back(team, s, n, meta, job.residual_out + first, NoTarget());
    }
  }

  static CGX_DEVICE void run(Team& team, const DecodeJob& job, const CodecRange& range, uint64_t b,
                             Scratch s, Findings found) {
    const uint64_t first = range.first(b);
    const uint32_t n = range.count(b);
    Meta meta;
    if (!get_meta(team, bytes_of(job), range, b, meta, found)) return;
    Extents extents;
    team.lanes([&](uint32_t t) { extents[t] = Extent(); });
    const uint8_t* codes = bytes_of(job) + range.codes(b);
    float* const to = lined_target(job, first);
    if (to && readable(codes, n) && !is_nan_bucket(meta)) {
      each_whole_quad(
          team, n, [&](uint32_t e) { return Codes::piece(codes, e, meta); },
          [&](uint32_t t, uint32_t e, const Piece& piece) {
            const Quad x = Codes::quad(piece, e, meta);
            scan(extents[t], x, 4);
            put_line(outside(to + e), x);
          });
    } else {
      stage(team, codes, n, s);
      each_quad(team, n, [&](uint32_t t, uint32_t e, uint32_t count) {
        const Quad x = quad(s.codes, e, count, meta);
        scan(extents[t], x, count);
        store(job, first + e, count, x);
      });
    }
    finish(team, job, first, n, nonfinite(team, meta, extents, overflow_bits(job.dtype)), found);
  }

  static CGX_DEVICE void run(Team& team, const DecodeAddJob& job, const CodecRange& range,
                             uint64_t b, Scratch s, Findings found) {
    const uint64_t first = range.first(b);
    const uint32_t n = range.count(b);
    Meta meta;
    if (!get_meta(team, bytes_of(job), range, b, meta, found)) return;
    Extents extents;
    team.lanes([&](uint32_t t) { extents[t] = Extent(); });
    const auto add = [&](uint32_t t, const Quad& x, uint32_t count, Quad& sum) {
      scan(extents[t], x, count);
      for (uint32_t i = 0; i < 4; ++i) sum.v[i] = canonical_nan(sum.v[i] + x.v[i]);
    };
    const uint8_t* codes = bytes_of(job) + range.codes(b);
    float* const sums = outside(job.sum + first);
    if (in_lines(sums, DType::kF32) && readable(codes, n)) {
      struct Loaded {
        Piece piece;
        Quad sum;
      };
      each_whole_quad(
          team, n,
          [&](uint32_t e) {
            return Loaded{Codes::piece(codes, e, meta), line_at(sums + e)};
          },
          [&](uint32_t t, uint32_t e, Loaded loaded) {
            add(t, Codes::quad(loaded.piece, e, meta), 4, loaded.sum);
            put_line(sums + e, loaded.sum);
          });
    } else {
      stage(team, codes, n, s);
      each_quad(team, n, [&](uint32_t t, uint32_t e, uint32_t count) {
        Quad sum = load_quad(sums, DType::kF32, e, count);
        add(t, quad(s.codes, e, count, meta), count, sum);
        store_quad(sums, DType::kF32, e, count, sum);
      });
    }
    team.add(&found.outcome->nonfinite_buckets, nonfinite(team, meta, extents, kInfBits));
  }

  static CGX_DEVICE void run(Team& team, const ReduceJob& job, const CodecRange& range, uint64_t b,
                             Scratch s, Findings found) {
    const uint64_t first = range.first(b);
    const uint32_t n = range.count(b);
    const uint32_t limit = overflow_bits(job.dtype);
    if (!add_contributions(team, job, range, b, limit, s, found)) return;
    const Meta meta = put(team, n, limit, job, b, range, bytes_of(job), s, found);
    if (job.norms) put_norms(team, s, n, meta, found);
    float* errors = nullptr;
    if (job.residual_out && meta.nonfinite) {
      keep_residual(team, job.residual_in, job.residual_scale, job.residual_out, first, n);
    } else if (job.residual_out) {
      errors = job.residual_out + first;
    }
    put_back(team, s, n, meta, errors, Targets<ReduceJob>{job, first, lined_target(job, first)});
  }

  static CGX_DEVICE void run(Team& team, const CombineJob& job, const CodecRange& range, uint64_t b,
                             Scratch s, Findings found) {
    const uint64_t first = range.first(b);
    const uint32_t n = range.count(b);
    const uint32_t limit = overflow_bits(job.dtype);
    if (!add_contributions(team, job, range, b, limit, s, found)) return;
    const bool bad = bucket_max_abs_bits(team, s.x, n) >= limit;
    const bool erase = bad && !Codec::kKeepsNan;
    const auto held = [&](uint32_t e) {
      Quad x = line_at(s.x + e);
      for (uint32_t i = 0; i < 4; ++i) x.v[i] = erase ? float_of(kNanBits) : x.v[i];
      return x;
    };
    float* const to = lined_target(job, first);
    if (to && n % 4 == 0) {
      each_whole_quad(team, n, held,
                      [&](uint32_t, uint32_t e, const Quad& x) { put_line(outside(to + e), x); });
    } else {
      each_quad(team, n, [&](uint32_t, uint32_t e, uint32_t count) {
        store(job, first + e, count, held(e));
      });
    }
    finish(team, job, first, n, bad, found);
  }

 private:
  using Codes = Format<Codec>;
  using Piece = typename Codes::Piece;
  using Extents = typename Team::template Each<Extent>;
  static constexpr bool kVotes = is_vote<Codec>();

  // Where decoded values go.
  struct NoTarget {
    CGX_DEVICE bool lined() const { return true; }
    CGX_DEVICE void put_line(uint32_t, const Quad&) const {}
    CGX_DEVICE void put(uint32_t, uint32_t, const Quad&) const {}
  };
  template <class Job>
  struct Targets {
    const Job& job;
    uint64_t first;
    float* to;
    CGX_DEVICE bool lined() const { return to != nullptr; }
    CGX_DEVICE void put_line(uint32_t e, const Quad& x) const {
      kernels::put_line(outside(to + e), x);
    }
    CGX_DEVICE void put(uint32_t e, uint32_t count, const Quad& x) const {
      store(job, first + e, count, x);
    }
  };

  template <class Job>
  static CGX_DEVICE auto* bytes_of(const Job& job) {
    if constexpr (requires { job.key; }) {
      return outside(reinterpret_cast<uint8_t*>(job.encoded.data()));
    } else {
      return outside(reinterpret_cast<const uint8_t*>(job.encoded.data()));
    }
  }

  // x := what the view contributes to the bucket, or x += it.
  template <bool add>
  static CGX_DEVICE void load_sum(Team& team, const RawView& view, uint64_t first, uint32_t n,
                                  float* x) {
    const auto put = [&](uint32_t e, const Quad& more) {
      Quad sum = more;
      if constexpr (add) {
        sum = line_at(x + e);
        for (uint32_t i = 0; i < 4; ++i) sum.v[i] += more.v[i];
      }
      put_line(x + e, sum);
    };
    LinedView lines;
    if (!lined(view, first, n, lines)) {
      each_quad(team, n, [&](uint32_t, uint32_t e, uint32_t count) {
        put(e, contribution_of(view, first + e, count));
      });
    } else if (lines.untouched) {
      each_whole_quad(
          team, n, [&](uint32_t e) { return line_at(outside(lines.values + e)); },
          [&](uint32_t, uint32_t e, const Quad& more) { put(e, more); });
    } else {
      each_whole_quad(
          team, n, [&](uint32_t e) { return lines.load(e); },
          [&](uint32_t, uint32_t e, const LinedView::Lines& loaded) {
            put(e, lines.contribution(loaded));
          });
    }
  }

  // The bucket in s.x to metadata and codes, which stay in s.codes.
  template <class Job>
  static CGX_DEVICE Meta put(Team& team, uint32_t n, uint32_t limit, const Job& job, uint64_t b,
                             const CodecRange& range, uint8_t* bytes, Scratch& s, Findings found) {
    Meta meta = fit(team, s.x, n, limit, job.spec);
    if constexpr (HasScales<Codec>) Codec::put_meta(meta, bytes + range.meta(b));
    uint8_t* target = bytes + range.codes(b);
    s.codes += line_offset(target);
    typename Team::template Each<uint32_t> saturated;
    team.lanes([&](uint32_t t) {
      saturated[t] = 0;
      if (t == 0) put_meta(meta, bytes + range.meta(b));
    });
    if (b + 1 == range.buckets()) pad(team, range, bytes);
    const uint64_t key = bucket_key(job.key.stream, job.key.first_bucket + b);
    Codes::code(team, s.x, n, meta, key, job.spec, s.codes, saturated);
    copy_bytes(team, s.codes, target, Codec::code_bytes(n));
    team.add(&found.outcome->nonfinite_buckets, meta.nonfinite);
    if (!Codes::is_plain(meta)) team.add(&found.outcome->saturated, team_total(team, saturated));
    return meta;
  }
  static CGX_DEVICE void pad(Team& team, const CodecRange& range, uint8_t* bytes) {
    team.lanes([&](uint32_t t) {
      CGX_ROLLED
      for (uint64_t i = range.end() + t; i < range.padded_end(); i += Team::kSize) bytes[i] = 0;
    });
  }
  static CGX_DEVICE Meta fit(Team& team, const float* x, uint32_t n, uint32_t limit,
                             const CodecSpec& spec) {
    const Extent extent = team_extent<Codec>(team, x, n, spec);
    if constexpr (requires { Codec::fit(extent, n, limit, spec); }) {
      return Codec::fit(extent, n, limit, spec);
    } else {
      return Codec::fit(extent, n, limit);
    }
  }
  static CGX_DEVICE void put_meta(const Meta& meta, uint8_t* to) {
    if constexpr (Codec::kMetaBytes > 0) {
      alignas(16) uint8_t words[Codec::kMetaBytes];
      Codec::put_meta(meta, words);
      copy_words<Codec::kMetaBytes>(words, to);
    }
  }

  // False, for all lanes, if a bucket's metadata are corrupt.
  static CGX_DEVICE bool get_meta(Team& team, const uint8_t* bytes, const CodecRange& range,
                                  uint64_t b, Meta& meta, Findings found) {
    if constexpr (Codec::kMetaBytes > 0) {
      alignas(16) uint8_t words[Codec::kMetaBytes];
      copy_words<Codec::kMetaBytes>(bytes + range.meta(b), words);
      if (Codec::get_meta(words, meta)) return true;
      team.lower(&found.outcome->bad_bucket, b);
      return false;
    } else {
      return Codec::get_meta(bytes + range.meta(b), meta);
    }
  }
  // Whether codes of others can be read as they lie, four at a time, or else need staging.
  static CGX_DEVICE bool readable(const uint8_t* codes, uint32_t n) {
    return n % 4 == 0 && misalignment(codes, Codes::kAligned) == 0;
  }
  static CGX_DEVICE void stage(Team& team, const uint8_t* codes, uint32_t n, Scratch& s) {
    s.codes += line_offset(codes);
    copy_bytes(team, codes, s.codes, Codec::code_bytes(n));
  }
  // All its values are NaN, which must be the canonical one: arithmetic of a device makes another.
  static CGX_DEVICE bool is_nan_bucket(const Meta& meta) {
    return HasPlanes<Codec> && meta.nonfinite;
  }

  // s.x := the sum of the present parts, in order from +0.0; what the receiver's dtype cannot hold
  // is infinite in it.
  template <class Job>
  static CGX_DEVICE bool add_contributions(Team& team, const Job& job, const CodecRange& range,
                                           uint64_t b, uint32_t limit, const Scratch& s,
                                           Findings found) {
    const uint32_t n = range.count(b), whole = (n + 3) & ~3u;
    each_whole_quad(
        team, whole, [](uint32_t) { return Quad{}; },
        [&](uint32_t, uint32_t e, const Quad& zero) { put_line(s.x + e, zero); });
    float weight = 0;  // of votes
    for (uint32_t p = 0; p < job.contributions.size(); ++p) {
      const Contribution part = listed(job.contributions.data() + p);
      if (part.kind == Contribution::Kind::kAbsent) continue;
      Meta meta;
      if (part.kind == Contribution::Kind::kRaw) {
        if (kVotes && has_no_vote(part.raw)) continue;
        add_raw(team, job, part.raw, range.first(b), n, s, meta);
      } else if (!add_encoded(team, bytes_of(part), range, b, n, s, meta, found)) {
        return false;
      }
      if constexpr (kVotes) weight += meta.scale();
    }
    each_whole_quad(
        team, whole, [&](uint32_t e) { return line_at(s.x + e); },
        [&](uint32_t, uint32_t e, Quad x) {
          for (uint32_t i = 0; i < 4; ++i) {
            const float sum = kVotes ? outcome_of(x.v[i], e + i, weight) : x.v[i];
            x.v[i] = canonical_nan(sum);
            if (limit != kInfBits) x.v[i] = held_by(x.v[i], limit);
          }
          put_line(s.x + e, x);
        });
    return true;
  }

  template <class Job>
  static CGX_DEVICE void add_raw(Team& team, const Job& job, const RawView& raw, uint64_t first,
                                 uint32_t n, const Scratch& s, Meta& meta) {
    if constexpr (kVotes) {
      load_sum<false>(team, raw, first, n, s.vote);
      meta = fit(team, s.vote, n, kInfBits, job.spec);
      each_quad(team, n, [&](uint32_t, uint32_t e, uint32_t count) {
        for (uint32_t i = e; i < e + count; ++i) s.x[i] += vote_of(s.vote[i]);
      });
    } else {
      load_sum<true>(team, raw, first, n, s.x);
    }
  }
  static CGX_DEVICE bool add_encoded(Team& team, const uint8_t* bytes, const CodecRange& range,
                                     uint64_t b, uint32_t n, Scratch s, Meta& meta,
                                     Findings found) {
    if (!get_meta(team, bytes, range, b, meta, found)) return false;
    Meta read = meta;
    if constexpr (kVotes) read = ballot<Meta>();
    const auto add = [&](uint32_t e, const Quad& more) {
      Quad sum = line_at(s.x + e);
      for (uint32_t i = 0; i < 4; ++i) sum.v[i] += more.v[i];
      put_line(s.x + e, sum);
    };
    const uint8_t* codes = bytes + range.codes(b);
    if (readable(codes, n)) {
      each_whole_quad(
          team, n, [&](uint32_t e) { return Codes::piece(codes, e, read); },
          [&](uint32_t, uint32_t e, const Piece& piece) { add(e, Codes::quad(piece, e, read)); });
    } else {
      stage(team, codes, n, s);
      each_quad(team, n, [&](uint32_t, uint32_t e, uint32_t count) {
        add(e, quad(s.codes, e, count, read));
      });
    }
    return true;
  }

  static CGX_DEVICE Quad quad(const uint8_t* codes, uint32_t e, uint32_t count, const Meta& meta) {
    Quad x = {};
    for (uint32_t i = 0; i < 4; ++i) {
      if (i >= count) continue;
      x.v[i] = is_nan_bucket(meta) ? float_of(kNanBits) : Codes::value(codes, e + i, meta);
    }
    return x;
  }

  static CGX_DEVICE void scan(Extent& extent, const Quad& x, uint32_t count) {
    if constexpr (Codec::kScansValues) {
      for (uint32_t i = 0; i < 4; ++i) {
        if (i < count) Codec::add(extent, x.v[i]);
      }
    }
  }
  static CGX_DEVICE bool nonfinite(Team& team, const Meta& meta,
                                   const typename Team::template Each<Extent>& extents,
                                   uint32_t limit) {
    if constexpr (Codec::kScansValues) {
      return Codec::nonfinite(
          meta, team.merge(extents, [](auto& a, const auto& b) { Codec::merge(a, b); }), limit);
    } else {
      return Codec::nonfinite(meta, Extent(), limit);
    }
  }

  static CGX_DEVICE void put_norms(Team& team, const Scratch& s, uint32_t n, const Meta& meta,
                                   Findings found) {
    cuda::Norms norms = {};
    if (!meta.nonfinite) {
      const float scale = square_scale(bucket_max_abs_bits(team, s.x, n));
      norms.intended_sq = team_squared_norm(team, n, scale, [&](uint32_t e) { return s.x[e]; });
      norms.sent_sq = team_squared_norm(team, n, scale,
                                        [&](uint32_t e) { return Codes::value(s.codes, e, meta); });
    }
    team.lanes([&](uint32_t t) {
      if (t == 0) *found.norms = norms;
    });
  }

  // What the own codes say: to the local results, and what they lost to `errors`, if not null.
  template <class Target>
  static CGX_DEVICE void put_back(Team& team, const Scratch& s, uint32_t n, const Meta& meta,
                                  float* errors, const Target& target) {
    if (n % 4 != 0 || !target.lined() || !in_lines(errors, DType::kF32) || is_nan_bucket(meta) ||
        misalignment(s.codes, Codes::kAligned) != 0) {
      each_quad(team, n, [&](uint32_t, uint32_t e, uint32_t count) {
        const Quad x = quad(s.codes, e, count, meta);
        if (errors) store_quad(errors, DType::kF32, e, count, errors_of(s, e, x));
        target.put(e, count, x);
      });
      return;
    }
    each_whole_quad(
        team, n, [&](uint32_t e) { return Codes::piece(s.codes, e, meta); },
        [&](uint32_t, uint32_t e, const Piece& piece) {
          const Quad x = Codes::quad(piece, e, meta);
          if (errors) put_line(outside(errors + e), errors_of(s, e, x));
          target.put_line(e, x);
        });
  }
  static CGX_DEVICE Quad errors_of(const Scratch& s, uint32_t e, const Quad& value) {
    Quad x = line_at(s.x + e);
    for (uint32_t i = 0; i < 4; ++i) x.v[i] = saturated(x.v[i] - value.v[i]);
    return x;
  }

  template <class Job>
  static CGX_DEVICE void finish(Team& team, const Job& job, uint64_t first, uint32_t n,
                                bool nonfinite, Findings found) {
    team.add(&found.outcome->nonfinite_buckets, nonfinite);
    if (nonfinite && job.residual_out) {
      keep_residual(team, job.residual_in, job.residual_scale, job.residual_out, first, n);
    }
  }
};

}  // namespace
}  // namespace cgx::kernels
