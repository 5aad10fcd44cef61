// One operation: a group of one step (or one call) on its way through one machine.
//
//   states: exchanging -> complete
//                      -> ended (badly; goes when the site has answered everything)
//   scatter
//     own side, per peer:   encode part -> send -> (answered by the gather frame of that part)
//     own shard, per chunk: wait for every machine's part -> reduce, encode once -> send to all
//     others' shards:       gather frame -> decode into every local rank's output
//   allgather
//     per chunk:            encode part -> keep, send to all -> wait for every machine's part ->
//                           combine into every local rank's output
//
// Arithmetic happens at a site: what follows from a job happens when the site has answered, which
// may be at once. Explicit state, nothing blocks: advance() asks for at most one part, receive()
// handles one frame. Owned by one communicator. Received frames are used in place when everything
// else is there and the site reads them at once, and copied to a slab otherwise (counted). Both
// collectives write a chunk's outputs only after what this machine contributes to it was encoded:
// inputs may be outputs.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "proto/wire/frame.h"
#include "proto/wire/status.h"
#include "scheduler/buffer_pool.h"
#include "scheduler/operation_setup.h"
#include "scheduler/recorder.h"
#include "scheduler/site.h"
#include "scheduler/snapshot.h"

namespace cgx::scheduler {

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
  virtual Ticket new_ticket() = 0;
  // The answer comes later: it goes to Operation::answered().
  virtual void expect(Ticket ticket, class Operation& operation) = 0;
};

class Operation {
 public:
  enum class State : uint8_t { kExchanging, kComplete };

  Operation(OperationSetup setup, Site& site, BufferPool& pool, OperationHost& host,
            uint64_t now_ns);
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;

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
  const std::vector<Norms>& norms() const { return work_->norms(); }
  // Of the piece that the setup asked for, once complete; nothing if its tensor is absent.
  const std::optional<uint64_t>& result_hash() const { return result_hash_; }
  bool tickets_open() const { return !asked_.empty(); }
  // Nothing more is sent, but advance() can still make results of what is here.
  bool results_ready() const { return results_only_ && allgather() && !ready_.empty(); }

  // At most one part's work. False: nothing to do until a frame or a slab arrives.
  Result<bool> advance(uint64_t now_ns);
  // A frame of this operation whose checksums were verified. Duplicates are ignored. A payload that
  // already lies in a slab comes with it (`owned`), so that holding it costs no copy.
  Status receive(const wire::FrameHeader& header, std::span<const std::byte> payload,
                 uint64_t now_ns, Slab* owned = nullptr);
  // The step has failed somewhere: nothing more is sent. Takes what needs no answer of this
  // machine, so that what another machine may have completed completes here too.
  void stop_sending() { results_only_ = true; }
  Status receive_result(const wire::FrameHeader& header, std::span<const std::byte> payload,
                        uint64_t now_ns);
  // The site has answered what was asked with this ticket.
  Status answered(Ticket ticket, const SiteAnswer& answer, uint64_t now_ns);
  // Badly: nothing that comes now counts. Stays until no ticket is open.
  void end();

