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
  take_made();
  for (const Block& block : blocks_) from_->unmap(block.memory, block.bytes);
}

Result<SlabStore::Block> SlabStore::map(uint64_t slabs, uint64_t beside) {
  if (beside + slabs > kSlabsMax) {
    return resource_exhausted(std::to_string(slabs) + " frame buffers beside " +
                              std::to_string(beside) + "; there may be " +
                              std::to_string(kSlabsMax));
  }
  const uint64_t bytes = slabs * slab_bytes_;
  CGX_ASSIGN_OR_RETURN(std::byte* const memory, from_->map(bytes));
  return Block{memory, bytes};
}

Status SlabStore::grow(uint32_t slabs) {
  if (asks()) return resource_exhausted("frame buffers that were not promised");
  CGX_ASSIGN_OR_RETURN(const Block block, map(slabs, slabs_.size()));
  add(block);
  return {};
}

void SlabStore::add(const Block& block) {
  blocks_.push_back(block);
  const auto slabs = static_cast<uint32_t>(block.bytes / slab_bytes_);
  std::vector<SlabId> fresh(slabs);  // below the warm ones
  for (uint32_t i = 0; i < slabs; ++i) {
    fresh[i] = static_cast<SlabId>(slabs_.size() + slabs - 1 - i);
  }
  free_.insert(free_.begin(), fresh.begin(), fresh.end());
  for (uint32_t i = 0; i < slabs; ++i) {
    slabs_.push_back(block.memory + i * slab_bytes_);
  }
  uses_.resize(slabs_.size());
}

// Nobody waits for the lock while memory is made.
Result<SlabStore::Promise> SlabStore::promise(const std::shared_ptr<SlabStore>& store,
                                              uint32_t slabs) {
  CGX_ASSERT(store->asks());
  const MutexLock one_at_a_time(store->promising_);
  uint64_t lacking = 0, there = 0;
  {
    const MutexLock lock(store->counting_);
    Sums& sums = store->sums_;
    sums.promised += slabs;
    there = sums.there;
    lacking = std::max(sums.taken + sums.promised, there) - there;
  }
  const auto keep = [store, slabs](const void*) {
    const MutexLock lock(store->counting_);
    store->sums_.promised -= slabs;
  };
  Promise promise(store.get(), keep);
  if (lacking == 0) return promise;
  CGX_ASSIGN_OR_RETURN(const Block block, store->map(lacking, there));
  const MutexLock lock(store->counting_);
  store->sums_.made.push_back(block);
  store->sums_.there += lacking;
  return promise;
}

void SlabStore::take_made() {
  if (!asks()) return;
  std::vector<Block> made;
  {
    const MutexLock lock(counting_);
    made.swap(sums_.made);
  }
  for (const Block& block : made) add(block);
}

uint64_t SlabStore::wanted() {
  uint64_t wanted = reserved_;
  for (const Left& each : left()) wanted += each.in_use->sum();
  return wanted;
}

void SlabStore::tell_taken() {
  if (!asks()) return;
  const uint64_t taken = wanted();
  const MutexLock lock(counting_);
  sums_.taken = taken;
}

Status SlabStore::reserve(uint32_t slabs) {
  take_made();
  const uint64_t wanted = this->wanted() + slabs;
  if (wanted > slabs_.size()) {
    CGX_RETURN_IF_ERROR(grow(static_cast<uint32_t>(wanted - slabs_.size())));
  }
  reserved_ += slabs;
  tell_taken();
  return {};
}

void SlabStore::unreserve(uint32_t slabs) {
  if (slabs == 0) return;
  reserved_ -= slabs;
  tell_taken();
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
