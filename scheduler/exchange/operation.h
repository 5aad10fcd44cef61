// One operation: a group of one step (or one call) on its way through one machine, as its schedule
// says (scheduler/exchange/schedule.h).
//
//   states: exchanging -> complete
//                      -> ended (badly; goes when the site has answered everything)
//
// A move is made when those before it are done: frames are sent, and arithmetic asked for, at once,
// but for reductions that read no frame in hand, which wait for advance(). Arithmetic happens at a
// site: its move is done when the site has answered, which may be at once. Explicit state, nothing
// blocks: advance() asks for at most one part, receive() handles one frame. Owned by one
// communicator. Received frames are used in place when everything else is there and the site reads
// them at once, and copied to a slab otherwise (counted).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "proto/wire/frame.h"
#include "proto/wire/status.h"
#include "scheduler/counters.h"
#include "scheduler/exchange/buffer_pool.h"
#include "scheduler/exchange/operation_setup.h"
#include "scheduler/exchange/site.h"
#include "scheduler/plan/losses.h"
#include "scheduler/recorder.h"

namespace cgx::scheduler {

// What a frame is about; the port completes the header.
struct PartFrame {
  uint32_t machine = 0;  // to
  uint8_t round = 0;
  uint32_t part = 0;
  bool bitmap = false, descriptor = false;
  SlabId slab = kNoSlab;  // payload; one reference goes along
  uint32_t length = 0;
};

class OperationPort {
 public:
  virtual ~OperationPort() = default;
  virtual void send_part(const class Operation& operation, const PartFrame& frame) = 0;
  virtual void count(Counter counter, uint64_t amount) = 0;
  // Of now, unless the event says when. The port adds which communicator it is of.
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

  // What one operation leaves for the next of its runner.
  struct Memory;

  Operation(OperationSetup setup, Site& site, BufferPool& pool, OperationPort& port,
            uint64_t now_ns);
  Operation(OperationSetup setup, Site& site, BufferPool& pool, OperationPort& port,
            uint64_t now_ns, Memory memory);
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
  bool silent(uint32_t machine) const { return !heard_[machine]; }
  // Results may go there even after stop_sending().
  bool passes_on_to(uint32_t machine) const {
    return state_ == State::kExchanging && !ended_ && setup_.schedule->passes_on_to(machine);
  }
  // Complete, and nobody asks it anything any more: only its memory stays.
  void retire();
  // In the memory of one that is retired, and was over the same site; null: in its own.
  static std::unique_ptr<Operation> begin_in(std::unique_ptr<Operation> retired,
                                             OperationSetup setup, Site& site, BufferPool& pool,
                                             OperationPort& port, uint64_t now_ns);
  std::vector<LocalSegment> take_segments() { return std::move(setup_.segments); }
  // The earliest round of which a frame of the machine is missing; 0: none is. Of parts that go the
  // same course only the first that is not done counts: before its end nobody sends much more.
  uint32_t waits_for(uint32_t machine) const;
  const OperationSetup& setup() const { return setup_; }
  Event event(EventKind kind) const;  // of this operation
  // What was encoded here of each segment, first and second encodings alike; empty unless asked
  // for.
  const std::vector<Norms>& norms() const { return work_->norms(); }
  const std::vector<LossSample>& losses() const { return work_->losses(); }
  // Of the piece that the setup asked for, once complete; nothing if its tensor is absent.
  const std::optional<uint64_t>& result_hash() const { return result_hash_; }
  bool tickets_open() const { return !asked_.empty(); }
  std::optional<AwaitedInput> awaited_input() const {
    return tickets_open() ? work_->awaited() : std::nullopt;
  }
  // Nothing new is sent, but advance() can still make results of what is here.
  bool results_ready() const { return results_only_ && next_ready() != ready_.end(); }

  // At most one part's work. False: nothing to do until a frame or a slab arrives.
  Result<bool> advance(uint64_t now_ns);
  // A frame of this operation whose checksums were verified. Duplicates are ignored. A payload that
  // already lies in a slab comes with it (`owned`), so that holding it costs no copy.
  Status receive(const wire::FrameHeader& header, std::span<const std::byte> payload,
                 uint64_t now_ns, Slab* owned = nullptr);
  // The step has failed somewhere: nothing more is sent but results that others may have without
  // this machine. Takes what needs no answer of this machine, so that what another may have
  // completed completes here too. Where a rank's own gradient was still waited for, nobody can have
  // completed it: then nothing that comes counts any more.
  void stop_sending();
  Status receive_result(const wire::FrameHeader& header, std::span<const std::byte> payload,
                        uint64_t now_ns);
  // The site has answered what was asked with this ticket.
  Status answered(Ticket ticket, const SiteAnswer& answer, uint64_t now_ns);
  // Badly: nothing that comes now counts. Stays until no ticket is open.
  void end();

 private:
  struct PartState {
    uint32_t begun = 0, done = 0;  // moves of its course, a bit each
    bool closed = false;           // all are done
  };
  struct FlowState {
    uint32_t next = 0;    // part to begin
    uint32_t lowest = 0;  // that is not done
  };
  struct Held {  // a frame that came, or what was made here
    bool here = false;
    Slab slab;
    uint32_t offset = 0, length = 0;  // of the ranges in it
  };
  struct Live {  // the frame in hand, not copied
    uint32_t frame = Course::kNone;
    std::span<const std::byte> ranges;
    std::span<const std::byte> payload;  // from the bitmap on, where there is one
    Slab* owned = nullptr;
    Slab copy;  // of the payload, where it was needed
    bool used = false;
  };
  struct Payload {  // a parsed data payload
    Presence presence;
    std::span<const std::byte> ranges;
    std::span<const std::byte> payload;  // without the descriptor
  };
  struct MoveOf {
    uint32_t part = 0, move = 0;
  };
  struct Asked {  // of the site, and not answered
    Ticket ticket = 0;
    SiteJobKind kind = SiteJobKind::kEncode;
    MoveOf of;
    uint32_t machine = 0;  // decode: whose result it is
    Slab slab;             // encode, reduce: what is written; decode: what is read
    uint32_t offset = 0;   // encode, reduce: of the ranges, behind descriptor and bitmap
    uint64_t count = 0;    // keep: elements
    uint64_t began_ns = 0;
  };

