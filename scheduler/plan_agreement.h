// How the machines of a communicator come to run the same plan from the same step on.
//
//   coordinator: proposed (Prepare sent, answers counted) -> announced -> in force | dropped
//   member:      prepared (validated, memory reserved)    -> announced -> in force | dropped
//
// A commit takes force where it is decided, because every rank stands between two steps, and voids
// what was announced and not reached. Other plans are announced for a later step; announced ones
// queue. The decision is a message and goes before every later frame of the coordinator, so nobody
// who completes a step can have missed it; (next_epoch, switch_step) in those frames repeat it. A
// failure that can be redone changes nothing here. Owned by one communicator.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
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
    // A commit's plan is for the table that is being committed, any other for the one in force.
    virtual Result<PlanPtr> prepare_plan(PlanPurpose purpose, const Plan& plan,
                                         const Policy& policy) = 0;
    virtual uint64_t now_ns() const = 0;
    virtual uint64_t next_switch_step() const = 0;  // coordinator: highest step sent + 2
    virtual void install_committed(const PlanPtr& plan, uint64_t first_step) = 0;
    virtual void count(Counter counter, uint64_t amount) = 0;
  };

  PlanAgreement(const Members& members, Host& host) : members_(members), host_(host) {}

  // Coordinator. A commit takes the place of a proposal under way; any other that is not a dry run
  // needs !proposing(). A commit takes force at `switch_step`; others at the next step at which all
  // machines can know of it, and not before `switch_step`.
  void propose(PlanPurpose purpose, bool dry_run, const PlanPtr& plan, uint64_t deadline_ns,
               uint64_t switch_step, Answer answer);
  void on_prepared(uint32_t machine, const Prepared& prepared);
  bool proposing() const { return proposing(PlanPurpose::kCommit) || proposing_later_plan(); }
  bool proposing(PlanPurpose purpose) const;
  void withdraw(PlanPurpose purpose, const Status& why);  // a proposal for it, if there is one
  uint64_t next_epoch() const { return highest_epoch_ + 1; }

  // Member.
  void on_prepare(const Prepare& prepare);
  Status on_decided(const Decided& decided);
  Status on_announcement(uint64_t epoch, uint64_t switch_step);

  // Both. The plan a step runs under, given the one that ran before it.
  PlanPtr plan_at(uint64_t step, const PlanPtr& running) const;
  PlanPtr plan_for(uint64_t step, const PlanPtr& running);  // it begins: takes force where new
  // Announced and not in force yet, the newest.
  uint64_t announced_epoch() const { return announced_.empty() ? 0 : newest().plan->plan.epoch; }
  uint64_t announced_step() const { return announced_.empty() ? 0 : newest().switch_step; }
  const std::vector<SwitchSnapshot>& switches() const { return switches_; }
  void note_switch(const PlanPtr& plan, uint64_t step);
  void tick(uint64_t now_ns);
  // A redo took the time in which others would have answered.
  void postpone(uint64_t deadline_ns);
  // Member: since when a committed table waits for the decision about its plan; 0: it does not.
  uint64_t undecided_since_ns() const { return prepared_commit_ ? prepared_since_ns_ : 0; }
  uint64_t reserved_bytes() const;  // of plans that are not in force yet
  void end(const Status& why);      // the communicator has failed for good

 private:
  struct Proposal {
    PlanPurpose purpose;
    bool dry_run = false;
    PlanPtr plan;
    uint64_t deadline_ns = 0, switch_step = 0;
    std::vector<bool> answered;
    Answer answer;
  };

  static constexpr size_t kAnnouncedMax = 8;

  const Outcome& newest() const { return announced_.back(); }
  bool proposing_later_plan() const {
    return proposing(PlanPurpose::kPolicy) || proposing(PlanPurpose::kOrder);
  }
  Proposal take(size_t index);
  void decide(size_t index);
  void drop(size_t index, const Status& why);
  std::string silent_machines(const Proposal& proposal) const;

  const Members& members_;
  Host& host_;
  std::vector<Proposal> proposals_;       // coordinator: dry runs, and at most one other
  std::map<uint64_t, PlanPtr> prepared_;  // member: by epoch, proposed and not decided
  std::deque<Outcome> announced_;         // by switch step
  bool prepared_commit_ = false;
  uint64_t prepared_since_ns_ = 0;
  uint64_t highest_epoch_ = 0;
  std::vector<SwitchSnapshot> switches_;
};

}  // namespace cgx::scheduler
