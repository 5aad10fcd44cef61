#include "scheduler/buffer_pool.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

namespace cgx::scheduler {

BufferPool::~BufferPool() {
  for (const Block& block : blocks_) munmap(block.memory, block.slabs * slab_bytes_);
}

Status BufferPool::reserve(const SlabCounts& slabs) {
  const uint64_t wanted = uint64_t{reserved_.sum()} + slabs.sum();
  if (wanted > slabs_.size()) {
    const auto missing = static_cast<uint32_t>(wanted - slabs_.size());
    const uint64_t bytes = missing * slab_bytes_;
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
      return resource_exhausted("cannot map " + std::to_string(bytes) +
                                " bytes of frame buffers: " + std::strerror(errno));
    }
    madvise(memory, bytes, MADV_HUGEPAGE);
    blocks_.push_back({static_cast<std::byte*>(memory), missing});
    std::vector<SlabId> fresh(missing);  // below the warm ones
    for (uint32_t i = 0; i < missing; ++i) fresh[i] = static_cast<SlabId>(wanted - 1 - i);
    free_.insert(free_.begin(), fresh.begin(), fresh.end());
    for (uint32_t i = 0; i < missing; ++i) {
      slabs_.push_back(static_cast<std::byte*>(memory) + i * slab_bytes_);
    }
    uses_.resize(slabs_.size());
  }
  reserved_.received += slabs.received;
  reserved_.own += slabs.own;
  return {};
}

void BufferPool::unreserve(const SlabCounts& slabs) {
  CGX_ASSERT(slabs.received <= reserved_.received && slabs.own <= reserved_.own);
  reserved_.received -= slabs.received;
  reserved_.own -= slabs.own;
}

SlabId BufferPool::take_for_received() {
  return free_.empty() ? kNoSlab : take(true);
}

SlabId BufferPool::take_for_own() {
  const uint32_t still_to_come =
      reserved_.received - std::min(reserved_.received, in_use_.received);
  return free_.size() <= still_to_come ? kNoSlab : take(false);
}

SlabId BufferPool::take(bool received) {
  const SlabId slab = free_.back();
  free_.pop_back();
  uses_[slab] = {1, received};
  ++(received ? in_use_.received : in_use_.own);
  return slab;
}

void BufferPool::add_reference(SlabId slab) {
  ++uses_[slab].references;
}

void BufferPool::release(SlabId slab) {
  Use& use = uses_[slab];
  CGX_ASSERT(use.references > 0);
  if (--use.references > 0) return;
  free_.push_back(slab);
  --(use.received ? in_use_.received : in_use_.own);
}

std::span<std::byte> BufferPool::bytes(SlabId slab) const {
  return {slabs_[slab], slab_bytes_};
}

}  // namespace cgx::scheduler
