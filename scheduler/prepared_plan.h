// A plan this machine has validated and made memory for: its facts and its slab reservations.
// Immutable; operations keep the one they run under alive.
#pragma once

#include <memory>
#include <vector>

#include "scheduler/buffer_pool.h"
#include "scheduler/collective.h"
#include "scheduler/plan.h"

namespace cgx::scheduler {

// What a plan means on this machine. Whoever shows it may keep it, on any thread.
struct PlanFacts {
  Plan plan;
  Policy policy;
  std::shared_ptr<const TensorTable> table;
  uint64_t hash = 0;
  std::vector<GroupLayout> layouts;
  std::vector<uint32_t> group_of, segment_of;  // by tensor
  std::vector<uint64_t> name_hashes;           // by tensor

  const CodecSpec& spec_of(uint32_t tensor) const {
    return plan.groups[group_of[tensor]].segments[segment_of[tensor]].spec;
  }
};

struct PreparedPlan {
  const std::shared_ptr<const PlanFacts> facts;
  const Plan& plan = facts->plan;
  const Policy& policy = facts->policy;
  const std::shared_ptr<const TensorTable>& table = facts->table;
  const uint64_t hash = facts->hash;
  const std::vector<GroupLayout>& layouts = facts->layouts;
  const std::vector<uint32_t>& group_of = facts->group_of;
  const std::vector<uint64_t>& name_hashes = facts->name_hashes;
  uint64_t reserved_bytes = 0;

  const CodecSpec& spec_of(uint32_t tensor) const { return facts->spec_of(tensor); }

  explicit PreparedPlan(std::shared_ptr<const PlanFacts> known) : facts(std::move(known)) {}
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
  SlabCounts slabs_;
};

// What one machine may have to hold for `operations` operations in flight here and as many more of
// peers that are ahead, each with at most `scatter_chunks` own chunks or `gather_chunks` chunks of
// everybody's.
SlabCounts slabs_for(uint32_t operations, uint32_t machines, uint64_t scatter_chunks,
                     uint64_t gather_chunks);

}  // namespace cgx::scheduler
