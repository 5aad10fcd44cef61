// Slabs for frames: fixed-size, counted, allocated when a plan is prepared, recycled
// last-in-first-out so that steady state touches no fresh page.
//
// Owned by the engine. A slab may be referenced several times (one encoded shard sent to all
// peers); it returns to the pool when the last reference is released.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "proto/wire/status.h"

namespace cgx::scheduler {

using SlabId = uint32_t;
constexpr SlabId kNoSlab = UINT32_MAX;

class BufferPool {
 public:
  explicit BufferPool(uint64_t slab_bytes) : slab_bytes_(slab_bytes) {}
  ~BufferPool();
  BufferPool(const BufferPool&) = delete;
  BufferPool& operator=(const BufferPool&) = delete;

  uint64_t slab_bytes() const { return slab_bytes_; }
  // Reservations add up; memory is kept for the largest sum so far.
  Status reserve(uint32_t slabs);
  void unreserve(uint32_t slabs);

  SlabId take();  // one reference; kNoSlab when all reserved slabs are in use
  void add_reference(SlabId slab);
  void release(SlabId slab);
  std::span<std::byte> bytes(SlabId slab) const;
  uint32_t in_use() const { return in_use_; }

 private:
  struct Block {
    std::byte* memory;
    uint32_t slabs;
  };
  uint64_t slab_bytes_;
  uint32_t reserved_ = 0;
  uint32_t in_use_ = 0;
  std::vector<Block> blocks_;
  std::vector<std::byte*> slabs_;
  std::vector<uint32_t> references_;
  std::vector<SlabId> free_;
};

// One reference to a slab, released when it goes away.
class Slab {
 public:
  Slab() = default;
  Slab(BufferPool& pool, SlabId id) : pool_(&pool), id_(id) {}
  Slab(Slab&& other) noexcept : pool_(other.pool_), id_(other.id_) { other.id_ = kNoSlab; }
  Slab& operator=(Slab&& other) noexcept {
    reset();
    pool_ = other.pool_;
    id_ = other.id_;
    other.id_ = kNoSlab;
    return *this;
  }
  ~Slab() { reset(); }

  explicit operator bool() const { return id_ != kNoSlab; }
  SlabId id() const { return id_; }
  std::span<std::byte> bytes() const { return pool_->bytes(id_); }
  void reset() {
    if (id_ != kNoSlab) pool_->release(id_);
    id_ = kNoSlab;
  }

 private:
  BufferPool* pool_ = nullptr;
  SlabId id_ = kNoSlab;
};

}  // namespace cgx::scheduler
