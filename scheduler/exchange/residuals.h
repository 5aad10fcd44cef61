// Error feedback at one site: two slots per tensor, confirmed and tentative.
//
// Encoding reads the confirmed slot and writes the tentative one; commit() flips the tensors that
// were written since, drop() forgets them. The site has the memory; it comes with the first plan
// that asks for feedback, goes by the tensor's name and survives regrouping and other tables: which
// tensor had which number before is found out where plans are made. A tensor that leaves feedback
// drains: what it holds is added to its next step once more, and then its memory goes, unless the
// last plan that wanted it is still prepared (a trial's, or the one beside it), or one that found
// it here. Each slot is in the gradient unit (loss scale / learning rate) of the step that wrote
// it. Owned by one communicator, or kept for the next one of its name (residual_store.h).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "scheduler/exchange/plan_facts.h"

namespace cgx::scheduler {

// Of which step residuals are, and in which communicator's life: machines go on with what they hold
// only where both are the same everywhere.
struct ResidualMark {
  uint64_t step_end = 0, lineage = 0;

  bool any() const { return lineage != 0; }
  friend bool operator==(const ResidualMark&, const ResidualMark&) = default;
};

class Residuals {
 public:
  using Memory = std::shared_ptr<SiteResidual>;

  // Takes slots (zero) for the plan's feedback tensors that have none yet: those made with the
  // plan, or new ones.
  void prepare(const PlanFacts& facts, const Site& site);
  // What is here of the plan's feedback tensors stays as long as the plan is prepared: nobody has
  // made it once more.
  void hold_for(const PlanFacts& facts);
  bool has(uint32_t tensor) const { return tensor < slots_.size() && slots_[tensor].memory; }
  // By tensor of table(): which stay here under the plan in force; empty: none.
  std::vector<bool> lasting() const;
  // Less what a plan that comes before drains.
  void forget_unwanted(const PlanFacts& next, std::vector<bool>& lasting) const;
  bool empty() const { return count_ == 0; }
  const std::shared_ptr<const TensorTable>& table() const { return table_; }  // that numbers them

  // Of both slots.
  static uint64_t bytes_of(const TensorDesc& tensor) { return 2 * sizeof(float) * tensor.elements; }
  static uint64_t bytes_needed(const Plan& plan, const TensorTable& table);
  // Beside what is there already.
  uint64_t bytes_missing(const PlanFacts& facts) const;
  uint64_t bytes() const { return bytes_; }  // of all slots

  SiteResidual* memory(uint32_t tensor) const { return slots(tensor).memory.get(); }
  uint32_t confirmed(uint32_t tensor) const { return slots(tensor).confirmed; }  // which slot
  // A tensor without feedback still holds what some step before has lost.
  bool drains(uint32_t tensor) const { return has(tensor) && slots(tensor).filled; }
  // What makes a confirmed residual one of a step in units of `unit`.
  float scale(uint32_t tensor, double unit, double decay) const;
  void mark_written(uint32_t tensor, double unit);
  void mark_drained(uint32_t tensor);

  void commit();
  void drop();
  // What tensors have that `table` lacks goes, although one of them may be back later.
  void release_others(const TensorTable& table);
  // What drained since the last call: to be freed where that may take its time.
  std::vector<Memory> take_freed() { return std::exchange(freed_, {}); }
  std::vector<Memory> take_all();

 private:
  using Slots = TensorResidual;
  const Slots& slots(uint32_t tensor) const { return slots_[tensor]; }
  void number(const PlanFacts& facts);
  static std::vector<Slots> fresh_slots(const PlanFacts& facts);
  void take_over(std::vector<Slots> before, const Renumbering& from);
  void take_strays();
  bool is_here(const TensorDesc& tensor, uint32_t number) const;
  void release(Slots& slots);
  void commit(Slots& slots);
  void release_unwanted();

  std::shared_ptr<const TensorTable> table_;
  std::vector<Slots> slots_;                      // by tensor; empty: none has any
  std::unordered_map<std::string, Slots> stray_;  // of tensors that the table lacks, by name
  std::vector<uint32_t> touched_;                 // written or drained since commit()
  size_t count_ = 0;                              // of slots with memory
  bool held_ = false;                             // some that nobody wants now, for their plan
  std::vector<Memory> freed_;
  uint64_t bytes_ = 0;
};

}  // namespace cgx::scheduler
