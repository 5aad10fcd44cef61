// How the machines of a communicator come to run the same plan from the same step on.
//
//   coordinator: planned -> proposed (Prepare sent, answers counted) -> announced -> in force
//   member:      planned -> prepared (validated, memory reserved)    -> announced -> in force
//
// or dropped, anywhere before it is announced. Planning is done elsewhere (planner_port.h) and may
// take its time: an answer for what was dropped meanwhile is not looked at, one for a table that
// is no longer in force, or for an epoch that another plan took, is asked for again.
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

#include "scheduler/communicator/control.h"
#include "scheduler/communicator/members.h"
#include "scheduler/communicator/snapshot.h"
#include "scheduler/exchange/prepared_plan.h"
#include "scheduler/planners/planner_port.h"

namespace cgx::scheduler {

class PlanAgreement {
 public:
  using PlanPtr = std::shared_ptr<const PreparedPlan>;
  struct Outcome {
    PlanPtr plan;
    uint64_t switch_step = 0;
    PlanOrigin origin = {};
  };
  using Answer = std::function<void(const Result<Outcome>&)>;
  struct Announcement {
    uint64_t epoch = 0, switch_step = 0;
  };

  class Port {
   public:
    virtual ~Port() = default;
    virtual void send_control(uint32_t machine, const ControlMessage& message) = 0;
    virtual void broadcast_body(SharedBytes encoded_control) = 0;  // to all other machines
    // A commit's plan is for the table that is being committed, any other for the one in force;
    // null: there is none.
    virtual std::shared_ptr<const TensorTable> table_for(PlanPurpose purpose) const = 0;
    // The machine's own part of the question is filled in. Never answered once the host has gone.
    virtual void ask_planner(PlanQuestion question, PlannerPort::Answer answer) = 0;
    virtual Result<PlanPtr> reserve(const FactsPtr& facts) = 0;
    virtual uint64_t now_ns() const = 0;
    virtual uint64_t prepare_deadline_ns() const = 0;  // of what is proposed now
    virtual uint64_t next_switch_step() const = 0;     // coordinator: highest step sent + 2
    virtual bool between_steps() const = 0;            // no step is open
    virtual void install_committed(const PlanPtr& plan, uint64_t first_step) = 0;
    // Coordinator: a commit's plan is refused. True: its question would be another one now.
    virtual bool asks_otherwise(const Status& why) = 0;
    virtual void count(Counter counter, uint64_t amount) = 0;
  };

  PlanAgreement(const Members& members, Port& port) : members_(members), port_(port) {}

  // What to plan, as things are when it is called; the table of its purpose. It may be called
  // again.
  using Question = std::function<Result<PlanQuestion>(uint64_t next_epoch)>;

  // Coordinator. A commit takes the place of a proposal under way; any other that is not a dry run
  // needs !proposing(). A commit takes force at `switch_step`; others at the next step at which all
  // machines can know of it, and not before `switch_step`.
  void propose(PlanPurpose purpose, bool dry_run, uint64_t switch_step, Question question,
               Answer answer);
  void on_prepared(uint32_t machine, const Prepared& prepared);
  size_t dry_runs() const;  // under way
  bool proposing() const { return proposing(PlanPurpose::kCommit) || proposing_later_plan(); }
  bool proposing(PlanPurpose purpose) const;
  void withdraw(PlanPurpose purpose, const Status& why);  // a proposal for it, if there is one

  // Member.
  void on_prepare(const Prepare& prepare);
  Status on_decided(const Decided& decided);
  Status on_announcement(uint64_t epoch, uint64_t switch_step);
  // Another member passes on what it knows: the coordinator's own word is on its way. Of a plan
  // that this machine has prepared, as every machine has before one is decided.
  Status on_rumour(uint32_t machine, Announcement known);
  bool awaits_decision() const { return awaited_.epoch > decided_epoch_; }

