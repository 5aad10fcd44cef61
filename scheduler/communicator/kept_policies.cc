#include "scheduler/communicator/kept_policies.h"

#include <algorithm>

namespace cgx::scheduler {

void KeptPolicies::keep(const KeptFor& whose, const Policy& policy) {
  forget(whose);
  if (kept_.size() == kMax) kept_.pop_front();
  kept_.push_back({whose, policy});
}

void KeptPolicies::forget(const KeptFor& whose) {
  std::erase_if(kept_, [&](const Kept& one) { return one.whose == whose; });
}

std::optional<Policy> KeptPolicies::find(const KeptFor& whose) const {
  const auto found =
      std::find_if(kept_.begin(), kept_.end(), [&](const Kept& one) { return one.whose == whose; });
  if (found == kept_.end()) return std::nullopt;
  return found->policy;
}

}  // namespace cgx::scheduler
