// A job as its message says it (grammar: jobs.h): parts of the message, its form checked. Whether
// what it names is there is for whoever does the job.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "daemon/gpu/jobs.h"
#include "proto/wire/status.h"

namespace cgx::daemon::gpu {

struct JobSlice {
  SliceHead head;
  std::span<const DevicePlace> inputs, outputs;
  std::span<const Staged> contributions;
};
struct JobMessage {
  JobHead head;
  std::span<const CodecSpec> strengths;
  std::vector<JobSlice> slices;
};

// REQUIRES: the message is aligned to 8 bytes, and outlives what is returned.
Result<JobMessage> parse_job(std::span<const std::byte> message);

}  // namespace cgx::daemon::gpu
