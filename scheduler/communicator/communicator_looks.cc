// Communicator, operators' questions about steps: answered by what a few steps take that are
// measured for it, where plans are made.
#include <algorithm>
#include <utility>

#include "scheduler/communicator/communicator.h"

namespace cgx::scheduler {
namespace {

constexpr size_t kStepsToLook = 3, kLooksMax = 16;
// Steps that pause longer than so many of the last ones took are not waited for.
constexpr uint64_t kLookSteps = 8, kLookMinNs = 2'000'000'000, kLookMaxNs = 55'000'000'000;

Status no_room() {
  return {StatusCode::kBUSY, "too many questions wait to be answered; ask again later"};
}

}  // namespace

Status Communicator::check_look() const {
  if (state_ == State::kFailed) return failure_;
  if (!steps_.installed()) {
    return {StatusCode::kNOT_COMMITTED, members_.title() + " is " + state_name(state_) +
                                            "; its steps can be priced once tensors are committed"};
  }
  if (members_.machines() < 2) {
    return invalid_argument(members_.title() + " is on one machine: nothing travels");
  }
  if (!members_.coordinator()) {
    return {StatusCode::kUNAVAILABLE, "steps of " + members_.title() + " are measured by " +
                                          members_.machine_name(0) +
                                          ", its coordinator; ask there"};
  }
  if (port_.options().costs == nullptr) {
    return {StatusCode::kUNIMPLEMENTED, "nobody knows what codecs cost here"};
  }
  return looks_.size() < kLooksMax ? Status() : no_room();
}

void Communicator::look(LookAnswer answer) {
  if (const Status may = check_look(); !may.ok()) return answer(may);
  if (looks_.empty()) {
    looked_.clear();
    if (!searches_plans()) meter_.begin(table_->size());
  }
  const uint64_t patience = std::clamp(kLookSteps * step_gap_ns_, kLookMinNs, kLookMaxNs);
  looks_.push_back({std::move(answer), now_ns() + patience});
}

void Communicator::note_step_end() {
  step_gap_ns_ = step_ended_ns_ == 0 ? 0 : now_ns() - step_ended_ns_;
  step_ended_ns_ = now_ns();
}

void Communicator::show_step(const StepSample& sample) {
  if (looks_.empty() || looked_.size() >= kStepsToLook) return;
  if (!looked_.empty() && looked_.back().epoch != sample.epoch) looked_.clear();  // another plan's
  looked_.push_back(sample);
}

void Communicator::answer_looks() {
  if (looks_.empty() || looked_.size() < kStepsToLook) return;
  StepSample usual = usual_of(std::move(looked_));
  looked_.clear();
  const double between_ns = std::max(0.0, usual.period_ns - usual.step_ns);
  SurveyQuestion question = question_of_job(
      {.measured = std::move(usual), .seen = pilot_.seen(), .lost = {}, .between_ns = between_ns});
  profiles_.add_to(question);
  for (Look& each : std::exchange(looks_, {})) each.answer(question);
}

void Communicator::answer_late_looks() {
  std::vector<Look> late;
  const auto waits = [&](const Look& each) { return each.deadline_ns > now_ns(); };
  const auto first = std::stable_partition(looks_.begin(), looks_.end(), waits);
  std::move(first, looks_.end(), std::back_inserter(late));
  looks_.erase(first, looks_.end());
  for (Look& each : late) {
    each.answer(Status(StatusCode::kTIMED_OUT, "no " + std::to_string(kStepsToLook) + " steps of " +
                                                   members_.title() +
                                                   " have ended since; ask while it trains"));
  }
}

// `search()` makes what is asked for, in slices, on the planner's thread; `answer` gets it on this.
template <typename T, typename Search>
void Communicator::consider(Search search, std::function<void(const Result<T>&)> answer) {
  struct Found {
    Search search;
    std::optional<Result<T>> result;
  };
  const auto found = std::make_shared<Found>(Found{std::move(search), std::nullopt});
  const bool taken = port_.planner().consider(
      [found](uint64_t evaluations) {
        found->result = found->search(evaluations);
        return found->result.has_value();
      },
      [found, answer] { answer(*found->result); });
  if (!taken) answer(no_room());
}

void Communicator::explain(const std::string& tensor, ExplainAnswer answer) {
  look([this, tensor, answer = std::move(answer)](const Result<SurveyQuestion>& question) {
    if (!question.ok()) return answer(question.status());
    const auto search = [question = *question,
                         tensor](uint64_t) -> std::optional<Result<Explanation>> {
      const TensorTable& table = *question.running->table;
      const auto found = std::find_if(table.begin(), table.end(),
                                      [&](const auto& each) { return each.name == tensor; });
      if (found == table.end()) {
        return Result<Explanation>(Status(StatusCode::kNOT_FOUND, "no tensor " + tensor));
      }
      return scheduler::explain(question, static_cast<uint32_t>(found - table.begin()));
    };
    consider<Explanation>(search, answer);
  });
}

void Communicator::profile(ProfileAnswer answer) {
  look([this, answer = std::move(answer)](const Result<SurveyQuestion>& question) {
    if (!question.ok()) return answer(question.status());
    const auto search = [question = *question](uint64_t) -> std::optional<Result<JobProfile>> {
      return profile_of(question);
    };
    consider<JobProfile>(search, answer);
  });
}

void Communicator::what_if(const Policy& policy, uint32_t machines, WhatIfAnswer answer) {
  look([this, policy, machines,
        answer = std::move(answer)](const Result<SurveyQuestion>& question) {
    if (!question.ok()) return answer(question.status());
    const WhatIfQuestion asked{*question, policy, machines == 0 ? question->machines : machines};
    const auto search = [asked, under_way = std::shared_ptr<WhatIfSearch>()](
                            uint64_t evaluations) mutable -> std::optional<Result<WhatIf>> {
      if (under_way == nullptr) {
        Result<WhatIfSearch> made = WhatIfSearch::create(asked);
        if (!made.ok()) return Result<WhatIf>(made.status());
        under_way = std::make_shared<WhatIfSearch>(*std::move(made));
      }
      if (!under_way->work(evaluations)) return std::nullopt;
      return under_way->answer();
    };
    consider<WhatIf>(search, answer);
  });
}

}  // namespace cgx::scheduler
