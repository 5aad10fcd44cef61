#include "scheduler/planners/ceilings.h"

#include <utility>

#include "scheduler/planners/guards.h"
#include "scheduler/planners/planner.h"

namespace cgx::scheduler {
namespace {

constexpr const CeilingRow* kCeilingRows[] = {
#define X(name, help) &kCeilings_##name,
#include "scheduler/plan/ceilings.def"
#undef X
};

const CeilingRow& row_of(const Policy& policy) {
  return *kCeilingRows[static_cast<size_t>(policy.ceilings)];
}

}  // namespace

std::vector<CodecSpec> strengths_of(const Policy& policy) {
  const CeilingRow& row = row_of(policy);
  return row.strengths == nullptr ? std::vector<CodecSpec>() : row.strengths(policy);
}

CodecSpec starting_codec(const Policy& policy) {
  const bool weakest = policy.ceilings == CeilingPlanner::kgravac;
  return weakest ? strengths_of(policy).front() : policy.default_codec;
}

Status check_ceilings(const Policy& policy) {
  for (const CeilingRow* const each : kCeilingRows) {
    if (each->check_keys != nullptr) CGX_RETURN_IF_ERROR(each->check_keys(policy));
  }
  const CeilingRow& row = row_of(policy);
  return row.check == nullptr ? Status() : row.check(policy);
}

namespace {

// A row's answer, with guards.
class GuardedSearch final : public CeilingSearch {
 public:
  GuardedSearch(CeilingQuestion question, std::unique_ptr<CeilingSearch> search)
      : question_(std::move(question)), search_(std::move(search)) {}

  bool work(uint64_t evaluations) override { return search_->work(evaluations); }
  CeilingAnswer answer() const override {
    CeilingAnswer answer = search_->answer();
    const std::vector<CodecSpec> now = in_force();
    answer.base = answer.changes ? answer.ceilings : now;
    Guarded guarded = guard(question_, answer.base);
    answer.changes |= guarded.ceilings != under_guards(question_, now, question_.guards).ceilings;
    answer.ceilings = std::move(guarded.ceilings);
    answer.guards = std::move(guarded.guards);
    if (guarded.weakened > 0) {
      answer.why += "; " + std::to_string(guarded.weakened) + " tensors below it, which it hurt";
    }
    return answer;
  }

 private:
  // Before guards.
  std::vector<CodecSpec> in_force() const {
    if (!question_.now.empty()) return question_.now;
    const PlanFacts& running = *question_.running;
    return std::vector<CodecSpec>(running.table->size(), starting_codec(running.policy));
  }

  const CeilingQuestion question_;
  const std::unique_ptr<CeilingSearch> search_;
};

}  // namespace

Result<std::unique_ptr<CeilingSearch>> begin_ceilings(CeilingQuestion question) {
  const CeilingRow& row = row_of(question.running->policy);
  CGX_ASSIGN_OR_RETURN(std::unique_ptr<CeilingSearch> search, row.begin(question));
  return std::unique_ptr<CeilingSearch>(
      std::make_unique<GuardedSearch>(std::move(question), std::move(search)));
}

Result<CeilingAnswer> make_ceilings(CeilingQuestion question) {
  constexpr uint64_t kSlice = 1 << 16;
  CGX_ASSIGN_OR_RETURN(const std::unique_ptr<CeilingSearch> search,
                       begin_ceilings(std::move(question)));
  while (!search->work(kSlice)) {
  }
  return search->answer();
}

}  // namespace cgx::scheduler
