#include "scheduler/exchange/residuals.h"

#include <algorithm>
#include <limits>
#include <new>
#include <string_view>
#include <unordered_set>

namespace cgx::scheduler {
namespace {

uint64_t slot_bytes(uint64_t elements) {
  return 2 * sizeof(float) * elements;
}

Residuals::Memory make(const Site& site, uint64_t elements) {
  Result<Residuals::Memory> made = site.residual_maker()(elements);
  if (!made.ok()) throw std::bad_alloc();
  while ((*made)->touch() > 0) {
  }
  return *std::move(made);
}

template <class Predicate>
uint64_t bytes_if(const Plan& plan, const TensorTable& table, Predicate counts) {
  uint64_t bytes = 0;
  for_each_feedback(plan, table, [&](uint32_t tensor, const TensorDesc& described) {
    if (counts(tensor)) bytes += Residuals::bytes_of(described);
  });
  return bytes;
}

bool is_held(const TensorResidual& residual) {
  return !residual.wanted_by.expired() || !residual.counted_on_by.expired();
}

}  // namespace

void Residuals::prepare(const PlanFacts& facts, const Site& site) {
  number(facts);
  for (Slots& slots : slots_) slots.wanted = false;
  for_each_feedback(facts.plan, *facts.table, [&](uint32_t tensor, const TensorDesc& described) {
    if (slots_.empty()) slots_ = fresh_slots(facts);
    Slots& slots = slots_[tensor];
    slots.wanted = true;
    Memory made;
    if (facts.made && !facts.made->residuals.empty()) {
      made = std::move(facts.made->residuals[tensor]);
    }
    if (facts.made) slots.wanted_by = facts.made->runs;
    if (slots.memory) {  // it might have gone meanwhile
      if (made) freed_.push_back(std::move(made));
      return;
    }
    slots.memory = made ? std::move(made) : make(site, described.elements);
    slots.elements = described.elements;
    ++count_;
    bytes_ += slot_bytes(slots.elements);
  });
  release_unwanted();
}

void Residuals::hold_for(const PlanFacts& facts) {
  if (empty() || facts.made == nullptr || facts.table != table_) return;
  for_each_feedback(facts.plan, *facts.table, [&](uint32_t tensor, const TensorDesc&) {
    if (slots_[tensor].memory) slots_[tensor].counted_on_by = facts.made->runs;
  });
}

// But for those whose plan may be back, as in a trial: nobody makes them again then.
void Residuals::release_unwanted() {
  held_ = false;
  for (Slots& slots : slots_) {
    if (!slots.memory || slots.wanted || slots.filled || slots.written) continue;
    if (is_held(slots)) {
      held_ = true;
    } else {
      release(slots);
    }
  }
}

void Residuals::number(const PlanFacts& facts) {
  if (facts.table == table_) return;
  const auto before = std::exchange(table_, facts.table);
  touched_.clear();
  if (empty()) return slots_.clear();
  std::vector<Slots> slots = std::exchange(slots_, fresh_slots(facts));
  // Normally the question was asked under the table of now.
  const bool asked = facts.residuals.before == before;
  take_over(std::move(slots), asked ? facts.residuals : renumber(before, *table_));
  if (!stray_.empty()) take_strays();
  for (uint32_t tensor = 0; tensor < slots_.size(); ++tensor) {
    if (slots_[tensor].touched()) touched_.push_back(tensor);
  }
}

std::vector<Residuals::Slots> Residuals::fresh_slots(const PlanFacts& facts) {
  if (facts.made && facts.made->slots.size() == facts.table->size()) {
    return std::exchange(facts.made->slots, {});
  }
  return std::vector<Slots>(facts.table->size());
}

// What is here gets the table's numbers. A tensor that has changed its size starts anew.
void Residuals::take_over(std::vector<Slots> before, const Renumbering& from) {
  for (uint32_t tensor = 0; tensor < slots_.size(); ++tensor) {
    if (from.of[tensor] == Renumbering::kNone) continue;
    Slots& slots = before[from.of[tensor]];
    if (!slots.memory) continue;
    if (slots.elements != (*table_)[tensor].elements) {
      release(slots);
    } else {
      slots_[tensor] = std::exchange(slots, {});
    }
  }
  for (uint32_t tensor = 0; tensor < before.size(); ++tensor) {
    if (before[tensor].memory) stray_[(*from.before)[tensor].name] = std::move(before[tensor]);
  }
}

// Tensors that an earlier table had may be back.
void Residuals::take_strays() {
  for (uint32_t tensor = 0; tensor < slots_.size(); ++tensor) {
    auto found = stray_.extract((*table_)[tensor].name);
    if (found.empty()) continue;
    if (found.mapped().elements == (*table_)[tensor].elements) {
      slots_[tensor] = std::move(found.mapped());
    } else {
      release(found.mapped());
    }
  }
}

void Residuals::release(Slots& slots) {
  bytes_ -= slot_bytes(slots.elements);
  --count_;
  freed_.push_back(std::move(slots.memory));
  slots = {};
}

// `number`: the tensor's in the table of now.
bool Residuals::is_here(const TensorDesc& tensor, uint32_t number) const {
  if (number != Renumbering::kNone && slots_[number].memory) {
    return slots_[number].elements == tensor.elements;
  }
  if (stray_.empty()) return false;
  const auto found = stray_.find(tensor.name);
  return found != stray_.end() && found->second.elements == tensor.elements;
}

std::vector<bool> Residuals::lasting() const {
  std::vector<bool> here;
  for (const Slots& slots : slots_) here.push_back(slots.memory && slots.wanted);
  return here;
}

void Residuals::forget_unwanted(const PlanFacts& next, std::vector<bool>& lasting) const {
  const bool same = next.table == table_;
  const Renumbering from = same ? Renumbering() : renumber(table_, *next.table);
  std::vector<bool> wanted(lasting.size());
  for_each_feedback(next.plan, *next.table, [&](uint32_t tensor, const TensorDesc&) {
    const uint32_t number = same ? tensor : from.of[tensor];
    if (number < wanted.size()) wanted[number] = true;
  });
  for (size_t i = 0; i < lasting.size(); ++i) lasting[i] = lasting[i] && wanted[i];
}

uint64_t Residuals::bytes_needed(const Plan& plan, const TensorTable& table) {
  return bytes_if(plan, table, [](uint32_t) { return true; });
}

uint64_t Residuals::bytes_missing(const PlanFacts& facts) const {
  if (empty()) return bytes_needed(facts.plan, *facts.table);
  const bool same = facts.table == table_, asked = facts.residuals.before == table_;
  const Renumbering other = same || asked ? Renumbering() : renumber(table_, *facts.table);
  const Renumbering& from = asked ? facts.residuals : other;
  return bytes_if(facts.plan, *facts.table, [&](uint32_t tensor) {
    return !is_here((*facts.table)[tensor], same ? tensor : from.of[tensor]);
  });
}

float Residuals::scale(uint32_t tensor, double unit, double decay) const {
  constexpr double kMost = std::numeric_limits<float>::max();
  if (slots(tensor).emptied) return 0;
  return static_cast<float>(std::min(kMost, decay * (unit / slots(tensor).unit)));
}

void Residuals::mark_written(uint32_t tensor, double unit) {
  slots_[tensor].written = true;
  slots_[tensor].tentative_unit = unit;
  touched_.push_back(tensor);
}

void Residuals::mark_drained(uint32_t tensor) {
  slots_[tensor].drained = true;
  touched_.push_back(tensor);
}

void Residuals::commit() {
  for (const uint32_t tensor : std::exchange(touched_, {})) commit(slots_[tensor]);
  for (auto& [name, slots] : stray_) {
    if (slots.touched()) commit(slots);
  }
  std::erase_if(stray_, [](const auto& entry) { return !entry.second.memory; });
  if (held_) release_unwanted();
}

void Residuals::commit(Slots& slots) {
  if (slots.drained) {
    const bool stays = slots.wanted || is_held(slots);
    if (!stays) return release(slots);
    slots.filled = slots.drained = false;
    slots.emptied = true;
    slots.unit = 1;
    held_ |= !slots.wanted;
    return;
  }
  slots.confirmed = 1 - slots.confirmed;
  slots.unit = slots.tentative_unit;
  slots.filled = true;
  slots.emptied = slots.written = false;
}

void Residuals::drop() {
  for (const uint32_t tensor : std::exchange(touched_, {})) {
    Slots& slots = slots_[tensor];
    slots.written = slots.drained = false;
  }
  for (auto& [name, slots] : stray_) slots.written = slots.drained = false;
  release_unwanted();  // what the step was the first to write holds nothing now
}

void Residuals::release_others(const TensorTable& table) {
  const bool another = &table != table_.get();
  if (empty() || (!another && stray_.empty())) return;
  std::unordered_set<std::string_view> names;
  for (const TensorDesc& tensor : table) names.insert(tensor.name);
  for (size_t tensor = 0; another && tensor < slots_.size(); ++tensor) {
    const bool known = names.count((*table_)[tensor].name) > 0;
    if (slots_[tensor].memory && !known) release(slots_[tensor]);
  }
  std::erase_if(touched_, [&](uint32_t tensor) { return !slots_[tensor].memory; });
  for (auto& [name, slots] : stray_) {
    if (names.count(name) == 0) release(slots);
  }
  std::erase_if(stray_, [](const auto& entry) { return !entry.second.memory; });
}

std::vector<Residuals::Memory> Residuals::take_all() {
  std::vector<Memory> all = take_freed();
  for (Slots& slots : slots_) {
    if (slots.memory) all.push_back(std::move(slots.memory));
  }
  for (auto& [name, slots] : stray_) all.push_back(std::move(slots.memory));
  *this = {};
  return all;
}

}  // namespace cgx::scheduler
