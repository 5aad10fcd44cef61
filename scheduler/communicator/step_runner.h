// Runs the steps of a communicator on this machine: collects what local ranks say, starts groups in
// plan order within the window, feeds them frames, completes them to the ranks.
//
//   a step:  collecting -> (bound to the plan that governs it) -> running -> complete
//   bound:   the step before it is complete here
//   started: all local ranks have decided every tensor of the group and its index is in the window
//   failing: nothing starts, is encoded, reduced or sent any more, but results that others had sent
//            before they heard of the failure are still decoded, and passed on where this machine
//            is on their way; restart() says what came of it
//
// Owned by one communicator. Frames that come before their group has started wait in slabs.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "scheduler/communicator/members.h"
#include "scheduler/communicator/stash.h"
#include "scheduler/exchange/operations.h"
#include "scheduler/exchange/prepared_plan.h"
#include "scheduler/exchange/residual_store.h"
#include "scheduler/exchange/step_ledger.h"

namespace cgx::scheduler {

struct RunnerPorts {
  const Members& members;  // their local ranks
  ViewPtr view;            // of the first term
  Site& site;
  BufferPool& pool;
  OperationPort& host;
};

class StepRunner {
 public:
  using PlanPtr = std::shared_ptr<const PreparedPlan>;
  // Which plan governs a step; asked once, when the step before it is complete. The step before is
  // not complete as long as that cannot be known.
  using PlanForStep = std::function<PlanPtr(uint64_t step)>;
  using KnowsPlan = std::function<bool()>;

  StepRunner(const RunnerPorts& ports, PlanForStep plan_for_step, KnowsPlan knows_plan);

  // Where a local rank that does not submit a tensor receives it: [rank][tensor].
  using Homes = std::vector<std::vector<Place>>;

  // First plan, or a new table at a commit between steps. REQUIRES: idle().
  void install(PlanPtr plan, uint64_t first_step, Homes homes);
  bool installed() const { return static_cast<bool>(plan_); }
  bool idle() const { return !current_ || !current_->any_touched(); }

  // What a local rank says; `rank` is its index in Members::local. An error is the answer to that
  // one record (STEP_ORDER, ...) unless its code is STEP_ABANDONED or MISMATCH: then the step
  // fails.
  struct Submission {
    uint32_t tensor = 0;
    Place input, output;
    uint64_t cookie = 0;
  };
  // In which unit the rank's gradients of this step are: loss scale / learning rate. Comes before
  // whatever else the rank says of the step; residuals of other steps are converted to it.
  Status declare_unit(uint32_t rank, uint64_t step, double unit);
  Status submit(uint32_t rank, uint64_t step, const Submission& submission);
  Status absent(uint32_t rank, uint64_t step, uint32_t tensor, uint64_t cookie);
  Status end(uint32_t rank, uint64_t step, uint64_t cookie, uint64_t now_ns);
  Status done(uint32_t rank, uint64_t step, bool dropped);

  // At most about one part's work. False: idle.
  Result<bool> work(uint64_t now_ns);
  Status receive(const wire::FrameHeader& header, std::span<const std::byte> payload,
                 uint64_t now_ns);

  // Until restart(): work() and receive() make results of what others have sent, or do nothing.
  void freeze(bool take_results);
  bool settling() const {  // after freeze(): not all is said yet
    return mode_ == Mode::kStopped ? operations_.tickets_open() : operations_.settling();
  }
  // After freeze(): results may still go there, from frames that are not here yet.
  bool passes_on_to(uint32_t machine) const {
    return mode_ == Mode::kResultsOnly && operations_.pass_on_to(machine);
  }
  // REQUIRES: completed_end() <= first_step <= results_end(). What local ranks have said of it and
  // of later steps is answered with `why`; returns which ranks were told, who have to say it again.
  std::vector<bool> restart(ViewPtr view, uint64_t first_step, const Status& why);
  // For good: everything said about open steps is answered with `why`, once the site has let go of
  // what was submitted.
  void fail(const Status& why);
  // The site has answered one of the operations.
  Status settle(Operation& operation, Ticket ticket, const SiteAnswer& answer, uint64_t now_ns);
  void sweep() { operations_.sweep(); }
  bool tickets_open() const { return operations_.tickets_open(); }
  // From now on the rank's records carry this attempt, and so do the answers.
  void set_attempt(uint32_t rank, uint32_t attempt) { attempts_[rank] = attempt; }
  // The term began under another plan than this machine has bound its first step to.
  void rebind(PlanPtr plan);

  uint64_t step() const { return current_ ? current_->step() : 0; }
  uint64_t completed_end() const { return completed_end_; }  // first step not complete here
  uint64_t started_end() const { return started_end_; }      // first step not started here
  // First step whose results are not all here; its ranks may not have ended the one before.
  uint64_t results_end() const;
  bool has_groups() const { return !groups_.empty(); }
  uint64_t next_step_of(uint32_t rank) const;  // that it may speak of
  bool unfinished(uint32_t rank) const;        // it has said something of a step not complete here
  bool spoken_since(uint64_t step) const;      // some rank has, of this step or a later one
  bool previous_dropped() const { return previous_dropped_; }
  // Of the step before the open one some machines keep residuals that others have dropped: no step
  // can be redone on both.
  bool closed_differently() const { return closed_differently_; }
  const PlanPtr& plan() const { return plan_; }
  const Residuals& residuals() const { return residuals_; }
  void hold_residuals_for(const PlanFacts& facts) { residuals_.hold_for(facts); }
  // Of another communicator's life. REQUIRES: no plan is installed.
  void begin_with(KeptResiduals kept) {
    borrowed_ = kept.mark;
    residuals_ = std::move(kept.residuals);
  }
  // Of the last step that completed here; before one has they are what they were.
  KeptResiduals take_residuals(uint64_t lineage);
  // Of tensors that the table lacks. REQUIRES: idle(), if it is not the one in force.
  void release_residuals_beside(const TensorTable& table) { residuals_.release_others(table); }
  std::vector<Residuals::Memory> take_freed() { return residuals_.take_freed(); }
  bool operations_open() const { return !operations_.open().empty(); }
  uint64_t waiting_since_ns() const {  // a local rank ended the open step; 0: none has
    return current_ ? current_->first_end_ns() : 0;
  }
  std::vector<uint32_t> missing_ranks() const;  // local ranks that have not ended the open step
  const std::vector<std::unique_ptr<Operation>>& operations() const { return operations_.open(); }
  // Of the last complete step: the order in which tensors became decided, and which of them no rank
  // had.
  const std::vector<uint32_t>& last_order() const { return last_order_; }
  const std::vector<uint32_t>& last_absent() const { return last_absent_; }

