// Error feedback at one site: two slots per tensor, confirmed and tentative.
//
// Encoding reads the confirmed slot and writes the tentative one; commit() flips the tensors that
// were written since, drop() forgets them. The site has the memory; it comes with the first plan
// that asks for feedback and survives regrouping. Each slot is in the gradient unit (loss scale /
// learning rate) of the step that wrote it. Owned by one communicator.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "scheduler/plan_facts.h"

namespace cgx::scheduler {

class Residuals {
 public:
  // Takes slots (zero) for the plan's feedback tensors that have none yet: those made with the
  // plan, or new ones.
  void prepare(const PlanFacts& facts, const Site& site) {
    const TensorTable& table = *facts.table;
    tensors_.resize(table.size());
    for_each_feedback(facts.plan, table, [&](uint32_t tensor, const TensorDesc& described) {
      Slots& slots = tensors_[tensor];
      if (slots.memory) return;
      if (facts.made) slots.memory = std::move(facts.made->by_tensor[tensor]);
      if (!slots.memory) slots.memory = site.residual_maker()(described.elements);
      if (!slots.memory) throw std::bad_alloc();
      bytes_ += bytes_of(described);
    });
  }
  bool has(uint32_t tensor) const { return tensor < tensors_.size() && tensors_[tensor].memory; }
  // Of both slots.
  static uint64_t bytes_of(const TensorDesc& tensor) { return 2 * sizeof(float) * tensor.elements; }
  static uint64_t bytes_needed(const Plan& plan, const TensorTable& table) {
    return bytes_if(plan, table, [](uint32_t) { return true; });
  }
  // Beside what is there already.
  uint64_t bytes_missing(const Plan& plan, const TensorTable& table) const {
    return bytes_if(plan, table, [this](uint32_t tensor) { return !has(tensor); });
  }
  uint64_t bytes() const { return bytes_; }  // of all slots

  SiteResidual* memory(uint32_t tensor) const { return tensors_[tensor].memory.get(); }
  uint32_t confirmed(uint32_t tensor) const { return tensors_[tensor].confirmed; }  // which slot
  // What makes a confirmed residual one of a step in units of `unit`.
  float scale(uint32_t tensor, double unit, double decay) const {
    constexpr double kMost = std::numeric_limits<float>::max();
    return static_cast<float>(std::min(kMost, decay * (unit / tensors_[tensor].unit)));
  }
  void mark_written(uint32_t tensor, double unit) {
    tensors_[tensor].written = true;
    tensors_[tensor].tentative_unit = unit;
  }

  void commit() {
    for (Slots& slots : tensors_) {
      if (slots.written) {
        slots.confirmed = 1 - slots.confirmed;
        slots.unit = slots.tentative_unit;
      }
      slots.written = false;
    }
  }
  void drop() {
    for (Slots& slots : tensors_) slots.written = false;
  }

 private:
  template <class Predicate>
  static uint64_t bytes_if(const Plan& plan, const TensorTable& table, Predicate counts) {
    uint64_t bytes = 0;
    for_each_feedback(plan, table, [&](uint32_t tensor, const TensorDesc& described) {
      if (counts(tensor)) bytes += bytes_of(described);
    });
    return bytes;
  }
  struct Slots {
    std::shared_ptr<SiteResidual> memory;
    double unit = 1, tentative_unit = 1;  // of the confirmed and the tentative slot
    uint8_t confirmed = 0;
    bool written = false;
  };
  std::vector<Slots> tensors_;
  uint64_t bytes_ = 0;
};

}  // namespace cgx::scheduler
