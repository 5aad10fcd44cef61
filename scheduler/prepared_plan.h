// A plan this machine has validated and made memory for: layouts, lookup tables, slab reservations.
// Immutable; operations keep the one they run under alive.
#pragma once

#include <memory>
#include <vector>

#include "scheduler/buffer_pool.h"
#include "scheduler/collective.h"
#include "scheduler/plan.h"

namespace cgx::scheduler {

// Parts per peer without an answer: about the same bytes in flight whatever the number of machines.
constexpr uint32_t inflight_parts(uint32_t machines) {
  return machines <= 2 ? 8 : machines <= 8 ? 8 / (machines - 1) + 1 : 1;
}

struct PreparedPlan {
  Plan plan;
  Policy policy;
  std::shared_ptr<const TensorTable> table;
  uint64_t hash = 0;
  std::vector<GroupLayout> layouts;
  std::vector<uint32_t> group_of, segment_of;  // by tensor
  std::vector<uint64_t> name_hashes;           // by tensor
  uint64_t reserved_bytes = 0;

  PreparedPlan() = default;
  PreparedPlan(const PreparedPlan&) = delete;
  PreparedPlan& operator=(const PreparedPlan&) = delete;
  ~PreparedPlan() {
    if (pool_ != nullptr) pool_->unreserve(slabs_);
  }

  struct Inputs {
    Plan plan;
    Policy policy;
    std::shared_ptr<const TensorTable> table;
    uint32_t machine, machines;
    BufferPool* pool;
    uint64_t bytes_free;  // of Limits::plan_bytes
  };
  // Refuses with the sum and the limit.
  static Result<std::shared_ptr<const PreparedPlan>> create(Inputs inputs);

 private:
  BufferPool* pool_ = nullptr;
  uint32_t slabs_ = 0;
};

// What one machine may have to hold for `operations` operations in flight here and as many more of
// peers that are ahead, each with at most `chunks` own chunks.
uint32_t slabs_for(uint32_t operations, uint32_t machines, uint64_t chunks);

}  // namespace cgx::scheduler
