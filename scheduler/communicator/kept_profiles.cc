#include "scheduler/communicator/kept_profiles.h"

namespace cgx::scheduler {

Result<const Profile*> KeptProfiles::find(const KeptFor& whose, const TensorTable& table,
                                          uint32_t machines, const Policy& policy) const {
  const Profile* const profile = kept_.look(whose);
  if (profile == nullptr) return profile;
  const auto of_another = [](const std::string& what) {
    return Status(StatusCode::kMISMATCH, "is of another " + what);
  };
  if (profile->machines != machines) {
    return of_another("number of machines, " + std::to_string(profile->machines));
  }
  if (!same_wish(profile->policy, policy)) return of_another("policy");
  if (profile->table_hash != table_hash(table)) return of_another("table");
  return profile;
}

}  // namespace cgx::scheduler
