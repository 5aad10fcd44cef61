// Runs the calls of a communicator: single-tensor operations outside steps, identified by number,
// submitted in the same order by all ranks, none of them kCallWindow or more after one that is in
// flight. Calls travel raw: they are what people use for exact things (metrics, broadcasts of zeros
// and ones, barriers).
//
// Every machine's first scatter frame carries its descriptor, so a disagreement is found when the
// second side has submitted, before any data is used. A call has one outcome: what completed on
// some machine completes on all, and what fails fails on all, on ranks that have yet to submit it
// too. Owned by one communicator.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "scheduler/communicator/members.h"
#include "scheduler/communicator/step_runner.h"
#include "scheduler/exchange/operations.h"

namespace cgx::scheduler {

constexpr uint32_t kCallWindow = 4;

// 64 bytes in front of each shard's first part. What a rank said, and how this machine cuts it:
// machines that differ in either differ in the descriptor.
struct CallDescriptor {
  uint64_t elements = 0;
  DType dtype = DType::kF32;
  ReduceOp op = ReduceOp::kSum;
  uint16_t reserved = 0;
  Way way = {};
  uint64_t part_raw_bytes = 0, part_encoded_bytes = 0;
  uint8_t reserved3[24] = {};
  friend bool operator==(const CallDescriptor&, const CallDescriptor&) = default;
  bool says_as(const CallDescriptor& other) const {
    return elements == other.elements && dtype == other.dtype && op == other.op;
  }
  uint64_t hash() const;
  std::string describe() const;
};
static_assert(sizeof(CallDescriptor) == 64 && std::has_unique_object_representations_v<Way>);

class CallRunner {
 public:
  explicit CallRunner(const RunnerPorts& ports)
      : ports_(ports), view_(ports.view), stash_(ports.site, ports.pool, ports.host) {}
  // What calls of any size may have to hold.
  static SlabCounts slabs_needed(const View& view, const Site& site, uint64_t slab_bytes);

  struct Submission {
    CallDescriptor descriptor;
    Place input, output;
    uint64_t cookie = 0;
  };
  // An error with code MISMATCH has failed the call for every local rank: tell the others.
  Status submit(uint32_t rank, uint64_t call, const Submission& submission, uint64_t now_ns);
  Result<bool> work(uint64_t now_ns);
  Status receive(const wire::FrameHeader& header, std::span<const std::byte> payload,
                 uint64_t now_ns);
  // The site has answered one of the operations.
  Status settle(Operation& operation, Ticket ticket, const SiteAnswer& answer, uint64_t now_ns);
  void sweep() { operations_.sweep(); }
  bool tickets_open() const { return operations_.tickets_open(); }
  bool settling() const { return operations_.settling(); }  // after freeze(): not all is said yet
  // This call ends in an error on every local rank that submitted it or will, once the site has let
  // go of it. False: it had failed already, or is over.
  bool fail_call(uint64_t call, const Status& why);
  void fail(const Status& why);  // for good: every open call ends
  // Until restart(): work() and receive() make results of what others have sent, or do nothing.
  void freeze(bool take_results);
  // Calls below `calls_end` that are not complete have failed on every machine.
  void restart(ViewPtr view, uint64_t calls_end, const Status& why);
  uint64_t submitted_end() const;      // first call no local rank has submitted
  std::vector<uint64_t> open() const;  // submitted here, neither complete nor failed
  const std::deque<uint64_t>& done() const { return done_; }  // the last ones that completed here
  uint64_t next_of(uint32_t rank) const {                     // call the rank submits next
    return rank < next_of_rank_.size() ? next_of_rank_[rank] : 0;
  }
  bool unfinished(uint32_t rank) const;    // it waits for a call
  bool spoken_since(uint64_t call) const;  // some rank waits for this call or a later one
  // Calls this runner failed by itself and that the other machines must hear of.
  std::vector<std::pair<uint64_t, Status>> take_failures() { return std::move(failures_); }

  const std::vector<std::unique_ptr<Operation>>& operations() const { return operations_.open(); }
  bool operations_open() const { return !operations_.open().empty(); }
  uint64_t completed_end() const { return lowest(); }  // first call not over for every local rank
  uint64_t oldest_wait_ns() const;  // since when the oldest open call waits; 0: none
  std::vector<uint32_t> missing_ranks()
      const;  // local ranks that have not submitted the oldest call
  const StepRunner::Totals& totals() const { return totals_; }

 private:
  struct Shape {  // what follows from a descriptor, kept while it repeats
    CallDescriptor descriptor;
    TensorTable table;
    Group group;
    GroupLayout layout;
    Schedule schedule;
  };
  struct Call {
    CallDescriptor descriptor;
    std::vector<bool> submitted;
    std::vector<Submission> entries;
    uint32_t count = 0;
    uint64_t first_ns = 0;
    bool started = false;
    Status failure;       // not OK: later submits are answered with it
    bool untold = false;  // and earlier ones will be
    bool over(uint32_t ranks) const { return !failure.ok() && !untold && count == ranks; }
  };

  Call& call_at(uint64_t number);
  std::shared_ptr<const Shape> shape_for(const CallDescriptor& descriptor);
  static Shape make_shape(const CallDescriptor& descriptor, const View& view, uint64_t slab_bytes);
  Status start(uint64_t number, Call& call, uint64_t now_ns);
  Status deliver(Operation& operation, const Call& call, const wire::FrameHeader& header,
                 std::span<const std::byte> payload, uint64_t now_ns, Slab* owned = nullptr);
  Status receive_stashed(uint64_t number, Operation& operation, uint64_t now_ns);
  void answer(const Call& call, uint64_t number, uint32_t rank, const Status& status);
  void tell_failure(uint64_t number);
  void finish_operations(uint64_t now_ns);
  void retire_failed();
  uint64_t lowest() const;
  uint64_t submitted_by_all() const;  // first call that some local rank has yet to submit
  uint64_t lowest_live() const;       // first call that is not over and has not failed
  std::optional<uint64_t> oldest_of(uint32_t rank) const;  // that the rank has in flight
  Operation* find(uint64_t number);
  static constexpr size_t kDoneKept = 2 * kCallWindow;
  enum class Mode : uint8_t { kRunning, kResultsOnly, kStopped };

  RunnerPorts ports_;
  ViewPtr view_;  // of the term
  Mode mode_ = Mode::kRunning;
  std::map<uint64_t, Call> calls_;  // open ones, and failed ones not submitted by all local ranks
  std::vector<uint64_t> next_of_rank_;
  Operations operations_;
  Stash stash_;
  std::shared_ptr<const Shape> shape_;
  std::vector<std::pair<uint64_t, Status>> failures_;
  std::deque<uint64_t> done_;
  StepRunner::Totals totals_;
};

}  // namespace cgx::scheduler
