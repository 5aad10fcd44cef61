// Policies that operators gave a job by its name: its next communicators begin with them.
// Thread rule: owned by the engine. Invariant: at most kMax, the one given longest ago goes first.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>

#include "scheduler/plan/policy.h"

namespace cgx::scheduler {

struct KeptFor {
  uint32_t uid = 0;
  std::string job, communicator;
  friend bool operator==(const KeptFor&, const KeptFor&) = default;
};

class KeptPolicies {
 public:
  static constexpr size_t kMax = 64;

  void keep(const KeptFor& whose, const Policy& policy);
  void forget(const KeptFor& whose);
  std::optional<Policy> find(const KeptFor& whose) const;

 private:
  struct Kept {
    KeptFor whose;
    Policy policy;
  };
  std::deque<Kept> kept_;  // newest last
};

}  // namespace cgx::scheduler
