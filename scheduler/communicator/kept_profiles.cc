#include "scheduler/communicator/kept_profiles.h"

#include <algorithm>
#include <utility>

namespace cgx::scheduler {

void KeptProfiles::keep(const KeptFor& whose, Profile profile) {
  std::erase_if(kept_, [&](const Kept& one) { return one.whose == whose; });
  if (kept_.size() == kMax) kept_.pop_front();
  kept_.push_back({whose, std::move(profile)});
}

Result<const Profile*> KeptProfiles::find(const KeptFor& whose, const TensorTable& table,
                                          uint32_t machines, const Policy& policy) const {
  const auto found =
      std::find_if(kept_.begin(), kept_.end(), [&](const Kept& one) { return one.whose == whose; });
  if (found == kept_.end()) return static_cast<const Profile*>(nullptr);
  const Profile& profile = found->profile;
  const auto of_another = [](const std::string& what) {
    return Status(StatusCode::kMISMATCH, "is of another " + what);
  };
  if (profile.machines != machines) {
    return of_another("number of machines, " + std::to_string(profile.machines));
  }
  if (!same_wish(profile.policy, policy)) return of_another("policy");
  if (profile.table_hash != table_hash(table)) return of_another("table");
  return &profile;
}

}  // namespace cgx::scheduler
