// Tables of sparse segments: where a launch finds its work memory, entries before they are read,
// and their way from where they were staged to the encoded range.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/sparse.h"
#include "kernels/cuda/table.h"

namespace cgx::kernels {
namespace {

template <class Codec>
constexpr bool kIsSparse = requires {
  Codec::kDrawn;
};
// Lanes of the blocks that work on buckets, move entries, find them.
constexpr uint32_t kSparseLanes = 1024, kPackLanes = 256, kFindLanes = 64;

// What a job does with entries.
template <class Job>
constexpr bool kReads = !std::is_same_v<Job, EncodeJob>;
template <class Job>
constexpr bool kWrites = std::is_same_v<Job, EncodeJob> || std::is_same_v<Job, ReduceJob>;

template <class Job>
CGX_DEVICE uint64_t* places_of(const cuda::Table<Job>& table) {
  return reinterpret_cast<uint64_t*>(table.work.memory + table.work.places);
}
template <class Job>
CGX_DEVICE uint64_t* sizes_of(const cuda::Table<Job>& table) {
  return reinterpret_cast<uint64_t*>(table.work.memory + table.work.sizes);
}
// Where an entry is put at first: as far from its segment's start as it can be at all.
template <class Job>
CGX_DEVICE uint8_t* staged_at(const cuda::Table<Job>& table, const cuda::Segment<Job>& segment,
                              uint64_t number) {
  return table.work.memory + table.work.staged + segment.first_byte +
         number * table.work.entry_bytes_max;
}

// Where entry `b` of part `p` of each segment starts, for all b: followed from the first, as every
// entry says how long it is. One lane does one part; what lies behind damage is nowhere.
template <class Codec, class Job>
CGX_DEVICE void find_entries(const cuda::Table<Job>& table, uint32_t index, uint32_t p) {
  cuda::Segment<Job>& segment = table.segments[index];
  const Job& job = segment.job;
  std::span<const std::byte> encoded;
  if constexpr (requires { job.contributions; }) {
    if (p >= job.contributions.size()) return;
    const Contribution& part = job.contributions.data()[p];
    if (part.kind != Contribution::Kind::kEncoded) return;
    encoded = part.encoded;
  } else {
    encoded = job.encoded;
  }
  const uint8_t* bytes = reinterpret_cast<const uint8_t*>(encoded.data());
  uint64_t* places = places_of(table) + p * table.buckets + segment.first_bucket;
  uint64_t at = 0;
  for (uint64_t first = 0; first < job.elements; first += kSparseBucket) {
    const uint64_t left = job.elements - first;
    const uint32_t n = left < kSparseBucket ? static_cast<uint32_t>(left) : kSparseBucket;
    *places++ = at;
    SparseHeader header;
    if (at == kNowhere) continue;
    const bool good = get_header<Codec>(job.spec, n, bytes + at, encoded.size() - at, header);
    at = good ? at + header.bytes : kNowhere;
  }
}

// Buckets own, own + teams, ... of the table.
template <class Codec, class Team, class Job>
CGX_DEVICE void run_sparse_buckets(Team& team, const cuda::Table<Job>& table, uint32_t own,
                                   SparseShared& shared) {
  uint8_t* memory = table.work.memory + own * cuda::kSparseTeamBytes;
  float* x = reinterpret_cast<float*>(memory);
  float *value = x + kSparseBucket, *sent = value + kSentMax;
  uint32_t segment_at = 0;
  for (uint64_t bucket = own; bucket < table.buckets; bucket += table.work.teams) {
    segment_at = segment_of(table, segment_at, bucket);
    cuda::Segment<Job>& segment = table.segments[segment_at];
    const uint64_t number = bucket - segment.first_bucket, first = number * kSparseBucket;
    const uint64_t left = segment.job.elements - first;
    SparseBucket at{.number = number, .first = first, .stride = table.buckets, .x = x};
    at.n = left < kSparseBucket ? static_cast<uint32_t>(left) : kSparseBucket;
    at.places = places_of(table) + bucket;
    at.entry = staged_at(table, segment, number);
    at.entry_bytes = sizes_of(table) + bucket;
    at.picked = {0, reinterpret_cast<uint16_t*>(sent + kSentMax), value, sent};
    at.found = {&segment.outcome, table.norms + bucket};
    team.lanes([&](uint32_t t) {
      if (t == 0) *at.entry_bytes = 0;  // where damage ends it all
    });
    SparseSkeleton<Team, Codec>::run(team, segment.job, at, shared);
  }
}

// Staged entries first, first + step, ... of the table to their places, one behind the other.
template <class Team, class Job>
CGX_DEVICE void pack_entries(Team& team, const cuda::Table<Job>& table, uint64_t first,
                             uint64_t step) {
  const uint64_t* sizes = sizes_of(table);
  uint32_t segment_at = 0;
  for (uint64_t bucket = first; bucket < table.buckets; bucket += step) {
    segment_at = segment_of(table, segment_at, bucket);
    cuda::Segment<Job>& segment = table.segments[segment_at];
    typename Team::template Each<uint64_t> before;
    team.lanes([&](uint32_t t) {
      before[t] = 0;
      for (uint64_t b = segment.first_bucket + t; b < bucket; b += Team::kSize) {
        before[t] += sizes[b];
      }
    });
    const uint64_t at = team_total<uint64_t>(team, before);
    const uint8_t* staged = staged_at(table, segment, bucket - segment.first_bucket);
    copy_bytes(team, staged, reinterpret_cast<uint8_t*>(segment.job.encoded.data()) + at,
               sizes[bucket]);
    team.add(&segment.outcome.encoded_bytes, sizes[bucket]);
  }
}

}  // namespace
}  // namespace cgx::kernels
