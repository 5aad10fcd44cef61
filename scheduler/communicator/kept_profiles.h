// What searches for plans have found out, by the job's name: its next communicators of the same
// table begin with the plan that was the fastest. As a text it outlives the daemon:
//
//   kept := "cgx-kept-plans 1\n" line* "sum " DIGITS LF     the checksum of all before it
//   line := uid TAB entry                                as in communicator/plan_history.h
//
// Thread rule: a value; the engine owns one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
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
  static constexpr size_t kTextMax = 16 << 20;

  // An error names what is wrong with the text.
  static Result<KeptProfiles> parse(std::string_view text);
  // As far as kTextMax goes: who has most of it loses what was kept longest ago.
  std::string to_text() const;

  std::optional<KeptFor> keep(const KeptFor& whose, Profile profile) {
    return kept_.keep(whose, std::move(profile));
  }
  void forget(const KeptFor& whose) { kept_.forget(whose); }
  // What a communicator of this name, table and policy may begin with: null where nothing is kept,
  // an error where that is of something else.
  Result<const Profile*> find(const KeptFor& whose, const TensorTable& table, uint32_t machines,
                              const Policy& policy) const;

 private:
  KeptByName<Profile> kept_;
};

// Where a daemon keeps them when it ends. Called on the planner's thread.
class ProfileLog {
 public:
  virtual ~ProfileLog() = default;
  virtual void kept(const KeptFor& whose, const Profile& profile) = 0;
  virtual void forgotten(const KeptFor& whose) = 0;
};

}  // namespace cgx::scheduler