  // Hashes of decoded results taken since the last call: one tensor every
  // Plan::replica_check_steps steps, in turn.
  struct ResultHash {
    uint64_t step = 0;
    uint32_t tensor = 0;
    uint64_t hash = 0;
  };
  std::vector<ResultHash> take_result_hashes() { return std::exchange(result_hashes_, {}); }

  struct Totals {
    uint64_t operations = 0, exchange_ns = 0, gradient_bytes = 0;
  };
  const Totals& totals() const { return totals_; }

  // Whose due steps are measured; it outlives the runner.
  void measure_losses(LossMeter& losses) { losses_ = &losses; }

  // What the codecs made of each tensor in the steps that were measured (every Plan::stats_steps),
  // since the tensor has its codec.
  const std::vector<Norms>& norms() const { return norms_; }

 private:
  struct GroupState {
    uint32_t undecided = 0;
    bool started = false, complete = false;
  };
  enum class Closing : uint8_t { kOpen, kKept, kDropped };

  Result<StepLedger*> ledger_for(uint32_t rank, uint64_t step);
  Status say(uint32_t rank, uint64_t step, uint32_t tensor, const StepLedger::Entry& entry);
  void decided(const StepLedger& ledger, uint32_t tensor);
  void bind();
  Status close_previous();
  Result<bool> start_ready(uint64_t now_ns);
  Status start(uint32_t group, uint64_t now_ns);
  Status agree_on_unit();
  OperationSetup make_setup(uint32_t group);
  Status replay(Operation& operation, uint64_t now_ns);
  Status check_governing(const wire::FrameHeader& header);
  Status stash(const wire::FrameHeader& header, std::span<const std::byte> payload);
  Operation* find(uint32_t group);
  void finish_operations(uint64_t now_ns);
  void complete_group(const Operation& operation, uint64_t now_ns);
  void complete_tensor(const Operation& operation, uint32_t segment, uint64_t exchange_ns);
  void add_norms(const Operation& operation);
  void adopt(PlanPtr plan, uint64_t step);
  std::optional<HashWish> hash_due(const Group& group) const;
  static constexpr uint64_t kHashedBytes = 4 << 20;
  struct HashWindow {
    uint64_t first_bucket = 0, offset = 0;  // of its segment; within it, in bytes
  };
  HashWindow hash_window(uint32_t tensor, uint64_t turn) const;
  void complete_step_if_done();
  std::unique_ptr<StepLedger> ledger_of(uint64_t step);
  cgx_completion_record record_for(uint32_t rank, uint64_t step) const;
  void complete(uint32_t rank, const cgx_completion_record& record, std::string_view text) const;
  void answer(const StepLedger& ledger, const Status& why, std::vector<bool>& told) const;
  void answer(const StepLedger& ledger, uint32_t rank, const Status& why) const;
  void tell_failure();
  std::vector<bool> answer_open_steps(const Status& why);
  Status receive_result(const wire::FrameHeader& header, std::span<const std::byte> payload,
                        uint64_t now_ns);

  RunnerPorts ports_;
  ViewPtr view_;  // of the term
  PlanForStep plan_for_step_;
  KnowsPlan knows_plan_;
  PlanPtr plan_;
  Homes homes_;
  Residuals residuals_;
  ResidualMark borrowed_;
  std::unique_ptr<StepLedger> current_, next_;
  std::array<std::unique_ptr<StepLedger>, 2> spare_;  // null: in use, or never made
  std::vector<GroupState> groups_;
  std::vector<uint32_t> segments_left_;  // of the open step, by tensor: not complete
  Operations operations_;
  Stash stash_;
  std::vector<Closing> closings_;  // of the step before the open one, per local rank
  bool previous_closed_ = true;
  bool previous_dropped_ = false, closed_differently_ = false;
  double unit_ = 1;      // of the open step, once one of its groups has started
  uint32_t lowest_ = 0;  // lowest group not complete
  uint64_t completed_end_ = 0, started_end_ = 0;
  uint64_t steps_completed_ = 0, steps_of_table_ = 0;
  enum class Mode : uint8_t { kRunning, kResultsOnly, kStopped };
  Mode mode_ = Mode::kRunning;
  Status untold_;                    // not OK: failed for good, and nobody was told yet
  std::vector<uint32_t> attempts_;   // per local rank
  std::vector<uint32_t> undecided_;  // before a rank's end, which decides them for that rank
  std::vector<uint32_t> order_, last_order_, absent_, last_absent_;
  std::vector<ResultHash> result_hashes_;
  Totals totals_;
  std::vector<Norms> norms_;  // by tensor
  LossMeter* losses_ = nullptr;
};

}  // namespace cgx::scheduler
