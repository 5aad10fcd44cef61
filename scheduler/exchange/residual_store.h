// Residuals that no communicator has: those of communicators that have ended, until the next one of
// the same name borrows them, by (uid, job) and the communicator's name (PROTOCOL 33). They go some
// time after the last session of their job, or, oldest first, when plans need their room.
// Owned by the engine.
#pragma once

#include <cstdint>
#include <list>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "scheduler/exchange/residuals.h"

namespace cgx::scheduler {

struct KeptResiduals {
  ResidualMark mark;
  Residuals residuals;
};

class ResidualStore {
 public:
  struct Owner {
    uint32_t uid = 0;
    std::string job, communicator;
    SiteId site = kHostSite;
    friend bool operator==(const Owner&, const Owner&) = default;
  };

  // In place of what is kept for the owner.
  void keep(const Owner& owner, KeptResiduals kept, uint64_t free_at_ns);
  ResidualMark mark(const Owner& owner) const;
  std::optional<KeptResiduals> take(const Owner& owner);
  // All communicators of the job; UINT64_MAX: as long as there is room.
  void free_at(uint32_t uid, const std::string& job, uint64_t ns);

  uint64_t bytes() const { return bytes_; }
  uint64_t next_ns() const;  // when something has to go; UINT64_MAX: nothing has
  // All that a site has which goes.
  std::vector<Residuals> take_of(SiteId site);
  // What has to go by now, and as much more as is above `room` bytes: to be freed where that may
  // take its time.
  std::vector<Residuals> take_expired(uint64_t now_ns, uint64_t room);

 private:
  struct Kept {
    Owner owner;
    KeptResiduals what;
    uint64_t free_at_ns = 0;
  };
  using Each = std::list<Kept>;
  Each::iterator find(const Owner& owner);
  KeptResiduals remove(Each::iterator kept);

  Each kept_;  // oldest first
  uint64_t bytes_ = 0;
};

}  // namespace cgx::scheduler
