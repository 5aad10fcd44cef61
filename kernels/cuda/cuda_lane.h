// What launches of the codecs on a GPU take: one launch per operation and codec, whatever the
// number of tensors. driver_lane.h launches.
//
// A table of segments, each one job of codec.h, lies in memory the device can read; so does
// everything that the jobs point at. A launch neither allocates nor waits: it is ordered by its
// stream, and so are the copies of the table there and back, which the caller makes. Bytes and
// floats are the scalar lane's. Thread rule: one thread per stream.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "kernels/codec.h"
#include "proto/wire/status.h"

namespace cgx::kernels::cuda {

// What a launch found in one segment; upload a fresh one.
struct Outcome {
  uint64_t nonfinite_buckets = 0, saturated = 0;
  double intended_sq = 0, sent_sq = 0;  // as RangeStats
  uint64_t bad_bucket = UINT64_MAX;     // the first that no encoder writes
  uint64_t encoded_bytes = 0;           // encoders of sparse codecs: how much of `encoded` is used
};

// One range of one tensor. Sizes of encoded spans were checked on the host (encoded_length).
template <class Job>
struct Segment {
  Job job;
  uint64_t first_bucket = 0;  // buckets of the segments before it
  uint64_t first_byte = 0;    // bytes that those may encode to
  Outcome outcome;
};

struct Norms {
  double intended_sq, sent_sq;
};

// What launches of a sparse codec need besides: `bytes` of device memory, aligned for 16. In it lie
// the scratch memory of every team, where the entries of all parts start (a uint64_t each), how
// long the encoded ones are (likewise), and these, before they move together.
struct Work {
  uint8_t* memory = nullptr;
  uint64_t bytes = 0;  // 0: nothing is needed
  uint64_t places = 0, sizes = 0, staged = 0;
  uint64_t entry_bytes_max = 0;  // of a whole bucket
  uint32_t teams = 0;            // that take buckets in turn
  uint32_t parts_max = 0;        // encoded ranges of one segment
};
// A bucket of fp32; of what is sent of it, a quarter at most, value, decoded value and index.
constexpr uint64_t kSparseTeamBytes = kSparseBucket * sizeof(float) + kSparseBucket / 4 * 10;

// Segments of small floats that share a codec, or raw ones of one other type; buckets may differ in
// size.
template <class Job>
struct Table {
  Segment<Job>* segments = nullptr;  // device memory
  uint32_t count = 0;
  uint32_t bucket_max = 0;    // elements of the largest bucket
  uint64_t buckets = 0;       // of all segments
  CodecSpec spec;             // what the jobs' specs share
  DType dtype = DType::kF32;  // of fp64 and integers, which all jobs share then
  Norms* norms = nullptr;     // device memory, one per bucket, where a job asks for norms
  Work work;
};

// What decides the shape of a launch; asked once.
struct Device {
  int ordinal = 0;
  uint32_t multiprocessors = 0;
  uint32_t threads_per_multiprocessor = 0;
  uint32_t shared_bytes_per_multiprocessor = 0;
};

// How many encoded ranges a job reads, and how many bytes it may encode to.
template <class Job>
uint32_t encoded_parts(const Job& job) {
  if constexpr (requires { job.contributions; }) {
    return static_cast<uint32_t>(job.contributions.size());
  } else {
    return 1;
  }
}
template <class Job>
uint64_t encoded_room(const Job& job) {
  if constexpr (requires { job.key; }) {
    return job.encoded.size();
  } else {
    return 0;
  }
}

template <class Job>
DType dtype_of(const Job& job) {
  if constexpr (requires { job.source; }) {
    return job.source.dtype;
  } else if constexpr (requires { job.dtype; }) {
    return job.dtype;
  } else {
    return DType::kF32;
  }
}

// One team per multiprocessor, so that the buckets at work stay in the second-level cache.
inline void size_work(const Device& device, const CodecSpec& spec, uint64_t buckets,
                      uint64_t staged_bytes, Work& work) {
  work.entry_bytes_max = encoded_bytes(spec, DType::kF32, kSparseBucket);
  work.teams = static_cast<uint32_t>(std::min<uint64_t>(buckets, device.multiprocessors));
  work.places = work.teams * kSparseTeamBytes;
  work.sizes = work.places + work.parts_max * buckets * sizeof(uint64_t);
  work.staged = work.sizes + buckets * sizeof(uint64_t);
  work.bytes = work.staged + staged_bytes;
}

// Numbers the buckets of `segments`, still on the host, and describes the table they will be at
// `device_segments`. The caller adds norms, and work.memory where work.bytes is not 0.
template <class Job>
Table<Job> describe_table(const Device& device, std::span<Segment<Job>> segments,
                          Segment<Job>* device_segments) {
  Table<Job> table{.segments = device_segments, .count = static_cast<uint32_t>(segments.size())};
  uint64_t staged_bytes = 0;
  for (Segment<Job>& segment : segments) {
    const CodecSpec& spec = segment.job.spec;
    segment.first_bucket = table.buckets;
    segment.first_byte = staged_bytes;
    staged_bytes += encoded_room(segment.job);
    table.buckets += (segment.job.elements + spec.bucket - 1) / spec.bucket;
    table.bucket_max = std::max(table.bucket_max, spec.bucket);
    table.work.parts_max = std::max(table.work.parts_max, encoded_parts(segment.job));
    table.spec = spec;
    table.dtype = dtype_of(segment.job);
  }
  if (table.bucket_max == kSparseBucket) {
    size_work(device, table.spec, table.buckets, staged_bytes, table.work);
  }
  return table;
}

}  // namespace cgx::kernels::cuda
