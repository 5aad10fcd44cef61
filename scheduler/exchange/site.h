// A site: a place where arithmetic happens, with the residuals that live there. The port through
// which operations compute, so that they need not know what computes: this thread, another core, a
// GPU's worker, or a simulator that only knows the price.
//
// A job is about one part, or one piece of a segment. It is asked for with a ticket and answered
// once: at once, as the return value, or later, in poll(). Jobs of one operation may be answered in
// any order; an operation asks for a job only when all that the job reads is there, so jobs under
// way never touch the same bytes. Nothing in the scheduler is called from inside ask().
//
// Life: begin() .. ask() .. [end()] .. destroyed. What an operation's places, slabs and residuals
// name stays where it is until the last ticket is back (PROTOCOL 32). After end() a site answers
// what is under way within a second, if need be with DEVICE_LOST, and touches nothing afterwards.
// Thread rule: one site belongs to one engine; every call is made on its thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "proto/wire/status.h"
#include "scheduler/exchange/buffer_pool.h"
#include "scheduler/exchange/operation_setup.h"
#include "scheduler/plan/losses.h"

namespace cgx::scheduler {

struct PlanFacts;

using Ticket = uint64_t;

// Encoded bytes: in a slab, or as the transport has them in its hand.
struct FrameBytes {
  SlabId slab = kNoSlab;
  uint32_t offset = 0, length = 0;
  const std::byte* live = nullptr;  // valid inside ask(); only for sites that consume there
};

// What is added to a part's sum.
struct SiteContribution {
  bool own_ranks = false;  // what the local ranks have, exactly; otherwise the frame
  bool in_rack = false;    // the frame has the rack's codec
  FrameBytes frame;
  const Presence* presence = nullptr;  // which segments the frame has
};

enum class SiteJobKind : uint8_t {
  kEncode,       // the own ranks' part, into a slab
  kDecode,       // a result, into every local output
  kReduce,       // contributions: their sum encoded into a slab and, with `results`, decoded
  kCombine,      // encoded contributions, the own one too, into every local output
  kLocalReduce,  // one machine only: the own ranks' sum into every local output
  kKeep,         // a residual that no job writes: carried over, in this step's units
  kHash,         // of a piece of the result
};

struct SiteJob {
  SiteJobKind kind = SiteJobKind::kEncode;
  uint32_t part = 0;                            // of the layout
  const Presence* presence = nullptr;           // segments that take part; lives until the answer
  FrameBytes frame;                             // decode
  std::span<const SiteContribution> from = {};  // reduce, combine: in this order; inside ask() only
  bool results = true;                          // reduce: into every local output, too
  bool in_rack = false;                         // encode: with the rack's codec
  SlabId into = kNoSlab;                        // encode, reduce
  uint32_t offset = 0;                          // there, of the first range
  uint32_t segment = 0;                         // keep, hash
  uint64_t first = 0, count = 0;                // keep: elements, hash: bytes
};

// How long a job's lists are: of each slice so many ranks' places and contributions.
struct JobLists {
  uint64_t slices = 0, ranks = 0, contributions = 0;
};

struct SiteAnswer {
  Status status;
  uint32_t bytes = 0;  // encode, reduce: of the ranges written
  uint64_t hash = 0;
  uint64_t nonfinite_buckets = 0, saturated = 0;
};

// Told of answers that come later.
class SiteEvents {
 public:
  virtual ~SiteEvents() = default;
  virtual void site_answered(Ticket ticket, const SiteAnswer& answer) = 0;
};

// A rank whose gradient a job waits for although it was submitted: its GPU is behind.
struct AwaitedInput {
  uint32_t segment = 0;
  ArenaId arena = kNoArena;  // of the rank
};

// One operation at a site. Destroyed when no ticket is under way.
class SiteOperation {
 public:
  virtual ~SiteOperation() = default;
  // The answer, or nothing: then it comes through SiteEvents.
  virtual std::optional<SiteAnswer> ask(Ticket ticket, const SiteJob& job) = 0;
  // Whether, with everything answered, it can do the arithmetic of another operation; then it may.
  virtual bool reusable() const { return false; }
  virtual void begin_again(const OperationSetup& setup) { (void)setup; }
  virtual void end() {}  // nothing more is asked, and nobody wants the answers for themselves
  // The step has failed. Jobs that wait for a rank's gradient, as those on a GPU may for long, and
  // those behind them are answered with CANCELLED now, the others as ever.
  virtual void give_way() {}
  // The first that a job has waited for so far, for some time.
  virtual std::optional<AwaitedInput> awaited() const { return {}; }
  // By segment; of all jobs that were answered. Empty unless the setup asked for norms.
  virtual const std::vector<Norms>& norms() const = 0;
  // Likewise, where the setup names strengths; measured on some of the values of each part.
  virtual const std::vector<LossSample>& losses() const = 0;
};

// Two slots of floats for one tensor's error feedback, zero at first.
class SiteResidual {
 public:
  virtual ~SiteResidual() = default;
  // Puts pages behind some more of it, which takes its time: on any thread, before it is used. How
  // many bytes; 0: they are all there.
  virtual uint64_t touch() { return 0; }
};
// Makes one of so many elements, whose pages touch() may still have to make: on any thread, even
// when the site has gone. RESOURCE_EXHAUSTED: there is no memory.
using ResidualMaker = std::function<Result<std::shared_ptr<SiteResidual>>(uint64_t elements)>;
// Has the site make whatever else a plan needs there: on any thread, even when the site has gone.
using SitePreparer = std::function<Status(const PlanFacts& facts)>;

class Site {
 public:
  virtual ~Site() = default;
  // A job's frames are read inside ask(), even if it is answered later. Where not, they are held in
  // slabs first.
  virtual bool consumes_inside() const = 0;
  // False: nobody reads the ranges that frames carry, so frames are not copied either (a simulator
  // that only knows the price). REQUIRES then: every rank has every tensor, so no frame needs more.
  virtual bool reads_frames() const { return true; }
  // The setup outlives what is returned.
  virtual std::unique_ptr<SiteOperation> begin(const OperationSetup& setup) = 0;
  virtual ResidualMaker residual_maker() const = 0;
  virtual SitePreparer preparer() const { return {}; }  // empty: it needs nothing else
  // Another process makes all this, which may be slow to answer.
  virtual bool residuals_elsewhere() const { return false; }
  // UNIMPLEMENTED, by name, for what no job of this site may be about.
  virtual Status takes(const CodecSpec& spec, DType dtype) const {
    (void)spec, (void)dtype;
    return {};
  }
  // RESOURCE_EXHAUSTED, by name, for lists that are longer than it takes at once.
  virtual Status fits(const JobLists& lists) const {
    (void)lists;
    return {};
  }
  // Of values that a job decodes before it adds them, at most; each range begins a line of 64.
  virtual uint64_t scratch_bytes() const { return UINT64_MAX; }
  // How many jobs may do that at the same time, each in a piece of the plan's memory; 0: the site
  // has memory for it.
  virtual uint32_t decoded_pieces() const { return 0; }
  // Another one of the same kind and memory, which may compute on another thread at the same time,
  // as long as their jobs touch different bytes. Null: there is none.
  virtual std::unique_ptr<Site> twin() const { return nullptr; }
  // Delivers answers; returns how many. An inline site has none.
  virtual int poll(SiteEvents& events, uint64_t now_ns) {
    (void)events, (void)now_ns;
    return 0;
  }
  // An error: it computes nothing any more, and says so to whoever asks.
  virtual Status lost() const { return {}; }
  virtual uint64_t next_answer_ns() const { return UINT64_MAX; }  // when to poll; UINT64_MAX: never
  // The engine goes: nothing is asked or polled any more, and once this has returned, nothing that
  // jobs name is touched by a thread of this process.
  virtual void stop() {}
};

}  // namespace cgx::scheduler