  // Both. The plan a step runs under, given the one that ran before it.
  PlanPtr plan_at(uint64_t step, const PlanPtr& running) const;
  PlanPtr plan_for(uint64_t step, const PlanPtr& running);  // it begins: takes force where new
  // A plan on trial, while it alternates with the one before it.
  const PlanPtr& on_trial() const { return trial_.tried; }
  // What a step of it is compared with, and where it goes back to; without one the plan `running`.
  const PlanPtr& base(const PlanPtr& running) const { return trial_ ? trial_.base : running; }
  // The newest of the table that stays, in force or announced.
  const PlanPtr& newest_agreed(const PlanPtr& running) const;
  void end_trial() { trial_ = {}; }
  // Announced and not in force yet, the newest.
  uint64_t announced_epoch() const { return announced_.empty() ? 0 : newest().plan->plan.epoch; }
  uint64_t announced_step() const { return announced_.empty() ? 0 : newest().switch_step; }
  std::vector<PlanPtr> announced() const;
  // The newest that this machine knows of, from whomever; passed on in every frame.
  Announcement newest_known() const {
    return awaits_decision() ? awaited_ : Announcement{announced_epoch(), announced_step()};
  }
  const std::vector<SwitchSnapshot>& switches() const { return switches_; }
  // Who wanted a plan that has taken force; of an older one nobody knows.
  PlanOrigin origin_of(uint64_t epoch) const;
  void note_switch(const PlanPtr& plan, uint64_t step, const PlanOrigin& origin);
  void tick(uint64_t now_ns);
  // A redo took the time in which others would have answered.
  void postpone(uint64_t deadline_ns);
  // Member: since when a committed table waits for the decision about its plan, or this machine for
  // one that others have heard; 0: it does not.
  uint64_t undecided_since_ns() const {
    return prepared_commit_ ? prepared_since_ns_ : awaits_decision() ? awaited_since_ns_ : 0;
  }
  // What other machines may take longer than that for the memory of residuals.
  uint64_t undecided_making_ns() const { return undecided_making_ns_; }
  // Every machine makes residuals on a thread that gives way to trainers: at 20 MB/s or faster.
  static constexpr uint64_t making_ns(uint64_t bytes) { return 50 * bytes; }
  // Of plans beside the one that runs: not in force yet, or on trial.
  uint64_t reserved_bytes(const PlanPtr& running) const;
  void end(const Status& why);  // the communicator has failed for good

 private:
  struct Proposal {
    PlanPurpose purpose;
    bool dry_run = false;
    uint64_t number = 0;
    Question question;
    PlanOrigin origin;   // of the question that is being answered
    uint64_t epoch = 0;  // 0: nobody is asked for it yet
    PlanPtr plan;        // null while it is being planned
    uint64_t deadline_ns = UINT64_MAX, switch_step = 0;
    std::vector<bool> answered;
    Answer answer;
  };
  void on_refusal(size_t index, const Status& why);
  void forget_plan(Proposal& proposal, const Status& why);
  struct Preparing {
    PlanPurpose purpose;
    bool dry_run = false;
  };
  struct Kept {
    PlanPtr plan;
    PlanPurpose purpose;
  };

  struct TrialRun {
    PlanPtr base, tried;
    uint64_t first_step = 0;
    explicit operator bool() const { return tried != nullptr; }
    PlanPtr plan_at(uint64_t step) const {
      return tried->plan.trial.tries(step - first_step) ? tried : base;
    }
    bool over(uint64_t step) const { return step - first_step >= tried->plan.trial.steps(); }
  };

  static constexpr size_t kAnnouncedMax = 8;
  static constexpr size_t kPreparingMax = 64;

  const Outcome& newest() const { return announced_.back(); }
  bool proposing_later_plan() const {
    return proposing(PlanPurpose::kPolicy) || proposing(PlanPurpose::kPlanner);
  }
  TrialRun trial_of(const Outcome& outcome, const PlanPtr& running) const;
  uint64_t next_epoch() const;
  bool waits(const Proposal& proposal) const;
  void ask(uint64_t number);
  void on_planned(uint64_t number, const Result<FactsPtr>& facts);
  void on_question_answered(uint64_t epoch, const Result<FactsPtr>& facts);
  Result<PlanPtr> keep_prepared(uint64_t epoch, Preparing what, const Result<FactsPtr>& facts);
  void answer_prepare(uint64_t epoch, const Result<PlanPtr>& prepared);
  Proposal* find(uint64_t number);
  void refuse(Proposal& proposal, const Status& why);
  Proposal take(size_t index);
  Kept take_prepared(const Decided& decided);
  Status install(const Outcome& committed);
  void take_force(const Outcome& committed);
  void decide(size_t index);
  void drop(size_t index, const Status& cause);
  std::string silent_machines(const Proposal& proposal) const;

  const Members& members_;
  Port& port_;
  std::vector<Proposal> proposals_;  // coordinator: dry runs, and at most one other
  uint64_t next_number_ = 1;
  std::map<uint64_t, Preparing> preparing_;  // member: by epoch, being planned
  std::map<uint64_t, Kept> prepared_;        // member: by epoch, proposed and not decided
  std::deque<Outcome> announced_;            // by switch step
  TrialRun trial_;
  bool prepared_commit_ = false;
  uint64_t prepared_since_ns_ = 0, undecided_making_ns_ = 0;
  uint64_t highest_epoch_ = 0;
  uint64_t decided_epoch_ = 0;  // the highest that was decided, as far as was heard here
  Announcement awaited_;        // the newest of which others have said so
  uint64_t awaited_since_ns_ = 0;
  std::vector<SwitchSnapshot> switches_;
};

}  // namespace cgx::scheduler
