#include "scheduler/residuals.h"

#include <algorithm>
#include <limits>
#include <new>

namespace cgx::scheduler {
namespace {

uint64_t slot_bytes(uint64_t elements) {
  return 2 * sizeof(float) * elements;
}

Residuals::Memory make(const Site& site, uint64_t elements) {
  Residuals::Memory made = site.residual_maker()(elements);
  if (!made) throw std::bad_alloc();
  return made;
}

template <class Predicate>
uint64_t bytes_if(const Plan& plan, const TensorTable& table, Predicate counts) {
  uint64_t bytes = 0;
  for_each_feedback(plan, table, [&](uint32_t tensor, const TensorDesc& described) {
    if (counts(tensor)) bytes += Residuals::bytes_of(described);
  });
  return bytes;
}

}  // namespace

void Residuals::prepare(const PlanFacts& facts, const Site& site) {
  number(facts.table);
  std::vector<bool> feedback(facts.table->size());
  for_each_feedback(facts.plan, *facts.table, [&](uint32_t tensor, const TensorDesc& described) {
    feedback[tensor] = true;
    if (has(tensor)) return;
    Slots made{.elements = described.elements};
    if (facts.made) made.memory = std::move(facts.made->by_tensor[tensor]);
    if (!made.memory) made.memory = make(site, described.elements);
    bytes_ += slot_bytes(made.elements);
    attach(tensor, *slots_.emplace(described.name, std::move(made)).first);
  });
  for (uint32_t tensor = 0; tensor < of_table_.size(); ++tensor) {
    if (!has(tensor)) continue;
    Slots& slots = of_table_[tensor]->second;
    slots.wanted = feedback[tensor];
    if (!slots.wanted && !slots.filled && !slots.written) release(*of_table_[tensor]);
  }
}

// What is here by name gets the table's numbers. A tensor that has changed its size starts anew.
void Residuals::number(const std::shared_ptr<const TensorTable>& table) {
  if (table == table_) return;
  table_ = table;
  of_table_.assign(table->size(), nullptr);
  for (auto& entry : slots_) entry.second.tensor = kNoTensor;
  if (slots_.empty()) return;
  for (uint32_t tensor = 0; tensor < table->size(); ++tensor) {
    const auto found = slots_.find((*table)[tensor].name);
    if (found == slots_.end()) continue;
    if (found->second.elements == (*table)[tensor].elements) {
      attach(tensor, *found);
    } else {
      release(*found);
    }
  }
}

void Residuals::attach(uint32_t tensor, ByName::value_type& entry) {
  of_table_[tensor] = &entry;
  entry.second.tensor = tensor;
}

void Residuals::release(ByName::value_type& entry) {
  bytes_ -= slot_bytes(entry.second.elements);
  freed_.push_back(std::move(entry.second.memory));
  if (entry.second.tensor != kNoTensor) of_table_[entry.second.tensor] = nullptr;
  slots_.erase(slots_.find(entry.first));
}

std::vector<bool> Residuals::existing(const std::shared_ptr<const TensorTable>& table) const {
  std::vector<bool> here;
  if (slots_.empty()) return here;
  for (uint32_t tensor = 0; tensor < table->size(); ++tensor) {
    if (table == table_) {
      here.push_back(has(tensor));
      continue;
    }
    const auto found = slots_.find((*table)[tensor].name);
    here.push_back(found != slots_.end() && found->second.elements == (*table)[tensor].elements);
  }
  return here;
}

uint64_t Residuals::bytes_needed(const Plan& plan, const TensorTable& table) {
  return bytes_if(plan, table, [](uint32_t) { return true; });
}

uint64_t Residuals::bytes_missing(const PlanFacts& facts) const {
  const std::vector<bool> here = existing(facts.table);
  return bytes_if(facts.plan, *facts.table,
                  [&](uint32_t tensor) { return here.empty() || !here[tensor]; });
}

float Residuals::scale(uint32_t tensor, double unit, double decay) const {
  constexpr double kMost = std::numeric_limits<float>::max();
  return static_cast<float>(std::min(kMost, decay * (unit / slots(tensor).unit)));
}

void Residuals::mark_written(uint32_t tensor, double unit) {
  Slots& slots = of_table_[tensor]->second;
  slots.written = true;
  slots.tentative_unit = unit;
  touched_.push_back(of_table_[tensor]);
}

void Residuals::mark_drained(uint32_t tensor) {
  of_table_[tensor]->second.drained = true;
  touched_.push_back(of_table_[tensor]);
}

void Residuals::commit(const Site& site) {
  for (ByName::value_type* const entry : std::exchange(touched_, {})) {
    Slots& slots = entry->second;
    if (slots.drained && !slots.wanted) {
      release(*entry);
      continue;
    }
    if (slots.drained) {  // feedback is back already
      freed_.push_back(std::exchange(slots.memory, make(site, slots.elements)));
      slots = {.memory = std::move(slots.memory),
               .elements = slots.elements,
               .tensor = slots.tensor,
               .wanted = true};
      continue;
    }
    slots.confirmed = 1 - slots.confirmed;
    slots.unit = slots.tentative_unit;
    slots.filled = true;
    slots.written = false;
  }
}

void Residuals::drop() {
  for (ByName::value_type* const entry : std::exchange(touched_, {})) {
    entry->second.written = entry->second.drained = false;
  }
}

std::vector<Residuals::Memory> Residuals::take_all() {
  std::vector<Memory> all = take_freed();
  for (auto& [name, slots] : slots_) all.push_back(std::move(slots.memory));
  *this = {};
  return all;
}

}  // namespace cgx::scheduler
