// Slabs for frames: fixed-size, counted, allocated when a plan is prepared, recycled
// last-in-first-out so that steady state touches no fresh page.
//
// One store per engine holds the memory; each communicator has a pool, its share: it takes no more
// than it has reserved, so a job whose link stands still takes nothing from another. A slab may be
// referenced several times (one encoded shard sent to all peers); it is free again when the last
// reference is released, which may be after its pool has gone: until then it stays reserved, and
// counts for whoever had the pool. What was reserved for received
// frames is never taken for own ones: those may have to wait for a slow link, while a peer that
// keeps to the protocol must always find room here. What is in use when a plan is replaced by a
// smaller one stays reserved beside that one's share until it is free. Owned by the engine.
//
// Memory that another process has to take, too (a GPU's worker), is promised first: on any thread,
// which waits for that process. What it refuses never becomes a slab.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "proto/wire/mutex.h"
#include "proto/wire/status.h"

namespace cgx::scheduler {

using SlabId = uint32_t;
constexpr SlabId kNoSlab = UINT32_MAX;

struct SlabCounts {
  uint32_t received = 0, own = 0;

  uint32_t sum() const { return received + own; }
};

// Where slabs' memory comes from. One thread at a time.
class SlabMemory {
 public:
  virtual ~SlabMemory() = default;
  virtual Result<std::byte*> map(uint64_t bytes) = 0;  // zeros
  virtual void unmap(std::byte* memory, uint64_t bytes) = 0;
  // map() waits for another process: never on the engine's thread, so slabs are promised first.
  virtual bool asks() const { return false; }
};
std::shared_ptr<SlabMemory> private_memory();  // of this process only

class SlabStore {
 public:
  // Their addresses never move in the table: a site's threads look them up while it grows.
  static constexpr size_t kSlabsMax = 1 << 18;

  explicit SlabStore(uint64_t slab_bytes, std::shared_ptr<SlabMemory> from = private_memory())
      : slab_bytes_(slab_bytes), from_(std::move(from)) {
    slabs_.reserve(kSlabsMax);
  }
  ~SlabStore();
  SlabStore(const SlabStore&) = delete;
  SlabStore& operator=(const SlabStore&) = delete;

  uint64_t slab_bytes() const { return slab_bytes_; }
  bool asks() const { return from_->asks(); }
  // Any thread: memory for so many slabs is there, whatever others reserve, for whoever reserves
  // them while it holds this. REQUIRES: asks().
  using Promise = std::shared_ptr<const void>;
  static Result<Promise> promise(const std::shared_ptr<SlabStore>& store, uint32_t slabs);
  // Reservations add up; memory is kept for the largest sum so far.
  Status reserve(uint32_t slabs);
  void unreserve(uint32_t slabs);

  // What a pool that goes still has in use.
  void leave(std::string holder, std::shared_ptr<SlabCounts> in_use);
  // Of pools that have gone.
  struct Left {
    std::string holder;
    std::shared_ptr<SlabCounts> in_use;
  };
  const std::vector<Left>& left();

  // One reference, counted in `in_use`; kNoSlab only if no memory is to be had.
  SlabId take(const std::shared_ptr<SlabCounts>& in_use, bool received);
  void add_reference(SlabId slab) { ++uses_[slab].references; }
  void release(SlabId slab);
  std::span<std::byte> bytes(SlabId slab) const { return {slabs_[slab], slab_bytes_}; }
  bool idle() const { return free_.size() == slabs_.size(); }  // nobody has one

 private:
  struct Block {
    std::byte* memory;
    uint64_t bytes;
  };
  Result<Block> map(uint64_t slabs, uint64_t beside);
  void add(const Block& block);
  void take_made();
  uint64_t wanted();
  void tell_taken();
  struct Use {
    uint32_t references = 0;
    bool received = false;
    std::shared_ptr<SlabCounts> in_use;
  };
  Status grow(uint32_t slabs);

  uint64_t slab_bytes_;
  std::shared_ptr<SlabMemory> from_;
  uint64_t reserved_ = 0;  // by pools that are there
  std::vector<Left> left_;
  std::vector<Block> blocks_;
  std::vector<std::byte*> slabs_;
  std::vector<Use> uses_;  // by slab
  std::vector<SlabId> free_;
  Mutex promising_;  // one at a time; taken first
  // What promises are made by, where memory is asked for.
  struct Sums {
    uint64_t taken = 0;     // reserved, or in use by pools that have gone
    uint64_t promised = 0;  // beside those
    uint64_t there = 0;     // slabs, and those of what was made and is no slab yet
    std::vector<Block> made;
  };
  Mutex counting_;
  Sums sums_ CGX_GUARDED_BY(counting_);
};

class BufferPool {
 public:
  // `holder`: who its memory counts for.
  explicit BufferPool(std::shared_ptr<SlabStore> store, std::string holder = {})
      : store_(std::move(store)), holder_(std::move(holder)) {}
  explicit BufferPool(uint64_t slab_bytes) : BufferPool(std::make_shared<SlabStore>(slab_bytes)) {}
  ~BufferPool() {
    store_->leave(std::move(holder_), std::move(in_use_));
    store_->unreserve(reserved_.sum() + beyond_.sum());
  }
  BufferPool(const BufferPool&) = delete;
  BufferPool& operator=(const BufferPool&) = delete;

  uint64_t slab_bytes() const { return store_->slab_bytes(); }
  bool asks() const { return store_->asks(); }
  Status reserve(const SlabCounts& slabs);
  void unreserve(const SlabCounts& slabs);
  // Reserved for received frames; reserved besides.
  uint64_t received_bytes() const { return reserved_.received * slab_bytes(); }
  uint64_t beyond_bytes() const { return beyond_.sum() * slab_bytes(); }

  // One reference each; kNoSlab when what is reserved is in use.
  SlabId take_for_received();
  SlabId take_for_own();
  void add_reference(SlabId slab) { store_->add_reference(slab); }
  void release(SlabId slab) { store_->release(slab); }
  std::span<std::byte> bytes(SlabId slab) const { return store_->bytes(slab); }
  uint32_t in_use() const { return in_use_->sum(); }

 private:
  uint32_t own_beyond() const { return in_use_->own - std::min(in_use_->own, reserved_.own); }
  void free_beyond();

  std::shared_ptr<SlabStore> store_;
  std::string holder_;
  SlabCounts reserved_;
  // That were in use when less was reserved, as many as still are: own ones beyond their share, and
  // received ones (passed on, they wait for whoever gets them), since others may come at once.
  SlabCounts beyond_;
  std::shared_ptr<SlabCounts> in_use_ = std::make_shared<SlabCounts>();
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
