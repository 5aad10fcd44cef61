// Who makes plans. Matching a policy and laying groups out takes milliseconds, which the thread
// that moves gradients does not have: it asks, and goes on until the answer comes.
#pragma once

#include <functional>

#include "scheduler/planners/ceilings.h"
#include "scheduler/planners/plan_question.h"
#include "scheduler/planners/survey.h"
#include "scheduler/planners/wanted.h"

namespace cgx::scheduler {

class PlannerPort {
 public:
  virtual ~PlannerPort() = default;
  using Answer = std::function<void(const Result<FactsPtr>&)>;
  // Every question is answered once, on the asking thread, possibly before request() returns;
  // what was asked first need not be answered first. What has changed meanwhile is the asker's to
  // find out.
  virtual void request(PlanQuestion question, Answer answer) = 0;
  // A search: may take far longer, and gives way to what is requested. One that nobody wants any
  // more is dropped, and has no answer.
  using SurveyAnswer = std::function<void(const Result<SurveyPtr>&)>;
  virtual void survey(SurveyQuestion question, Wanted wanted, SurveyAnswer answer) = 0;
  using CeilingsAnswer = std::function<void(const Result<CeilingAnswer>&)>;
  virtual void search(CeilingQuestion question, Wanted wanted, CeilingsAnswer answer) = 0;
  // Other work for ranks that wait, which takes its time: `work` runs where plans are made, `then`
  // on the asking thread, both possibly before run() returns. They share nothing with the asker.
  virtual void run(const std::function<void()>& work, const std::function<void()>& then) {
    work();
    then();
  }
  // A question of an operator: in slices of about so many evaluations, which take turns with
  // searches; true: done, and `then` follows on the asking thread, possibly before consider()
  // returns. They share nothing with the asker. False: there is no room for it.
  using Slice = std::function<bool(uint64_t evaluations)>;
  virtual bool consider(const Slice& slice, const std::function<void()>& then) {
    constexpr uint64_t kEvaluations = 1 << 16;
    while (!slice(kEvaluations)) {
    }
    then();
    return true;
  }
  // Frees what nobody else has, where that may take its time.
  virtual void release(std::shared_ptr<const void> memory) { memory.reset(); }
};

// Where nobody else moves gradients meanwhile.
class InlinePlanner final : public PlannerPort {
 public:
  void request(PlanQuestion question, Answer answer) override { answer(make_facts(question)); }
  void survey(SurveyQuestion question, Wanted, SurveyAnswer answer) override {
    answer(make_survey(std::move(question)));
  }
  void search(CeilingQuestion question, Wanted, CeilingsAnswer answer) override {
    answer(make_ceilings(std::move(question)));
  }
};

}  // namespace cgx::scheduler
