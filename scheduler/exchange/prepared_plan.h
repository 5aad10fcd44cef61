// A plan this machine can run: its facts, its slab reservations and memory for its jobs. Immutable;
// operations keep the one they run under alive.
#pragma once

#include <memory>
#include <vector>

#include "scheduler/exchange/buffer_pool.h"
#include "scheduler/exchange/plan_facts.h"

namespace cgx::scheduler {

struct PreparedPlan {
  const FactsPtr facts;
  const Plan& plan = facts->plan;
  const Policy& policy = facts->policy;
  const std::shared_ptr<const TensorTable>& table = facts->table;
  const uint64_t hash = facts->hash;
  const std::vector<GroupLayout>& layouts = facts->layouts;
  const std::vector<uint64_t>& name_hashes = facts->name_hashes;
  DecodedMemory decoded;
  uint64_t slab_bytes = 0;     // reserved for frames
  uint64_t missing_bytes = 0;  // of residuals that did not exist when it was prepared
  // Beside residuals.
  uint64_t held_bytes() const { return slab_bytes + facts->decoded_bytes(); }
  uint64_t needed_bytes() const { return held_bytes() + facts->residual_bytes; }

  const CodecSpec& spec_of(uint32_t tensor) const { return facts->spec_of(tensor); }

  explicit PreparedPlan(FactsPtr known) : facts(std::move(known)) {}
  PreparedPlan(const PreparedPlan&) = delete;
  PreparedPlan& operator=(const PreparedPlan&) = delete;
  ~PreparedPlan() {
    if (pool_ != nullptr) pool_->unreserve(facts->slabs);
  }

  // `bytes_free` of Limits::plan_bytes; refuses with the sum and the limit. Residuals that exist
  // are not charged again: `missing_bytes` is what the plan needs beside them.
  static Result<std::shared_ptr<const PreparedPlan>> create(FactsPtr facts, BufferPool& pool,
                                                            uint64_t missing_bytes,
                                                            uint64_t bytes_free);

 private:
  BufferPool* pool_ = nullptr;
  std::shared_ptr<const void> runs_;  // MadeMemory::runs
};

}  // namespace cgx::scheduler
