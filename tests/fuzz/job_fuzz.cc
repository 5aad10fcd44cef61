// What a GPU worker reads from the ring of jobs: messages out of memory that another process
// writes, and each of them taken apart. Nothing that a message counts may lie outside it.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "daemon/gpu/byte_ring.h"
#include "daemon/gpu/job_message.h"

namespace {

using namespace cgx::daemon::gpu;

constexpr uint64_t kBytes = 4096;

void require(bool condition) {
  if (!condition) std::abort();
}

template <class T>
void require_within(std::span<const std::byte> message, std::span<const T> part) {
  const auto bytes = std::as_bytes(part);
  require(bytes.empty() || (bytes.data() >= message.data() &&
                            bytes.data() + bytes.size() <= message.data() + message.size()));
}

void take_apart(std::span<const std::byte> message) {
  const auto job = parse_job(message);
  if (!job.ok()) return;
  require(job->slices.size() == job->head.slices && job->head.stream < kStreams);
  require(job->strengths.size() == job->head.strengths);
  require_within(message, job->strengths);
  for (const JobSlice& slice : job->slices) {
    require(slice.inputs.size() == slice.head.inputs);
    require(slice.outputs.size() == slice.head.outputs);
    require(slice.contributions.size() == slice.head.contributions);
    require_within(message, slice.inputs);
    require_within(message, slice.outputs);
    require_within(message, slice.contributions);
  }
}

// The bytes as they lie in the ring, with a tail that the other side says.
void read_ring(std::span<const std::byte> bytes, uint64_t tail) {
  std::vector<uint64_t> memory(kBytes / sizeof(uint64_t));
  std::memcpy(memory.data(), bytes.data(), std::min<uint64_t>(bytes.size(), kBytes));
  ByteRingCursors cursors{.tail = tail, .pad0 = {}, .head = 0, .pad1 = {}};
  ByteConsumer ring(&cursors, reinterpret_cast<const std::byte*>(memory.data()), kBytes);
  std::vector<std::byte> message;
  while (ring.try_pop(message) == ByteConsumer::Pop::kMessage) {
    require(message.size() >= kRingUnit && message.size() <= kBytes);
    take_apart(message);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  uint16_t tail;
  std::memcpy(&tail, data, sizeof(tail));
  const auto bytes = std::as_bytes(std::span(data, size)).subspan(sizeof(tail));
  read_ring(bytes, tail);
  take_apart(std::vector<std::byte>(bytes.begin(), bytes.end()));
  return 0;
}
