#include "scheduler/planners/what_if.h"

#include <optional>
#include <utility>

#include "scheduler/planners/choose.h"

namespace cgx::scheduler {

struct WhatIfSearch::State {
  explicit State(WhatIfQuestion asked) : question(std::move(asked)) {}

  // Ceilings were found for the policy that runs.
  PlanInputs inputs() const {
    PlanInputs inputs{.table = *question.job.running->table,
                      .policy = question.policy,
                      .order = question.job.order,
                      .machines = question.machines,
                      .slab_bytes = question.job.slab_bytes,
                      .decisions = decisions.get(),
                      .sites_each = question.job.sites_each};
    if (same_search(question.policy, question.job.running->policy)) {
      inputs.ceilings = question.job.ceilings;
    }
    return inputs;
  }

  Status begin() {
    menu = menu_of(question.policy);
    arrivals = arrivals_of(question.job);
    std::vector<CodecSpec> specs = menu;
    specs.push_back(question.policy.default_codec);
    CGX_ASSIGN_OR_RETURN(FitSearch made, FitSearch::create(question.job, specs, arrivals));
    fitting.emplace(std::move(made));
    return {};
  }

  // True: done.
  Result<bool> go_on(uint64_t evaluations) {
    CGX_ASSIGN_OR_RETURN(const bool fits, finish_fit(fitting, evaluations, fitted));
    if (!fits) return false;
    CGX_ASSIGN_OR_RETURN(const bool ready, prepare());
    if (!ready || (search && !search->work(evaluations))) return false;
    found = finish();
    return true;
  }

  // Before the search: which rules hold for which names, some names at a time. True: done.
  Result<bool> prepare() {
    if (decisions != nullptr) return true;
    const TensorTable& table = *question.job.running->table;
    const DecisionsPtr& known = question.job.running->decisions;
    if (known != nullptr && known->hold_for(question.policy)) {
      decisions = known;
    } else {
      if (!matching) {
        CGX_ASSIGN_OR_RETURN(DecisionsMaker begun, DecisionsMaker::begin(question.policy, table));
        matching.emplace(std::move(begun));
      }
      CGX_ASSIGN_OR_RETURN(const bool done, matching->work(table));
      if (!done) return false;
      decisions = matching->made();
    }
    if (question.policy.mode != PlanMode::kAuto) return true;
    CGX_ASSIGN_OR_RETURN(Choose made, Choose::create({.inputs = inputs(),
                                                      .arrival_ns = arrivals,
                                                      .conditions = fitted.conditions,
                                                      .menu = menu}));
    search.emplace(std::move(made));
    return true;
  }

  Result<WhatIf> finish() const {
    std::vector<Group> groups = search ? search->proposal().groups : std::vector<Group>();
    CGX_ASSIGN_OR_RETURN(const Plan plan,
                         search ? make_plan(inputs(), std::move(groups)) : make_plan(inputs()));
    CGX_ASSIGN_OR_RETURN(const Timeline step, timeline_of(plan, *question.job.running->table,
                                                          arrivals, fitted.conditions));
    return WhatIf{.measured_ns = question.job.measured.step_ns,
                  .now_ns = fitted.running_ns,
                  .now_bytes = fitted.running_bytes,
                  .step_ns = step.step_ns(),
                  .backward_ns = step.after.backprop_ns,
                  .sent_bytes = step.sent_bytes,
                  .plan = codecs_text(plan.groups)};
  }

  WhatIfQuestion question;
  std::vector<CodecSpec> menu;
  std::vector<double> arrivals;
  std::optional<FitSearch> fitting;  // comes first
  Fit fitted;
  std::optional<DecisionsMaker> matching;
  DecisionsPtr decisions;
  std::optional<Choose> search;
  std::optional<Result<WhatIf>> found;
};

WhatIfSearch::WhatIfSearch(std::unique_ptr<State> state) : state_(std::move(state)) {}
WhatIfSearch::WhatIfSearch(WhatIfSearch&&) noexcept = default;
WhatIfSearch::~WhatIfSearch() = default;

Result<WhatIfSearch> WhatIfSearch::create(WhatIfQuestion question) {
  auto state = std::make_unique<State>(std::move(question));
  CGX_RETURN_IF_ERROR(state->begin());
  return WhatIfSearch(std::move(state));
}

bool WhatIfSearch::work(uint64_t evaluations) {
  if (state_->found) return true;
  const Result<bool> done = state_->go_on(evaluations);
  if (!done.ok()) state_->found = done.status();
  return state_->found.has_value();
}

const Result<WhatIf>& WhatIfSearch::answer() const {
  return *state_->found;
}

}  // namespace cgx::scheduler
