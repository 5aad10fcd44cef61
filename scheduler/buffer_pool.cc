#include "scheduler/buffer_pool.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <string>

namespace cgx::scheduler {

BufferPool::~BufferPool() {
  for (const Block& block : blocks_) munmap(block.memory, block.slabs * slab_bytes_);
}

Status BufferPool::reserve(uint32_t slabs) {
  const uint64_t wanted = uint64_t{reserved_} + slabs;
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
    references_.resize(slabs_.size());
  }
  reserved_ = static_cast<uint32_t>(wanted);
  return {};
}

void BufferPool::unreserve(uint32_t slabs) {
  CGX_ASSERT(slabs <= reserved_);
  reserved_ -= slabs;
}

SlabId BufferPool::take() {
  if (free_.empty()) return kNoSlab;
  const SlabId slab = free_.back();
  free_.pop_back();
  references_[slab] = 1;
  ++in_use_;
  return slab;
}

void BufferPool::add_reference(SlabId slab) {
  ++references_[slab];
}

void BufferPool::release(SlabId slab) {
  CGX_ASSERT(references_[slab] > 0);
  if (--references_[slab] > 0) return;
  free_.push_back(slab);
  --in_use_;
}

std::span<std::byte> BufferPool::bytes(SlabId slab) const {
  return {slabs_[slab], slab_bytes_};
}

}  // namespace cgx::scheduler
