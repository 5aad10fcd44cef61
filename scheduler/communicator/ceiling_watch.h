// When a job's ceilings are looked for and changed (scheduler/planners/ceilings.h): after the first
// steps that were measured, and again every few of them. Whoever looks for short steps waits for
// the first answer. On the coordinator alone; other machines see plans.
//
// Reads no clock. Owned by one communicator.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "scheduler/communicator/snapshot.h"
#include "scheduler/planners/ceilings.h"
#include "scheduler/planners/wanted.h"

namespace cgx::scheduler {

class CeilingPort {
 public:
  virtual ~CeilingPort() = default;
  // No plan is being agreed on or on trial, nor will one be soon.
  virtual bool may_set_ceilings() const = 0;
  // Answers come later or at once; one that is not wanted any more may come, too. Meanwhile another
  // plan may have been proposed.
  virtual void search_ceilings(CeilingQuestion question, Wanted wanted,
                               std::function<void(const Result<CeilingAnswer>&)> answer) = 0;
  struct Agreed {
    uint64_t epoch = 0, first_step = 0;
  };
  // REQUIRES: may_set_ceilings()
  virtual void propose_ceilings(std::vector<CodecSpec> ceilings, PlanOrigin origin,
                                std::function<void(const Result<Agreed>&)> answer) = 0;
  virtual void report(const PlanNote& note) = 0;
};

class CeilingWatch {
 public:
  explicit CeilingWatch(CeilingPort& port) : port_(port) {}

  LossMeter& losses() { return losses_; }
  // A plan takes force with this step, on any machine.
  void follow(const PlanFacts& plan, uint64_t step);
  // The coordinator's: a step is complete; later, between steps, what is due is asked for.
  bool completed(uint64_t step);  // true: it was measured
  // What another machine has measured in a step, of all tensors.
  void heard(uint64_t step, const LossSample& sample) {
    if (counts(step) && losses_.due(step)) everywhere_ += sample;
  }
  void work(const FactsPtr& base);

  // By tensor, of the last plan agreed on; empty: the policy's codec for all.
  const std::vector<CodecSpec>& ceilings() const { return set_->ceilings; }
  const std::shared_ptr<const SetCeilings>& set() const { return set_; }  // the same, to be shown
  // What holds for a plan to come: the same, unless follow() will begin anew with it.
  std::vector<CodecSpec> ceilings_under(const Policy& policy, uint64_t table_hash) const;
  bool known() const { return losses_.strengths() == nullptr || known_; }
  const std::vector<PlanNote>& notes() const { return notes_; }  // newest last, at most 16

 private:
  // The step ran as the last answer wants it. Residuals of earlier plans are sent in the first.
  bool counts(uint64_t step) const { return step > in_force_; }
  void ask(const FactsPtr& base);
  void on_answer(const Result<CeilingAnswer>& answer);
  void propose(const CeilingAnswer& answer);
  PlanOrigin origin_of(const CeilingAnswer& answer) const;
  void note(PlanNote note);

  CeilingPort& port_;
  LossMeter losses_;
  Policy policy_;  // of the plan in force
  uint64_t table_hash_ = 0;
  std::shared_ptr<const SetCeilings> set_ = std::make_shared<const SetCeilings>();
  std::vector<Guard> guards_;
  std::vector<PlanNote> notes_;
  LossSample everywhere_;  // added up over machines; older steps count less
  int level_ = 0;
  Climb climb_;
  uint64_t in_force_ = 0;  // the first step of the last plan agreed on
  uint64_t step_ = 0;      // the last one that was measured
  bool known_ = false, asked_ = false;
  uint32_t due_ = 0;  // measured steps until ceilings are looked for
  Asking asking_;
};

}  // namespace cgx::scheduler
