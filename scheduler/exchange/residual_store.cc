#include "scheduler/exchange/residual_store.h"

#include <algorithm>

namespace cgx::scheduler {

ResidualStore::Each::iterator ResidualStore::find(const Owner& owner) {
  return std::find_if(kept_.begin(), kept_.end(),
                      [&](const Kept& kept) { return kept.owner == owner; });
}

KeptResiduals ResidualStore::remove(Each::iterator kept) {
  KeptResiduals removed = std::move(kept->what);
  kept_.erase(kept);
  bytes_ -= removed.residuals.bytes();
  return removed;
}

void ResidualStore::keep(const Owner& owner, KeptResiduals kept, uint64_t free_at_ns) {
  const auto before = find(owner);
  if (before != kept_.end()) (void)remove(before);
  bytes_ += kept.residuals.bytes();
  kept_.push_back({owner, std::move(kept), free_at_ns});
}

ResidualMark ResidualStore::mark(const Owner& owner) const {
  const auto found = const_cast<ResidualStore*>(this)->find(owner);
  return found == kept_.end() ? ResidualMark() : found->what.mark;
}

std::optional<KeptResiduals> ResidualStore::take(const Owner& owner) {
  const auto found = find(owner);
  if (found == kept_.end()) return {};
  return remove(found);
}

void ResidualStore::free_at(uint32_t uid, const std::string& job, uint64_t ns) {
  for (Kept& kept : kept_) {
    if (kept.owner.uid == uid && kept.owner.job == job) kept.free_at_ns = ns;
  }
}

std::vector<Residuals> ResidualStore::take_of(SiteId site) {
  std::vector<Residuals> taken;
  for (auto kept = kept_.begin(); kept != kept_.end();) {
    const auto each = kept++;
    if (each->owner.site == site) taken.push_back(remove(each).residuals);
  }
  return taken;
}

uint64_t ResidualStore::next_ns() const {
  uint64_t next = UINT64_MAX;
  for (const Kept& kept : kept_) next = std::min(next, kept.free_at_ns);
  return next;
}

std::vector<Residuals> ResidualStore::take_expired(uint64_t now_ns, uint64_t room) {
  std::vector<Residuals> expired;
  for (auto kept = kept_.begin(); kept != kept_.end();) {
    const auto each = kept++;
    if (each->free_at_ns <= now_ns || bytes_ > room) {
      expired.push_back(std::move(remove(each).residuals));
    }
  }
  return expired;
}

}  // namespace cgx::scheduler
