#include "scheduler/shares.h"

namespace cgx::scheduler {
namespace {

constexpr size_t kNamed = 3;

}  // namespace

void Share::add(const std::string& holder, uint64_t amount) {
  if (amount > 0) holders_[holder] += amount;
}

uint64_t Share::used() const {
  uint64_t sum = 0;
  for (const auto& [holder, amount] : holders_) sum += amount;
  return sum;
}

uint64_t Share::left_for(const std::string& holder) const {
  const auto found = holders_.find(holder);
  const uint64_t own = found == holders_.end() ? 0 : found->second;
  return scheduler::left_for({.limit = limit_, .all = used(), .own = own});
}

std::vector<std::pair<std::string, uint64_t>> Share::holders() const {
  std::vector<std::pair<std::string, uint64_t>> sorted(holders_.begin(), holders_.end());
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  return sorted;
}

Status Share::check(const std::string& holder, uint64_t wanted) const {
  if (wanted <= left_for(holder)) return {};
  return {StatusCode::kRESOURCE_EXHAUSTED, text(holder)};
}

std::string Share::text(const std::string& holder) const {
  std::string who;
  const auto sorted = holders();
  for (size_t i = 0; i < std::min(kNamed, sorted.size()); ++i) {
    who += (i == 0 ? " (" : ", ") + std::to_string(sorted[i].second) + " by " + sorted[i].first;
  }
  if (!who.empty()) who += sorted.size() > kNamed ? ", others less)" : ")";
  return name_ + " is " + std::to_string(limit_) + ": " + std::to_string(used()) + " taken" + who +
         ", " + std::to_string(left_for(holder)) + " left for " + holder +
         ", an eighth being kept for those with less than " + std::to_string(floor_of(limit_)) +
         "; end some, or ask the operator to raise it";
}

}  // namespace cgx::scheduler
