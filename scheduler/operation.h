// One operation: a group of one step (or one call) on its way through one machine.
//
//   states: exchanging -> complete
//                      -> failed (dropped by its communicator; no transition leads back)
//   scatter
//     own side, per peer:   encode part -> send -> (answered by the gather frame of that part)
//     own shard, per chunk: wait for every machine's part -> reduce, encode once -> send to all
//     others' shards:       gather frame -> decode into every local rank's output
//   allgather
//     per chunk:            encode part -> keep, send to all -> wait for every machine's part ->
//                           combine into every local rank's output
//
// Explicit state, nothing blocks: advance() does at most one part's arithmetic, receive() handles
// one frame. Owned by one communicator. Received frames are used in place when everything else is
// there, and copied to a slab otherwise (counted). Both collectives write a chunk's outputs only
// after what this machine contributes to it was encoded: inputs may be outputs.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/codec.h"
#include "proto/wire/frame.h"
#include "proto/wire/status.h"
#include "scheduler/buffer_pool.h"
#include "scheduler/collective.h"
#include "scheduler/recorder.h"
#include "scheduler/snapshot.h"

namespace cgx::scheduler {

// Everything of a segment that lies on this machine.
struct LocalSegment {
  std::vector<const std::byte*> inputs;  // of the present ranks, in rank order; empty: absent here
  std::vector<std::byte*> outputs;       // of every local rank (home region where absent)
  float scale = 1.0f;
  uint64_t name_hash = 0;
  const float* residual_confirmed = nullptr;  // both null without feedback
  float* residual_tentative = nullptr;
  float residual_scale = 1.0f;  // from the confirmed one to this step's units, decay included
};

// What a frame is about; the host completes the header.
struct PartFrame {
  uint32_t machine = 0;  // to
  wire::Phase phase = wire::Phase::kScatter;
  uint32_t shard = 0, chunk = 0;
  bool bitmap = false;
  SlabId slab = kNoSlab;  // payload; one reference goes along
  uint32_t length = 0;
};

class OperationHost {
 public:
  virtual ~OperationHost() = default;
  virtual void send_part(const class Operation& operation, const PartFrame& frame) = 0;
  virtual void count(Counter counter, uint64_t amount) = 0;
  // Of now, unless the event says when. The host adds which communicator it is of.
  virtual void record(Event event) = 0;
  // Now, as finely as it is known; 0: nothing is recorded, and nobody needs to know.
  virtual uint64_t fine_ns() = 0;
};

struct OperationSetup {
  wire::StepKind kind = wire::StepKind::kStep;
  uint64_t step = 0;
  uint32_t group_index = 0;
  std::shared_ptr<const void> keeps_alive;  // owner of layout, group and table
  const GroupLayout* layout = nullptr;
  const Group* group = nullptr;
  const TensorTable* table = nullptr;
  uint32_t machine = 0, machines = 1;
  bool norms = false;  // measure what the lossy codecs lose
  uint64_t draw_seed = 0, draw_communicator = 0;
  std::vector<LocalSegment> segments;
  std::vector<std::byte> descriptor;  // calls: 64 bytes in front of scatter chunk 0
};

class Operation {
 public:
  enum class State : uint8_t { kExchanging, kComplete };

  Operation(OperationSetup setup, const kernels::Lane& lane, BufferPool& pool, OperationHost& host,
            uint64_t now_ns);

  State state() const { return state_; }
  wire::StepKind kind() const { return setup_.kind; }
  uint64_t step() const { return setup_.step; }
  uint32_t group_index() const { return setup_.group_index; }
  uint64_t started_ns() const { return started_ns_; }
  uint64_t last_progress_ns() const { return last_progress_ns_; }
  // Present on some machine; known when complete.
  bool present_anywhere(uint32_t segment) const { return union_.test(segment); }
  // No frame of this operation came from the machine yet.
  bool silent(uint32_t machine) const { return !peers_[machine].heard; }
  // Something that only this machine can send is still missing.
  bool waits_for(uint32_t machine) const;
  const OperationSetup& setup() const { return setup_; }
  Event event(EventKind kind) const;  // of this operation
  // What was encoded here of each segment, first and second encodings alike; empty unless asked
  // for.
  const std::vector<Norms>& norms() const { return norms_; }

  // At most one part's work. False: nothing to do until a frame or a slab arrives.
  Result<bool> advance(uint64_t now_ns);
  // A frame of this operation whose checksums were verified. Duplicates are ignored. A payload that
  // already lies in a slab comes with it (`owned`), so that holding it costs no copy.
  Status receive(const wire::FrameHeader& header, std::span<const std::byte> payload,
                 uint64_t now_ns, Slab* owned = nullptr);
  // The step has failed somewhere: takes what needs no answer of this machine, so that what another
  // machine may have completed completes here too.
  Status receive_result(const wire::FrameHeader& header, std::span<const std::byte> payload,
                        uint64_t now_ns);

 private:
  struct Arrival {  // one machine's part of an own chunk (allgather: of any, the own one included)
    bool here = false;
    Slab held;
    uint32_t offset = 0, length = 0;  // of the ranges in it
  };
  struct Live {  // the frame in hand, not copied
    uint32_t machine = UINT32_MAX;
    std::span<const std::byte> payload;
  };
  struct OwnChunk {
    uint32_t arrived = 0;
    bool done = false;  // reduced or combined
  };
  struct PeerState {
    uint32_t next_chunk = 0;  // of its shard, to send
    uint32_t unanswered = 0;
    bool heard = false;
    bool contributed = false;  // some part of its contribution is here: its presence is known
    Presence presence;
    std::vector<bool> gathered;  // chunks of its shard decoded here
  };
  struct Payload {  // a parsed data payload
    Presence presence;
    std::span<const std::byte> ranges;
  };

