#include "scheduler/planners/explanation.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "scheduler/plan/way.h"
#include "scheduler/planners/ceilings.h"
#include "scheduler/planners/proposal.h"

namespace cgx::scheduler {
namespace {

// The tensor's own codec, the policy's, and those of the menu.
std::vector<CodecSpec> codecs_for(const PlanFacts& running, uint32_t tensor) {
  const Policy& policy = running.policy;
  std::vector<CodecSpec> codecs = {running.spec_of(tensor)};
  if (!dtype_is_small_float((*running.table)[tensor].dtype)) return codecs;  // others take none
  std::vector<CodecSpec> others = menu_of(policy);
  others.push_back(policy.default_codec);
  for (const CodecSpec& each : others) {
    const bool known = std::find(codecs.begin(), codecs.end(), each) != codecs.end();
    // Pieces of a cut tensor are counted in buckets.
    if (!known && (policy.segment_bytes == 0 || each.bucket == codecs[0].bucket)) {
      codecs.push_back(each);
    }
  }
  return codecs;
}

// Beside that of its group the ones that suit any group, unless the policy names one.
std::vector<Way> other_ways_for(const SurveyQuestion& question, uint32_t tensor) {
  const PlanFacts& running = *question.running;
  const Way& own = running.plan.groups[running.first_group_of(tensor)].way;
  std::vector<Way> ways;
  if (running.policy.collective != CollectiveWish::kAuto || question.machines < 2) return ways;
  for (size_t i = 0; i < std::size(kCollectives); ++i) {
    const auto other = static_cast<Collective>(i);
    if (other == own.collective || row_of(other).in_racks) continue;
    ways.push_back(choose_way({.wish = wish_for(other),
                               .machines = question.machines,
                               .rack_machines = running.policy.rack_machines},
                              {}, *running.table));
  }
  return ways;
}

}  // namespace

struct ExplanationSearch::State {
  // Instead of what runs: a codec for all pieces of the tensor, or a way for all groups that hold
  // one.
  struct Choice {
    CodecSpec codec;
    std::optional<Way> way;  // none: each group's own
  };

  State(SurveyQuestion asked, uint32_t which) : question(std::move(asked)), tensor(which) {}

  Status begin() {
    const std::vector<CodecSpec> codecs = codecs_for(*question.running, tensor);
    for (const CodecSpec& codec : codecs) choices.push_back({codec, std::nullopt});
    for (const Way& way : other_ways_for(question, tensor)) choices.push_back({codecs[0], way});
    arrivals = arrivals_of(question);
    explanation.measured_ns = question.measured.step_ns;
    CGX_ASSIGN_OR_RETURN(FitSearch made, FitSearch::create(question, codecs, arrivals));
    fitting.emplace(std::move(made));
    return {};
  }

  // True: done.
  Result<bool> go_on(uint64_t evaluations) {
    CGX_ASSIGN_OR_RETURN(const bool fits, finish_fit(fitting, evaluations, fitted));
    if (!fits) return false;
    for (uint64_t spent = 0; next < choices.size(); spent += question.running->plan.groups.size()) {
      if (spent >= evaluations) return false;
      CGX_RETURN_IF_ERROR(price(choices[next++]));
    }
    finish();
    return true;
  }

  // The first is what runs.
  Status price(const Choice& choice) {
    const PlanFacts& running = *question.running;
    Plan plan = running.plan;
    for (Group& group : plan.groups) change(choice, group);
    CGX_ASSIGN_OR_RETURN(const Timeline timeline,
                         timeline_of(plan, *running.table, arrivals, fitted.conditions));
    const Way& first = plan.groups[running.first_group_of(tensor)].way;
    explanation.others.push_back({choice.codec, first.collective, timeline.step_ns(),
                                  timeline.after.work_ns, timeline.sent_bytes});
    return {};
  }

  void change(const Choice& choice, Group& group) const {
    bool holds = false;
    for (Segment& segment : group.segments) {
      if (segment.tensor != tensor) continue;
      segment.spec = choice.codec;
      holds = true;
    }
    if (!holds) return;
    if (choice.way) group.way = *choice.way;
    fit_group(question.running->policy, group, question.machines);
  }

  void finish() {
    std::vector<PricedChoice>& others = explanation.others;
    explanation.chosen = others.front();
    others.erase(others.begin());
    std::stable_sort(others.begin(), others.end(), [](const auto& one, const auto& other) {
      return one.step_ns < other.step_ns;
    });
    const DecisionsPtr& decisions = question.running->decisions;
    explanation.by_default = decisions != nullptr && decisions->by_default(tensor);
  }

  const SurveyQuestion question;
  const uint32_t tensor;
  std::vector<Choice> choices;
  std::vector<double> arrivals;
  std::optional<FitSearch> fitting;  // comes first
  Fit fitted;
  size_t next = 0;  // of the choices
  Explanation explanation;
  std::optional<Result<Explanation>> found;
};

ExplanationSearch::ExplanationSearch(std::unique_ptr<State> state) : state_(std::move(state)) {}
ExplanationSearch::ExplanationSearch(ExplanationSearch&&) noexcept = default;
ExplanationSearch::~ExplanationSearch() = default;

Result<ExplanationSearch> ExplanationSearch::create(SurveyQuestion question, uint32_t tensor) {
  auto state = std::make_unique<State>(std::move(question), tensor);
  CGX_RETURN_IF_ERROR(state->begin());
  return ExplanationSearch(std::move(state));
}

bool ExplanationSearch::work(uint64_t evaluations) {
  if (state_->found) return true;
  const Result<bool> done = state_->go_on(evaluations);
  if (!done.ok()) state_->found = done.status();
  if (done.ok() && *done) state_->found = state_->explanation;
  return state_->found.has_value();
}

const Result<Explanation>& ExplanationSearch::answer() const {
  return *state_->found;
}

}  // namespace cgx::scheduler
