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

// A question that is being answered, where plans are made.
template <typename Search, typename T>
struct Considered {
  std::function<Result<Search>()> begin;
  std::optional<Search> search;
  std::optional<Result<T>> found;

  // One slice; true: it is answered.
  bool work(uint64_t evaluations) {
    if (!search) {
      Result<Search> begun = begin();
      if (!begun.ok()) {
        found = begun.status();
        return true;
      }
      search.emplace(*std::move(begun));
      return false;
    }
    if (!search->work(evaluations)) return false;
    found = search->answer();
    search.reset();
    return true;
  }
};

// `begin()` begins a search, which goes on in slices; both on the planner's thread. `answer` gets
// what it finds on this one.
template <typename Search, typename T>
void consider(PlannerPort& planner, std::function<Result<Search>()> begin,
              const std::function<void(const Result<T>&)>& answer) {
  const auto asked = std::make_shared<Considered<Search, T>>();
  asked->begin = std::move(begin);
  const bool taken =
      planner.consider([asked](uint64_t evaluations) { return asked->work(evaluations); },
                       [asked, answer] { answer(*asked->found); });
  if (!taken) answer(no_room());
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

void Communicator::explain(const std::string& tensor, ExplainAnswer answer) {
  look([this, tensor, answer = std::move(answer)](const Result<SurveyQuestion>& question) {
    if (!question.ok()) return answer(question.status());
    const auto begin = [question = *question, tensor]() -> Result<ExplanationSearch> {
      const TensorTable& table = *question.running->table;
      const auto found = std::find_if(table.begin(), table.end(),
                                      [&](const auto& each) { return each.name == tensor; });
      if (found == table.end()) return Status(StatusCode::kNOT_FOUND, "no tensor " + tensor);
      return ExplanationSearch::create(question, static_cast<uint32_t>(found - table.begin()));
    };
    consider<ExplanationSearch, Explanation>(port_.planner(), begin, answer);
  });
}

void Communicator::profile(ProfileAnswer answer) {
  look([this, answer = std::move(answer)](const Result<SurveyQuestion>& question) {
    if (!question.ok()) return answer(question.status());
    const auto begin = [question = *question] { return ProfileSearch::create(question); };
    consider<ProfileSearch, JobProfile>(port_.planner(), begin, answer);
  });
}

void Communicator::what_if(const Policy& policy, uint32_t machines, WhatIfAnswer answer) {
  look([this, policy, machines,
        answer = std::move(answer)](const Result<SurveyQuestion>& question) {
    if (!question.ok()) return answer(question.status());
    const WhatIfQuestion asked{*question, policy, machines == 0 ? question->machines : machines};
    const auto begin = [asked] { return WhatIfSearch::create(asked); };
    consider<WhatIfSearch, WhatIf>(port_.planner(), begin, answer);
  });
}

}  // namespace cgx::scheduler