  struct Encoded {                    // what encode_part wrote
    uint32_t offset = 0, length = 0;  // of the ranges, behind descriptor and bitmap
    uint32_t end() const { return offset + length; }
  };

  bool allgather() const { return setup_.layout->collective() == Collective::kAllgather; }
  const Segment& planned(const Slice& slice) const { return setup_.group->segments[slice.segment]; }
  DType dtype(const Slice& slice) const { return (*setup_.table)[planned(slice).tensor].dtype; }
  uint64_t scatter_prefix(uint32_t chunk) const;
  Result<Payload> parse(const wire::FrameHeader& header, std::span<const std::byte> payload,
                        const Part& part, uint64_t prefix) const;
  Status check_ranges(const Part& part, const Payload& parsed) const;
  Status receive_contribution(const wire::FrameHeader& header, std::span<const std::byte> payload,
                              Slab* owned);
  Status hold(uint32_t chunk, uint32_t machine, std::span<const std::byte> ranges, Slab* owned);
  Status learn_presence(uint32_t machine, const Presence& presence);
  Status learn_union(const Presence& presence);
  Result<Presence> learn_union();
  Result<bool> finish_ready();
  Result<bool> finish_chunk(uint32_t chunk, const Live& live);
  void close_chunk(uint32_t chunk);
  Arrival& arrival(uint32_t chunk, uint32_t machine) {
    return arrivals_[size_t{chunk} * setup_.machines + machine];
  }
  std::vector<std::span<const std::byte>> ranges_of(uint32_t chunk, const Live& live);
  Status take_contribution(uint32_t machine, const Slice& slice, std::span<const std::byte>& rest);
  bool reduce_locally();

  // operation_scatter.cc
  Status receive_gather(const wire::FrameHeader& header, std::span<const std::byte> payload);
  Result<bool> reduce_chunk(uint32_t chunk, const Live& live);
  Result<uint32_t> reduce_ranges(uint32_t chunk, const Live& live, const Presence& present,
                                 std::span<std::byte> out);
  bool send_scatter();
  bool send_part_of(uint32_t machine);

  // operation_allgather.cc
  bool send_gather();
  Status combine_chunk(uint32_t chunk, const Live& live);

  void send_to_all(wire::Phase phase, uint32_t chunk, bool bitmap, SlabId slab, uint32_t length);
  Encoded encode_part(const Part& part, uint32_t chunk, std::span<std::byte> out);
  // Where a slice's result and its residual go, for any job that has both.
  template <class Job>
  Job job_into(const LocalSegment& segment, const Slice& slice) {
    Job job{.spec = planned(slice).spec};
    job.elements = slice.elements;
    job.dtype = dtype(slice);
    job.targets = targets(segment, slice);
    job.target_count = static_cast<uint32_t>(segment.outputs.size());
    if (segment.residual_tentative == nullptr) return job;
    job.residual_in = segment.residual_confirmed + slice.first_element;
    job.residual_out = segment.residual_tentative + slice.first_element;
    job.residual_scale = segment.residual_scale;
    return job;
  }
  kernels::RawView raw_view(const LocalSegment& segment, const Slice& slice);
  void* const* targets(const LocalSegment& segment, const Slice& slice);
  kernels::DrawKey draw_key(const Slice& slice, wire::Phase phase) const;
  void note(const Slice& slice, const kernels::RangeStats& stats);
  void find_residuals_to_keep();
  bool keep_residuals();
  void check_complete();
  // Of arithmetic over a part; `machine`: whose results they were.
  uint64_t begin_span(const Part& part) const;  // 0: too small to be timed
  void record_span(EventKind kind, uint64_t began_ns, const Part& part, uint32_t machine = 0);

  OperationSetup setup_;
  const kernels::Lane& lane_;
  BufferPool& pool_;
  OperationHost& host_;
  State state_ = State::kExchanging;
  uint64_t started_ns_, last_progress_ns_;
  Presence own_presence_, union_;
  bool union_known_ = false;
  std::vector<PeerState> peers_;   // by machine; the own entry is unused
  std::vector<OwnChunk> own_;      // chunks of the own shard (allgather: all chunks)
  std::vector<Arrival> arrivals_;  // own chunk * machines + machine
  std::vector<uint32_t> ready_;    // own chunks that are complete and not done
  uint32_t own_left_ = 0;          // own chunks not done yet
  uint32_t gathers_left_ = 0;      // parts of others' shards not decoded yet
  uint32_t sends_left_ = 0;        // own contributions not sent yet
  uint32_t next_peer_ = 0;         // scatter: offset of the peer to try next
  uint32_t next_own_ = 0;          // allgather: chunk to encode next; one machine: to reduce next
  uint32_t lowest_ = 0;            // lowest own chunk that is not done
  bool results_only_ = false;
  std::vector<uint32_t> to_keep_;  // segments whose residual is carried over, the last one next
  uint64_t kept_elements_ = 0;     // of the last one
  std::vector<Norms> norms_;
  std::vector<const void*> scratch_inputs_;
  std::vector<void*> scratch_targets_;
  std::vector<kernels::Contribution> contributions_;
};

}  // namespace cgx::scheduler
