#include "daemon/gpu/job_message.h"

#include <cstring>
#include <string>

namespace cgx::daemon::gpu {
namespace {

// Takes `count` values off the front of a message; false if they are not there.
template <class T>
bool take(std::span<const std::byte>& rest, uint64_t count, std::span<const T>& values) {
  if (rest.size() / sizeof(T) < count) return false;
  values = {reinterpret_cast<const T*>(rest.data()), static_cast<size_t>(count)};
  rest = rest.subspan(count * sizeof(T));
  return true;
}

}  // namespace

Result<JobMessage> parse_job(std::span<const std::byte> message) {
  const Status no_job =
      protocol_error("a message of " + std::to_string(message.size()) + " bytes is no job");
  JobMessage job;
  if (message.size() < sizeof(JobHead)) return no_job;
  std::memcpy(&job.head, message.data(), sizeof(JobHead));
  std::span<const std::byte> rest = message.subspan(sizeof(JobHead));
  if (job.head.kind > JobKind::kHash || job.head.stream >= kStreams) return no_job;
  if (job.head.strengths > scheduler::kStrengthsMax ||
      !take(rest, job.head.strengths, job.strengths)) {
    return no_job;
  }
  for (uint32_t i = 0; i < job.head.slices; ++i) {
    std::span<const SliceHead> head;
    JobSlice slice;
    if (!take(rest, 1, head)) return no_job;
    slice.head = head.front();
    if (!dtype_known(static_cast<uint8_t>(slice.head.dtype)) ||
        !take(rest, slice.head.inputs, slice.inputs) ||
        !take(rest, slice.head.outputs, slice.outputs) ||
        !take(rest, slice.head.contributions, slice.contributions)) {
      return no_job;
    }
    job.slices.push_back(slice);
  }
  return job;
}

}  // namespace cgx::daemon::gpu
