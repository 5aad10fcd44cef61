// A plan and all that follows from it on one machine: layouts, what it reserves, where each tensor
// is. Immutable; whoever shows it may keep it, on any thread.
#pragma once

#include <memory>
#include <vector>

#include "scheduler/exchange/buffer_pool.h"
#include "scheduler/exchange/schedule.h"
#include "scheduler/exchange/site.h"
#include "scheduler/plan/plan.h"
#include "scheduler/plan/policy.h"

namespace cgx::scheduler {

// Memory that a plan's residuals lacked when it was made. Taken out by the first that runs it, on
// the engine's thread; nobody else looks.
struct MadeResiduals {
  std::vector<std::shared_ptr<SiteResidual>> by_tensor;  // null: it was not missing
};

// Which tensors of a table had what number in another one, by their names.
struct Renumbering {
  static constexpr uint32_t kNone = UINT32_MAX;

  std::shared_ptr<const TensorTable> before;
  std::vector<uint32_t> of;  // by tensor: its number before
};
Renumbering renumber(std::shared_ptr<const TensorTable> before, const TensorTable& table);

struct PlanFacts {
  Plan plan;
  Policy policy;
  std::shared_ptr<const TensorTable> table;
  std::vector<std::byte> encoded;    // the plan, as it travels
  uint64_t hash = 0;                 // of that
  std::vector<GroupLayout> layouts;  // by group
  std::vector<Schedule> schedules;   // by group
  // By tensor, in plan order: its segments, each in a group.
  struct PlaceInPlan {
    uint32_t group = 0, segment = 0;
  };
  std::vector<std::vector<PlaceInPlan>> places;
  std::vector<uint64_t> name_hashes;  // by tensor
  // By tensor: nothing but the policy's default decides its codec. Only where ceilings are set.
  std::vector<bool> by_default;
  SlabCounts slabs;  // for frames
  // Some group has frames of the coordinator come here, so no step ends without its word.
  bool hears_coordinator = true;
  uint64_t residual_bytes = 0;
  Renumbering residuals;                // from the table that they were numbered by when asked
  std::shared_ptr<MadeResiduals> made;  // null: none is missing, or there is no room
  uint64_t made_bytes = 0;

  uint32_t first_group_of(uint32_t tensor) const { return places[tensor].front().group; }
  const CodecSpec& spec_of(uint32_t tensor) const {
    const PlaceInPlan& place = places[tensor].front();
    return plan.groups[place.group].segments[place.segment].spec;
  }
};
using FactsPtr = std::shared_ptr<const PlanFacts>;

// What one machine may have to hold for `operations` operations in flight here, and as many more of
// peers that are ahead, each of which needs so much.
SlabCounts slabs_for(const FrameNeeds& each, uint32_t operations, uint32_t machines);

}  // namespace cgx::scheduler
