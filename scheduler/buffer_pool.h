// Slabs for frames: fixed-size, counted, allocated when a plan is prepared, recycled
// last-in-first-out so that steady state touches no fresh page.
//
// Owned by the engine. A slab may be referenced several times (one encoded shard sent to all
// peers); it returns to the pool when the last reference is released. What was reserved for
// received frames is never taken for own ones: those may have to wait for a slow link, while a
// peer that keeps to the protocol must always find room here.
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

struct SlabCounts {
  uint32_t received = 0, own = 0;

  uint32_t sum() const { return received + own; }
};

class BufferPool {
 public:
  explicit BufferPool(uint64_t slab_bytes) : slab_bytes_(slab_bytes) {}
  ~BufferPool();
  BufferPool(const BufferPool&) = delete;
  BufferPool& operator=(const BufferPool&) = delete;

  uint64_t slab_bytes() const { return slab_bytes_; }
  // Reservations add up; memory is kept for the largest sum so far.
  Status reserve(const SlabCounts& slabs);
  void unreserve(const SlabCounts& slabs);

  // One reference each; kNoSlab when what is reserved is in use.
  SlabId take_for_received();
  SlabId take_for_own();
  void add_reference(SlabId slab);
  void release(SlabId slab);
  std::span<std::byte> bytes(SlabId slab) const;
  uint32_t in_use() const { return in_use_.sum(); }

 private:
  struct Block {
    std::byte* memory;
    uint32_t slabs;
  };
  struct Use {
    uint32_t references = 0;
    bool received = false;
  };
  SlabId take(bool received);

  uint64_t slab_bytes_;
  SlabCounts reserved_, in_use_;
  std::vector<Block> blocks_;
  std::vector<std::byte*> slabs_;
  std::vector<Use> uses_;  // by slab
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
