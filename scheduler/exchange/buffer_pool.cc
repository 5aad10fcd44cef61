#include "scheduler/exchange/buffer_pool.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

namespace cgx::scheduler {

namespace {

class PrivateMemory final : public SlabMemory {
 public:
  Result<std::byte*> map(uint64_t bytes) override {
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
      return resource_exhausted("cannot map " + std::to_string(bytes) +
                                " bytes of frame buffers: " + std::strerror(errno));
    }
    madvise(memory, bytes, MADV_HUGEPAGE);
    return static_cast<std::byte*>(memory);
  }
  void unmap(std::byte* memory, uint64_t bytes) override { munmap(memory, bytes); }
};

}  // namespace

std::shared_ptr<SlabMemory> private_memory() {
  return std::make_shared<PrivateMemory>();
}

SlabStore::~SlabStore() {
  for (const Block& block : blocks_) from_->unmap(block.memory, block.bytes);
}

Status SlabStore::grow(uint32_t slabs) {
  const uint64_t bytes = slabs * slab_bytes_;
  if (slabs_.size() + slabs > kSlabsMax) {
    return resource_exhausted(std::to_string(slabs) + " frame buffers beside " +
                              std::to_string(slabs_.size()) + "; there may be " +
                              std::to_string(kSlabsMax));
  }
  CGX_ASSIGN_OR_RETURN(std::byte* const memory, from_->map(bytes));
  blocks_.push_back({memory, bytes});
  std::vector<SlabId> fresh(slabs);  // below the warm ones
  for (uint32_t i = 0; i < slabs; ++i) {
    fresh[i] = static_cast<SlabId>(slabs_.size() + slabs - 1 - i);
  }
  free_.insert(free_.begin(), fresh.begin(), fresh.end());
  for (uint32_t i = 0; i < slabs; ++i) {
    slabs_.push_back(memory + i * slab_bytes_);
  }
  uses_.resize(slabs_.size());
  return {};
}

Status SlabStore::reserve(uint32_t slabs) {
  uint64_t wanted = reserved_ + slabs;
  for (const Left& each : left()) wanted += each.in_use->sum();
  if (wanted > slabs_.size()) {
    CGX_RETURN_IF_ERROR(grow(static_cast<uint32_t>(wanted - slabs_.size())));
  }
  reserved_ += slabs;
  return {};
}

void SlabStore::leave(std::string holder, std::shared_ptr<SlabCounts> in_use) {
  if (in_use->sum() > 0) left_.push_back({std::move(holder), std::move(in_use)});
}

const std::vector<SlabStore::Left>& SlabStore::left() {
  std::erase_if(left_, [](const Left& each) { return each.in_use->sum() == 0; });
  return left_;
}

SlabId SlabStore::take(const std::shared_ptr<SlabCounts>& in_use, bool received) {
  if (free_.empty() && !grow(1).ok()) return kNoSlab;
  const SlabId slab = free_.back();
  free_.pop_back();
  uses_[slab] = {1, received, in_use};
  ++(received ? in_use->received : in_use->own);
  return slab;
}

void SlabStore::release(SlabId slab) {
  Use& use = uses_[slab];
  CGX_ASSERT(use.references > 0);
  if (--use.references > 0) return;
  --(use.received ? use.in_use->received : use.in_use->own);
  use.in_use.reset();
  free_.push_back(slab);
}

Status BufferPool::reserve(const SlabCounts& slabs) {
  CGX_RETURN_IF_ERROR(store_->reserve(slabs.sum()));
  reserved_.received += slabs.received;
  reserved_.own += slabs.own;
  free_beyond();
  return {};
}

void BufferPool::unreserve(const SlabCounts& slabs) {
  CGX_ASSERT(slabs.received <= reserved_.received && slabs.own <= reserved_.own);
  reserved_.received -= slabs.received;
  reserved_.own -= slabs.own;
  const uint32_t had = beyond_.sum();
  beyond_ = {.received = std::max(beyond_.received, std::min(in_use_->received, slabs.received)),
             .own = std::max(beyond_.own, std::min(own_beyond(), slabs.own))};
  store_->unreserve(slabs.sum() - (beyond_.sum() - had));
}

void BufferPool::free_beyond() {
  const uint32_t had = beyond_.sum();
  beyond_ = {.received = std::min(beyond_.received, in_use_->received),
             .own = std::min(beyond_.own, own_beyond())};
  store_->unreserve(had - beyond_.sum());
}

SlabId BufferPool::take_for_received() {
  free_beyond();
  return in_use_->sum() < reserved_.sum() + beyond_.sum() ? store_->take(in_use_, true) : kNoSlab;
}

SlabId BufferPool::take_for_own() {
  free_beyond();
  const uint32_t kept = std::max(reserved_.received, in_use_->received);
  return in_use_->own + kept < reserved_.sum() ? store_->take(in_use_, false) : kNoSlab;
}

}  // namespace cgx::scheduler
