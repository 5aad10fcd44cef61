#include "scheduler/communicator/ceiling_watch.h"

#include <algorithm>
#include <utility>

namespace cgx::scheduler {
namespace {

constexpr uint32_t kMeasuredFirst = 2;  // steps
constexpr size_t kCeilingNotesMax = 16;

}  // namespace

void CeilingWatch::follow(const PlanFacts& plan, uint64_t step) {
  const bool goes_on = same_search(policy_, plan.policy) && table_hash_ == plan.plan.table_hash;
  if (goes_on) losses_.measure_each(plan.policy.stats_steps);
  policy_ = plan.policy;
  if (goes_on) return;
  table_hash_ = plan.plan.table_hash;
  std::vector<CodecSpec> strengths = strengths_of(policy_);
  std::vector<bool> measured;
  for (uint32_t t = 0; !strengths.empty() && t < plan.table->size(); ++t) {
    measured.push_back(plan.by_default(t));
  }
  losses_.begin(std::move(strengths), table_hash_, measured, policy_.stats_steps, step);
  losses_.forget();
  set_ = std::make_shared<const SetCeilings>();
  guards_.clear();
  everywhere_ = {};
  level_ = 0;
  climb_ = {};
  in_force_ = 0;
  asking_.drop();
  asked_ = false;
  known_ = policy_.ceilings == CeilingPlanner::kpolicy;  // nobody has to find them
  due_ = kMeasuredFirst;
}

std::vector<CodecSpec> CeilingWatch::ceilings_under(const Policy& policy,
                                                    uint64_t table_hash) const {
  const bool goes_on = same_search(policy_, policy) && table_hash_ == table_hash;
  return goes_on ? ceilings() : std::vector<CodecSpec>();
}

bool CeilingWatch::completed(uint64_t step) {
  if (!losses_.close_step(step)) return false;
  step_ = step;
  if (!counts(step)) {
    losses_.forget();
    return true;
  }
  everywhere_ = everywhere_.times(LossMeter::kFades);
  everywhere_ += losses_.last();
  if (due_ > 0) --due_;
  return true;
}

void CeilingWatch::work(const FactsPtr& base) {
  const bool due = losses_.strengths() != nullptr && due_ == 0;
  if (due && !asked_ && port_.may_set_ceilings()) ask(base);
}

void CeilingWatch::ask(const FactsPtr& base) {
  asked_ = true;
  port_.search_ceilings({.running = base,
                         .strengths = losses_.strengths(),
                         .losses = losses_.tensors(),
                         .everywhere = everywhere_,
                         .now = set_->base,
                         .guards = guards_,
                         .level = level_,
                         .climb = climb_},
                        asking_.wanted(),
                        [this, wanted = asking_.wanted()](const Result<CeilingAnswer>& answer) {
                          if (!wanted.expired()) on_answer(answer);
                        });
}

void CeilingWatch::on_answer(const Result<CeilingAnswer>& answer) {
  if (answer.ok() && answer->changes) {
    if (port_.may_set_ceilings()) return propose(*answer);
    asked_ = false;  // another plan came first: still due, it is asked again after that one
    return;
  }
  if (!answer.ok()) {
    note({.step = step_,
          .name = kCeilingPlanners[static_cast<size_t>(policy_.ceilings)],
          .verdict = answer.status().to_string()});
  }
  asked_ = false;
  known_ = true;
  if (answer.ok()) {
    guards_ = answer->guards;
    climb_ = answer->climb;
    const bool first = ceilings().empty();  // it is what tensors have begun with
    if (first) set_ = std::make_shared<const SetCeilings>(SetCeilings{answer->ceilings, {}});
  }
  due_ = answer.ok() ? answer->again : kMeasuredFirst;
}

// Where ceilings are as before, guards alone have changed something.
PlanOrigin CeilingWatch::origin_of(const CeilingAnswer& answer) const {
  const std::string name = kCeilingPlanners[static_cast<size_t>(policy_.ceilings)];
  const bool same = !set_->base.empty() && answer.base == set_->base;
  const bool guards = policy_.ceilings == CeilingPlanner::kpolicy || same;
  if (!guards) return {kByCeilings, name + ": " + answer.why};
  const auto hurt = std::count_if(answer.guards.begin(), answer.guards.end(),
                                  [](const Guard& guard) { return guard.down > 0; });
  if (hurt == 0) return {kByGuard, "no tensor is hurt by its codec any more"};
  return {kByGuard, std::to_string(hurt) + " of " + std::to_string(answer.guards.size()) +
                        " tensors take a weaker codec, because theirs hurt them"};
}

void CeilingWatch::propose(const CeilingAnswer& answer) {
  port_.propose_ceilings(
      answer.ceilings, origin_of(answer),
      [this, wanted = asking_.wanted(), answer](const Result<CeilingPort::Agreed>& agreed) {
        if (wanted.expired()) return;
        asked_ = false;
        due_ = agreed.ok() ? answer.again : 1;
        PlanNote said{.step = step_,
                      .name = std::string(kCeilingPlanners[static_cast<size_t>(policy_.ceilings)]) +
                              ": " + answer.why};
        said.verdict = agreed.ok() ? "in force" : agreed.status().to_string();
        if (agreed.ok()) {
          known_ = true;
          set_ = std::make_shared<const SetCeilings>(SetCeilings{answer.ceilings, answer.base});
          guards_ = answer.guards;
          level_ = answer.level;
          climb_ = answer.climb;
          losses_.forget();  // residuals follow the codec
          everywhere_ = {};
          in_force_ = agreed->first_step;
          said.epoch = agreed->epoch;
          said.step = agreed->first_step;
        }
        note(std::move(said));
      });
}

void CeilingWatch::note(PlanNote note) {
  if (notes_.size() == kCeilingNotesMax) notes_.erase(notes_.begin());
  port_.report(notes_.emplace_back(std::move(note)));
}

}  // namespace cgx::scheduler
