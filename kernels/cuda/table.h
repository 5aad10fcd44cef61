// A table of segments, bucket by bucket: which segment a bucket of the launch belongs to.
#pragma once

#include <cstdint>

#include "kernels/cuda/cuda_lane.h"
#include "kernels/cuda/skeleton.h"
#include "kernels/cuda/team.h"
#include "kernels/cuda/wide.h"

namespace cgx::kernels {
namespace {

// The last segment, from `from` on, that starts at or before `bucket`. Empty ones are passed over.
template <class Job>
CGX_DEVICE uint32_t segment_of(const cuda::Table<Job>& table, uint32_t from, uint64_t bucket) {
  uint32_t low = from, high = table.count;
  if (low + 1 == high || table.segments[low + 1].first_bucket > bucket) return low;
  while (high - low > 1) {
    const uint32_t middle = low + (high - low) / 2;
    if (table.segments[middle].first_bucket <= bucket) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

// The bucket after a segment's last one.
template <class Job>
CGX_DEVICE uint64_t end_of(const cuda::Table<Job>& table, uint32_t index) {
  return index + 1 < table.count ? table.segments[index + 1].first_bucket : table.buckets;
}

// Buckets first, first + step, ... of the table, by one team with scratch_bytes at `memory`. What
// is the same for all buckets of a segment is found out when the team comes to the segment.
template <class Codec, class Team, class Job>
CGX_DEVICE void run_buckets(Team& team, const cuda::Table<Job>& table, uint64_t first,
                            uint64_t step, uint8_t* memory) {
  uint64_t bucket = first;
  for (uint32_t at = 0; bucket < table.buckets;) {
    at = segment_of(table, at, bucket);
    cuda::Segment<Job>& segment = table.segments[at];
    const uint64_t begin = segment.first_bucket, end = end_of(table, at);
    const Range<Codec> range(segment.job.spec, segment.job.elements);
    for (; bucket < end; bucket += step) {
      const Findings found{&segment.outcome, table.norms + bucket};
      if constexpr (kIsWide<Codec>) {
        WideSkeleton<Team, Codec>::run(team, segment.job, range, bucket - begin, found);
      } else {
        Skeleton<Team, Codec>::run(team, segment.job, range, bucket - begin,
                                   scratch_at<Codec>(memory, table.bucket_max), found);
      }
    }
  }
}

// The norms of one segment's buckets, in order, as every lane adds them.
template <class Job>
CGX_DEVICE void sum_norms(const cuda::Table<Job>& table, uint32_t index) {
  cuda::Segment<Job>& segment = table.segments[index];
  if (!segment.job.norms) return;
  const uint64_t end = end_of(table, index);
  cuda::Norms sum = {};
  for (uint64_t bucket = segment.first_bucket; bucket < end; ++bucket) {
    sum.intended_sq += table.norms[bucket].intended_sq;
    sum.sent_sq += table.norms[bucket].sent_sq;
  }
  segment.outcome.intended_sq = sum.intended_sq;
  segment.outcome.sent_sq = sum.sent_sq;
}

}  // namespace
}  // namespace cgx::kernels
