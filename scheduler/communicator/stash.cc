#include "scheduler/communicator/stash.h"

#include <cstring>

namespace cgx::scheduler {

bool Stash::keep(const wire::FrameHeader& header, std::span<const std::byte> payload) {
  const bool here = std::any_of(frames_.begin(), frames_.end(), [&](const Frame& other) {
    return other.header.header_checksum == header.header_checksum;
  });
  if (here) {
    port_.count(Counter::kframes_unexpected, 1);
    return true;
  }
  constexpr size_t kFramesMax = 16 * 1024;  // of frames without payload, which take no slab
  if (payload.empty() && frames_.size() >= kFramesMax) return false;
  Frame frame{header, {}};
  if (!payload.empty()) {
    const bool fits = payload.size() <= pool_.slab_bytes();
    const SlabId slab = fits ? pool_.take_for_received() : kNoSlab;
    if (slab == kNoSlab) return false;
    frame.slab = Slab(pool_, slab);
    if (site_.reads_frames()) {
      std::memcpy(frame.slab.bytes().data(), payload.data(), payload.size());
    }
    port_.count(Counter::kheld_bytes, payload.size());
  }
  frames_.push_back(std::move(frame));
  return true;
}

}  // namespace cgx::scheduler
