// A plan and all that follows from it on one machine: layouts, what it reserves, where each tensor
// is. Immutable; whoever shows it may keep it, on any thread.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <vector>

#include "scheduler/exchange/buffer_pool.h"
#include "scheduler/exchange/decoded_memory.h"
#include "scheduler/exchange/schedule.h"
#include "scheduler/exchange/site.h"
#include "scheduler/exchange/step_ledger.h"
#include "scheduler/plan/decisions.h"
#include "scheduler/plan/plan.h"
#include "scheduler/plan/policy.h"
#include "scheduler/ports.h"

namespace cgx::scheduler {

struct MadeMemory;

// What one site keeps of a tensor with feedback (residuals.h).
struct TensorResidual {
  std::shared_ptr<SiteResidual> memory;  // null: there are none
  uint64_t elements = 0;
  double unit = 1, tentative_unit = 1;  // of the confirmed and the tentative slot
  uint8_t confirmed = 0;
  bool wanted = false;   // by the plan in force
  bool filled = false;   // some step's error was confirmed
  bool emptied = false;  // what the confirmed slot holds was taken up: it counts as zeros
  bool written = false, drained = false;
  // MadeMemory::runs: of the last plan that wanted it and may be back; of one that is prepared and
  // found it here.
  std::weak_ptr<const void> wanted_by, counted_on_by;
  bool touched() const { return written || drained; }
};

// Memory that a plan needs beside itself, made and touched with it: fresh pages cost the thread
// that moves gradients more than all that it does with them when the plan takes force. Each is
// taken out by the first that needs it, on the engine's thread; nobody else looks.
struct MadeMemory {
  std::vector<std::shared_ptr<SiteResidual>> residuals;  // by tensor; null: it was not missing
  std::vector<TensorResidual> slots;                     // by tensor; empty: there are
  // Bytes of residuals that were not made, because the limit left but `room`; 0: all were.
  uint64_t not_made = 0, room = 0;
  DecodedMemory decoded;
  std::array<std::unique_ptr<StepLedger>, 2> ledgers;  // of a new table
  // SlabStore::promise(), where that is asked for; a dry run has none, and takes no frame buffers.
  SlabStore::Promise frames;
  SharedBytes message;             // that asks other machines to prepare it
  std::weak_ptr<const void> runs;  // while a prepared plan of these facts is about
};

// Which tensors of a table had what number in another one, by their names.
struct Renumbering {
  static constexpr uint32_t kNone = UINT32_MAX;

  std::shared_ptr<const TensorTable> before;
  std::vector<uint32_t> of;  // by tensor: its number before
};
Renumbering renumber(std::shared_ptr<const TensorTable> before, const TensorTable& table);

// What a job needs beside its frames, at most.
struct JobNeeds {
  uint64_t slices = 0;  // of a part
  // Values that came with a lossy codec of racks, decoded before they are added: of a whole part,
  // each range from the start of a line on.
  uint64_t decoded_bytes = 0;
  // The same of one slice. Here an uncompressed one counts once, too: the frame in the transport's
  // hand may begin anywhere.
  uint64_t decoded_slice_bytes = 0;
  uint64_t sparse_buckets = 0, sparse_bytes = 0;  // kernels/cuda/cuda_lane.h

  void cover(const JobNeeds& other);
};
JobNeeds job_needs(const Group& group, const GroupLayout& layout, uint32_t machines);
// Of a job that measures what these strengths lose.
JobNeeds loss_needs(const std::vector<CodecSpec>& strengths, const GroupLayout& layout);

struct PlanFacts {
  Plan plan;
  Policy policy;
  std::shared_ptr<const TensorTable> table;
  // Null: the policy, another machine's, cannot be matched here.
  DecisionsPtr decisions;
  std::vector<std::byte> encoded;    // the plan, as it travels
  uint64_t hash = 0;                 // of that
  std::vector<GroupLayout> layouts;  // by group
  std::vector<Schedule> schedules;   // by group
  // By tensor, in plan order: its segments, each in a group.
  struct PlaceInPlan {
    uint32_t group = 0, segment = 0;
  };
  std::vector<std::vector<PlaceInPlan>> places;
  std::vector<uint32_t> segment_counts;  // by tensor: of those
  std::vector<uint64_t> name_hashes;     // by tensor
  SlabCounts slabs;                      // for frames
  // Some group has frames of the coordinator come here, so no step ends without its word.
  bool hears_coordinator = true;
  bool lossy = false;  // some codec loses something
  JobNeeds needs;
  uint32_t decoded_pieces = 0;  // Site::decoded_pieces()
  uint64_t residual_bytes = 0;
  Renumbering residuals;             // from the table that they were numbered by when asked
  std::shared_ptr<MadeMemory> made;  // null: nobody asked
  uint64_t made_bytes = 0;           // of residuals and decoded values in it

  // Nothing but the policy's default decides its codec. REQUIRES: decisions.
  bool by_default(uint32_t tensor) const { return decisions->by_default(tensor); }
  uint64_t decided_bytes() const { return decisions == nullptr ? 0 : decisions->bytes(); }
  uint64_t decoded_bytes() const { return decoded_pieces * needs.decoded_slice_bytes; }
  Result<DecodedMemory> make_decoded() const {
    return DecodedMemory::make(decoded_pieces, needs.decoded_slice_bytes / sizeof(float));
  }
  uint32_t first_group_of(uint32_t tensor) const { return places[tensor].front().group; }
  const Segment& first_segment_of(uint32_t tensor) const {
    const PlaceInPlan& place = places[tensor].front();
    return plan.groups[place.group].segments[place.segment];
  }
  const CodecSpec& spec_of(uint32_t tensor) const { return first_segment_of(tensor).spec; }
  const std::optional<CodecSpec>& rack_spec_of(uint32_t tensor) const {
    return first_segment_of(tensor).rack_spec;
  }
};
using FactsPtr = std::shared_ptr<const PlanFacts>;

// What one machine may have to hold for `operations` operations in flight here, and as many more of
// peers that are ahead, each of which needs so much.
SlabCounts slabs_for(const FrameNeeds& each, uint32_t operations, uint32_t machines);

}  // namespace cgx::scheduler
