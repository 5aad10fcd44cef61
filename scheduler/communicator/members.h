// Who belongs to a communicator: its view, and the ranks of this machine with their sessions, which
// come and go.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "scheduler/communicator/view.h"
#include "scheduler/exchange/place.h"
#include "scheduler/ports.h"

namespace cgx::scheduler {

// A user's jobs of one name are one job, also those of two containers: ranks may lie in several.
inline constexpr const char* kAnotherJob =
    "; another job of this user needs another name (CGX_JOB)";

struct LocalRank {
  uint32_t rank = 0;
  SessionId session;
  SessionPort* port = nullptr;  // null: not joined yet, or gone
  uint32_t handle = 0;          // the session's name for the communicator
};

struct Members : View {
  SiteId site = kHostSite;       // where this machine's ranks have their tensors
  std::string staged;            // why a GPU's are copied to the host for them; empty: none is
  std::vector<LocalRank> local;  // in rank order

  uint32_t local_count() const { return static_cast<uint32_t>(local.size()); }
  ViewPtr view_of(uint32_t of_term) const {
    auto view = std::make_shared<View>(*this);
    view->term = of_term;
    return view;
  }
};

}  // namespace cgx::scheduler