 private:
  enum class PartState : uint8_t { kWaiting, kEncoding, kSent, kDecoding, kDone };
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
    std::vector<PartState> parts;  // of its shard
  };
  struct Payload {  // a parsed data payload
    Presence presence;
    std::span<const std::byte> ranges;
  };

  struct Asked {  // of the site, and not answered
    Ticket ticket = 0;
    SiteJobKind kind = SiteJobKind::kEncode;
    uint32_t shard = 0, chunk = 0;
    Slab slab;            // encode, reduce: what is written; decode: what is read
    uint32_t offset = 0;  // encode, reduce: of the ranges, behind descriptor and bitmap
    uint64_t count = 0;   // keep: elements
    uint64_t began_ns = 0;
  };

  bool allgather() const { return setup_.layout->collective() == Collective::kAllgather; }
  uint64_t scatter_prefix(uint32_t chunk) const;
  Result<Payload> parse(const wire::FrameHeader& header, std::span<const std::byte> payload,
                        const Part& part, uint64_t prefix) const;
  Status check_ranges(const Part& part, const Payload& parsed) const;
  Status receive_contribution(const wire::FrameHeader& header, std::span<const std::byte> payload,
                              Slab* owned);
  Status hold(uint32_t chunk, uint32_t machine, std::span<const std::byte> ranges, Slab* owned);
  Result<FrameBytes> hold(uint32_t machine, std::span<const std::byte> ranges, Slab* owned,
                          Slab& held);
  Status learn_presence(uint32_t machine, const Presence& presence);
  Status learn_union(const Presence& presence);
  Result<Presence> learn_union();
  Result<bool> finish_ready();
  Result<bool> finish_chunk(uint32_t chunk, const Live& live);
  void close_chunk(uint32_t chunk);
  Arrival& arrival(uint32_t chunk, uint32_t machine) {
    return arrivals_[size_t{chunk} * setup_.machines + machine];
  }
  std::span<const SiteContribution> contributions(uint32_t chunk, const Live& live);
  Result<bool> reduce_locally();

  // operation_scatter.cc
  Status receive_gather(const wire::FrameHeader& header, std::span<const std::byte> payload);
  Result<bool> reduce_chunk(uint32_t chunk, const Live& live);
  void reduced(const Asked& asked, const SiteAnswer& answer);
  void decoded(const Asked& asked);
  Result<bool> send_scatter();
  Result<bool> send_part_of(uint32_t machine);

  // operation_allgather.cc
  Result<bool> send_gather();
  Result<bool> combine_chunk(uint32_t chunk, const Live& live);

  // operation_site.cc
  Status ask(Asked asked, SiteJob job);
  Status ask_encode(uint32_t shard, uint32_t chunk, Slab slab);
  Status take(Asked& asked, const SiteAnswer& answer);
  void encoded(Asked& asked, const SiteAnswer& answer);
  void kept(const Asked& asked);
  const Part& part_of(const Asked& asked) const {
    return setup_.layout->part(asked.shard, asked.chunk);
  }

  void send_to_all(wire::Phase phase, uint32_t chunk, bool bitmap, SlabId slab, uint32_t length);
  void find_residuals_to_keep();
  Result<bool> keep_residuals();
  Status check_complete();
  // Of arithmetic over a part; `machine`: whose results they were.
  uint64_t begin_span(const Part& part) const;  // 0: too small to be timed
  void record_span(EventKind kind, uint64_t began_ns, const Part& part, uint32_t machine = 0);

  OperationSetup setup_;
  const std::unique_ptr<SiteOperation> work_;
  const bool site_consumes_;
  BufferPool& pool_;
  OperationHost& host_;
  State state_ = State::kExchanging;
  uint64_t started_ns_, last_progress_ns_;
  Presence own_presence_, union_;
  bool union_known_ = false;
  std::vector<PeerState> peers_;   // by machine; the own entry is unused
  std::vector<OwnChunk> own_;      // chunks of the own shard (allgather: all chunks)
  std::vector<Arrival> arrivals_;  // own chunk * machines + machine
  std::vector<uint32_t> ready_;    // own chunks whose parts are all here, not asked for
  std::vector<Asked> asked_;
  uint32_t own_left_ = 0;      // own chunks not done yet
  uint32_t gathers_left_ = 0;  // parts of others' shards not decoded yet
  uint32_t sends_left_ = 0;    // own contributions not asked for yet
  uint32_t next_peer_ = 0;     // scatter: offset of the peer to try next
  uint32_t next_own_ = 0;      // allgather: chunk to encode next; one machine: to reduce next
  uint32_t lowest_ = 0;        // lowest own chunk that is not done
  bool results_only_ = false, ended_ = false;
  std::vector<uint32_t> to_keep_;  // segments whose residual is carried over, the last one next
  uint64_t kept_elements_ = 0;     // of the last one
  bool keeping_ = false;           // the site is asked
  bool hash_asked_ = false;
  std::optional<uint64_t> result_hash_;
  std::vector<SiteContribution> contributions_;
};

}  // namespace cgx::scheduler