  const Schedule& schedule() const { return *setup_.schedule; }
  const Move& move_of(const MoveOf& of) const {
    return schedule().course(of.part).moves()[of.move];
  }
  Held& frame_at(uint32_t part, uint32_t frame) {
    return frames_[schedule().first_frame(part) + frame];
  }
  Held& buffer_at(uint32_t part, uint32_t buffer) {
    return buffers_[schedule().first_buffer(part) + buffer];
  }
  Presence& heard_presence(uint8_t round, uint32_t machine) {
    return presences_[(size_t{round} - 1) * setup_.machines + machine];
  }

  // operation.cc
  Result<bool> begin_next();
  Result<bool> begin(uint32_t flow);
  Status follow(uint32_t part, Live& live);
  Status follow_move(const MoveOf& of, Live& live);
  Status done(const MoveOf& of);
  void close_part(uint32_t part);
  std::vector<MoveOf>::const_iterator next_ready() const;
  Result<bool> finish_ready();
  Result<bool> finish(const MoveOf& of, Live& live);
  Result<bool> reduce(const MoveOf& of, const Live& live);
  std::span<const SiteContribution> contributions(const MoveOf& of, const Live& live);
  void send(const MoveOf& of);
  Status forward(const MoveOf& of, Live& live);
  Status check_complete();
  // Of arithmetic over a part; `machine`: whose results they were.
  uint64_t begin_span(const Part& part) const;  // 0: too small to be timed
  void record_span(EventKind kind, uint64_t began_ns, const Part& part, uint32_t machine);

  // operation_frames.cc
  struct Expected {
    uint32_t frame = 0, move = 0;  // of the part's course
  };
  Result<Expected> expected(const wire::FrameHeader& header) const;
  uint64_t prefix_bytes(uint32_t part, uint32_t round) const;
  Result<Payload> parse(const wire::FrameHeader& header, std::span<const std::byte> payload,
                        bool in_rack) const;
  Status check_ranges(const Part& part, const Payload& parsed, bool in_rack) const;
  Status take_frame(const wire::FrameHeader& header, const Expected& what, const Payload& parsed,
                    Slab* owned);
  bool all_here(uint32_t part, const Move& receive);
  Status begin_if_last(uint32_t part);
  Result<FrameBytes> hold(uint32_t machine, std::span<const std::byte> ranges, Slab* owned,
                          Slab& held);
  Status copy(uint32_t machine, std::span<const std::byte> bytes, Slab& into);
  Status copy_live(uint32_t machine, Live& live);
  Status learn_presence(uint8_t round, uint32_t machine, const Presence& presence);
  Status learn_union(const Presence& presence);
  Result<const Presence*> presence_of_sum(const Move& move, uint32_t part);
  const Presence& presence_of(uint32_t part, const Source& source);

  // operation_site.cc
  Status ask(Asked asked, SiteJob job);
  Status ask_encode(const MoveOf& of, Slab slab);
  Status ask_decode(const MoveOf& of, Live& live);
  void release_sources(const MoveOf& of);
  uint32_t write_front(const MoveOf& of, const Presence& presence, std::span<std::byte> out) const;
  Status take(Asked& asked, const SiteAnswer& answer);
  Status made(Asked& asked, const SiteAnswer& answer);
  void find_residuals_to_keep();
  Result<bool> keep_residuals();
  void kept(const Asked& asked);

  OperationSetup setup_;
  std::unique_ptr<SiteOperation> work_;
  const bool site_consumes_, site_reads_;
  BufferPool& pool_;
  OperationPort& port_;
  State state_ = State::kExchanging;
  uint64_t started_ns_, last_progress_ns_;
  Presence own_presence_, union_;
  Presence partial_;  // of sums that are not results yet, once one was begun
  bool union_known_ = false;
  std::vector<bool> heard_;          // by machine
  std::vector<Presence> presences_;  // of frames that are added: by round and machine; empty before
  std::vector<PartState> parts_;
  std::vector<FlowState> flows_;
  std::vector<Held> frames_, buffers_;  // of all parts, as the schedule numbers them
  std::vector<MoveOf> ready_;           // reductions whose sources are all here, not asked for
  std::vector<Asked> asked_;
  uint32_t parts_left_ = 0;  // not done
  uint32_t to_begin_ = 0;    // parts of flows, not begun
  uint32_t next_flow_ = 0;   // to try next
  bool results_only_ = false, ended_ = false;
  std::vector<uint32_t> to_keep_;  // segments whose residual is carried over, the last one next
  uint64_t kept_elements_ = 0;     // of the last one
  bool keeping_ = false;           // the site is asked
  bool hash_asked_ = false;
  std::optional<uint64_t> result_hash_;
  std::vector<SiteContribution> contributions_;
};

struct Operation::Memory {
  std::unique_ptr<SiteOperation> work;
  std::vector<bool> heard;
  std::vector<Presence> presences;
  std::vector<PartState> parts;
  std::vector<FlowState> flows;
  std::vector<Held> frames, buffers;
  std::vector<MoveOf> ready;
  std::vector<Asked> asked;
  std::vector<uint32_t> to_keep;
  std::vector<SiteContribution> contributions;
};

}  // namespace cgx::scheduler
