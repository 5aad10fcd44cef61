// What searches for plans have found out, by the job's name: its next communicators of the same
// table begin with the plan that was the fastest.
// Thread rule: owned by the engine.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "proto/wire/status.h"
#include "scheduler/communicator/kept_by_name.h"
#include "scheduler/plan/plan.h"

namespace cgx::scheduler {

struct Profile {
  uint64_t table_hash = 0;
  uint32_t machines = 1;
  Policy policy;              // that was searched under
  std::vector<Group> groups;  // of the plan that a search settled on
};

class KeptProfiles {
 public:
  void keep(const KeptFor& whose, Profile profile) { kept_.keep(whose, std::move(profile)); }
  // What a communicator of this name, table and policy may begin with: null where nothing is kept,
  // an error where that is of something else.
  Result<const Profile*> find(const KeptFor& whose, const TensorTable& table, uint32_t machines,
                              const Policy& policy) const;

 private:
  KeptByName<Profile> kept_;
};

}  // namespace cgx::scheduler
