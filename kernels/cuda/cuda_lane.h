// The codecs on a GPU: one launch per operation and codec, whatever the number of tensors.
//
// A table of segments, each one job of codec.h, lies in memory the device can read; so does
// everything that the jobs point at. A launch neither allocates nor waits: it is ordered by its
// stream, and so are the copies of the table there and back, which the caller makes. Bytes and
// floats are the scalar lane's. Thread rule: one thread per stream.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/codec.h"
#include "proto/wire/status.h"

namespace cgx::kernels::cuda {

using Stream = void*;  // a cudaStream_t

// What a launch found in one segment; upload a fresh one.
struct Outcome {
  uint64_t nonfinite_buckets = 0, saturated = 0;
  double intended_sq = 0, sent_sq = 0;  // as RangeStats
  uint64_t bad_bucket = UINT64_MAX;     // the first that no encoder writes
};

// One range of one tensor. Sizes of encoded spans were checked on the host (encoded_length).
template <class Job>
struct Segment {
  Job job;
  uint64_t first_bucket = 0;  // buckets of the segments before it
  Outcome outcome;
};

struct Norms {
  double intended_sq, sent_sq;
};

// Segments of small floats that share a codec; buckets may differ in size.
template <class Job>
struct Table {
  Segment<Job>* segments = nullptr;  // device memory
  uint32_t count = 0;
  uint32_t bucket_max = 0;  // elements of the largest bucket
  uint64_t buckets = 0;     // of all segments
  CodecSpec spec;           // what the jobs' specs share
  Norms* norms = nullptr;   // device memory, one per bucket, where a job asks for norms
};

// Numbers the buckets of `segments`, still on the host, and describes the table they will be at
// `device_segments`.
template <class Job>
Table<Job> describe_table(std::span<Segment<Job>> segments, Segment<Job>* device_segments,
                          Norms* norms = nullptr) {
  Table<Job> table{.segments = device_segments, .count = static_cast<uint32_t>(segments.size())};
  table.norms = norms;
  for (Segment<Job>& segment : segments) {
    const CodecSpec& spec = segment.job.spec;
    segment.first_bucket = table.buckets;
    table.buckets += (segment.job.elements + spec.bucket - 1) / spec.bucket;
    table.bucket_max = table.bucket_max < spec.bucket ? spec.bucket : table.bucket_max;
    table.spec = spec;
  }
  return table;
}

// What decides the shape of a launch; asked once.
struct Device {
  int ordinal = 0;
  uint32_t multiprocessors = 0;
  uint32_t threads_per_multiprocessor = 0;
  uint32_t shared_bytes_per_multiprocessor = 0;
};
Result<Device> describe_device(int ordinal);

bool has_kernels(const CodecSpec& spec);  // whether this codec has been written for CUDA

Status encode(const Device&, const Table<EncodeJob>&, Stream);
Status decode(const Device&, const Table<DecodeJob>&, Stream);
Status decode_add(const Device&, const Table<DecodeAddJob>&, Stream);
Status reduce(const Device&, const Table<ReduceJob>&, Stream);
Status combine(const Device&, const Table<CombineJob>&, Stream);

}  // namespace cgx::kernels::cuda
