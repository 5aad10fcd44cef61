// How the machines of a communicator come to run the same plan from the same step on (DESIGN §5.5).
//
//   coordinator: idle -> proposing (Prepare sent, answers counted) -> announced | dropped
//   member:      prepared (validated, memory reserved) -> announced by a coordinator frame |
//   dropped
//
// A commit is decided by message (no step is open); later plans are committed in band: every frame
// of the coordinator carries (next_epoch, switch_step). Owned by one communicator.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "scheduler/control.h"
#include "scheduler/members.h"
#include "scheduler/prepared_plan.h"
#include "scheduler/snapshot.h"

namespace cgx::scheduler {

class PlanAgreement {
 public:
  using PlanPtr = std::shared_ptr<const PreparedPlan>;
  struct Outcome {
    PlanPtr plan;
    uint64_t switch_step = 0;
  };
  using Answer = std::function<void(const Result<Outcome>&)>;

  class Host {
   public:
    virtual ~Host() = default;
    virtual void send_control(uint32_t machine, const ControlMessage& message) = 0;
    virtual Result<PlanPtr> prepare_plan(const Plan& plan, const Policy& policy) = 0;
    virtual uint64_t now_ns() const = 0;
    virtual uint64_t next_switch_step() const = 0;  // coordinator: highest step sent + 2
    virtual void install_committed(const PlanPtr& plan, uint64_t first_step) = 0;
    virtual void count(Counter counter, uint64_t amount) = 0;
  };

  PlanAgreement(const Members& members, Host& host) : members_(members), host_(host) {}

  // Coordinator. BUSY (with the pending epoch) if a proposal is under way.
  void propose(PlanPurpose purpose, bool dry_run, const PlanPtr& plan, uint64_t deadline_ns,
               uint64_t switch_step_of_commit, Answer answer);
  void on_prepared(uint32_t machine, const Prepared& prepared);
  bool proposing() const { return proposal_.has_value(); }
  uint64_t next_epoch() const { return highest_epoch_ + 1; }

  // Member.
  void on_prepare(const Prepare& prepare);
  Status on_decided(const Decided& decided);
  Status on_announcement(uint64_t epoch, uint64_t switch_step);

  // Both. The plan a step runs under, given the one that ran before it.
  PlanPtr plan_for(uint64_t step, const PlanPtr& running);
  uint64_t announced_epoch() const { return announced_ ? announced_->plan->plan.epoch : 0; }
  uint64_t announced_step() const { return announced_ ? announced_->switch_step : 0; }
  const std::vector<SwitchSnapshot>& switches() const { return switches_; }
  void note_switch(const PlanPtr& plan, uint64_t step);
  void tick(uint64_t now_ns);
  uint64_t deadline_ns() const { return proposal_ ? proposal_->deadline_ns : UINT64_MAX; }
  // Member: since when a committed table waits for the decision about its plan; 0: it does not.
  uint64_t undecided_since_ns() const { return prepared_commit_ ? prepared_since_ns_ : 0; }
  // A new term: what was announced but not reached is void, a proposal is dropped.
  void reset(const Status& why);

 private:
  struct Proposal {
    PlanPurpose purpose;
    bool dry_run = false;
    PlanPtr plan;
    uint64_t deadline_ns = 0, commit_step = 0;
    std::vector<bool> answered;
    uint64_t reserved_bytes = 0;
    Answer answer;
  };

  void decide();
  void drop(const Status& why);

  const Members& members_;
  Host& host_;
  std::optional<Proposal> proposal_;
  std::optional<Outcome> announced_;
  PlanPtr prepared_;  // member: the proposal not decided yet
  bool prepared_commit_ = false;
  uint64_t prepared_since_ns_ = 0;
  uint64_t highest_epoch_ = 0;
  std::vector<SwitchSnapshot> switches_;
};

}  // namespace cgx::scheduler
