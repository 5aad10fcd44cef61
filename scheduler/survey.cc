#include "scheduler/survey.h"

#include <algorithm>
#include <optional>

#include "kernels/codec.h"
#include "scheduler/choose.h"

namespace cgx::scheduler {
namespace {

// A table of more takes a search too long; its plans are the policy's, with one codec each.
constexpr size_t kSearchedTensorsMax = 2048;
// A plan predicted to take so much longer than the one that runs is not worth a trial.
constexpr double kWorthTrying = 1.1;
constexpr size_t kCandidatesMax = 3;
// Of the daemon's arithmetic against the table of costs: a slow machine, cores that are shared.
constexpr double kArithmeticMin = 0.5, kArithmeticMax = 8;
// Of a link, in ns a byte; 100 kB/s is slower than any.
constexpr double kSlowestLink = 10'000;

std::vector<double> arrivals_of(const SurveyQuestion& question) {
  const auto& measured = question.measured.arrival_ns;
  std::vector<double> arrivals(measured.begin(), measured.end());
  arrivals.resize(question.running->table->size());
  return arrivals;
}

MachineCosts only_arithmetic(MachineCosts costs) {
  costs.operation_ns = costs.segment_ns = costs.frame_ns = costs.wire_ns_per_byte = 0;
  return costs;
}

void slow_down(MachineCosts& costs, double times) {
  for (CodecCurves& codec : costs.codecs) {
    for (Curve* curve : {&codec.encode, &codec.decode}) {
      curve->floor_ns *= times;
      curve->ns_per_byte *= times;
    }
  }
  costs.copy_ns_per_byte *= times;
}

}  // namespace

struct Surveyor::State {
  explicit State(SurveyQuestion asked) : question(std::move(asked)) {}

  PlanInputs inputs(const Policy& policy) const {
    return {.table = *question.running->table,
            .policy = policy,
            .policy_version = question.running->plan.policy_version,
            .epoch = question.running->plan.epoch,
            .order = question.order,
            .machines = question.machines,
            .slab_bytes = question.slab_bytes};
  }
  Result<double> step_of(const Plan& plan, const Conditions& conditions) const {
    CGX_ASSIGN_OR_RETURN(const Timeline timeline,
                         timeline_of(plan, *question.running->table, arrivals, conditions));
    return timeline.step_ns();
  }

  Status fit() {
    Conditions& conditions = survey->conditions;
    conditions = {*question.costs, {.trip_ns = question.trip_ns}, question.share};
    CGX_RETURN_IF_ERROR(fit_arithmetic());
    CGX_ASSIGN_OR_RETURN(survey->running_ns, step_of(question.running->plan, conditions));
    double fast = 0, slow = kSlowestLink;
    if (survey->running_ns >= question.measured.step_ns) return {};
    for (int halvings = 0; halvings < 40; ++halvings) {
      conditions.link.ns_per_byte = (fast + slow) / 2;
      CGX_ASSIGN_OR_RETURN(survey->running_ns, step_of(question.running->plan, conditions));
      (survey->running_ns < question.measured.step_ns ? fast : slow) = conditions.link.ns_per_byte;
    }
    return {};
  }

  Status fit_arithmetic() {
    Conditions& conditions = survey->conditions;
    const Conditions alone{only_arithmetic(conditions.costs), {}, 0};
    CGX_ASSIGN_OR_RETURN(
        const Timeline timeline,
        timeline_of(question.running->plan, *question.running->table, arrivals, alone));
    const double predicted = timeline.after.work_ns;
    if (predicted <= 0 || question.measured.arithmetic_ns <= 0) return {};
    survey->arithmetic =
        std::clamp(question.measured.arithmetic_ns / predicted, kArithmeticMin, kArithmeticMax);
    slow_down(conditions.costs, survey->arithmetic);
    return {};
  }

  // The policy's plan with one codec for all that its default decides, raw included.
  void add_uniform() {
    const Policy& policy = question.running->policy;
    for (const CodecSpec& level : levels_under(policy, menu)) {
      Policy uniform = policy;
      uniform.default_codec = level;
      Result<Plan> plan = make_plan(inputs(uniform));
      if (plan.ok()) add(kernels::to_string(level), std::move(plan->groups));
    }
  }

  void add(const std::string& name, std::vector<Group> groups) {
    const auto known = [&](const std::vector<Group>& others) { return others == groups; };
    if (known(question.running->plan.groups)) return;
    for (const Candidate& candidate : survey->candidates) {
      if (known(candidate.groups)) return;
    }
    const Policy& policy = question.running->policy;
    Result<Plan> plan = make_plan(inputs(policy), std::move(groups));
    if (!plan.ok()) return;
    const Result<double> step_ns = step_of(*plan, survey->conditions);
    if (!step_ns.ok() || *step_ns > kWorthTrying * survey->running_ns) return;
    survey->candidates.push_back({name, std::move(plan->groups), *step_ns});
  }

  Status begin() {
    const Policy& policy = question.running->policy;
    menu = policy.menu.empty() ? default_menu() : policy.menu;
    arrivals = arrivals_of(question);
    CGX_RETURN_IF_ERROR(fit());
    if (question.running->table->size() > kSearchedTensorsMax) return {};
    CGX_ASSIGN_OR_RETURN(Choose made, Choose::create({.inputs = inputs(policy),
                                                      .arrival_ns = arrivals,
                                                      .conditions = survey->conditions,
                                                      .menu = menu}));
    search.emplace(std::move(made));
    return {};
  }

  void finish() {
    if (search) add("choose", search->proposal().groups);
    add_uniform();
    auto& candidates = survey->candidates;
    std::stable_sort(
        candidates.begin(), candidates.end(),
        [](const Candidate& one, const Candidate& other) { return one.step_ns < other.step_ns; });
    if (candidates.size() > kCandidatesMax) candidates.resize(kCandidatesMax);
    done = true;
  }

  SurveyQuestion question;
  std::vector<CodecSpec> menu;
  std::vector<double> arrivals;
  std::optional<Choose> search;
  std::shared_ptr<Survey> survey = std::make_shared<Survey>();
  bool done = false;
};

Surveyor::Surveyor(std::unique_ptr<State> state) : state_(std::move(state)) {}
Surveyor::Surveyor(Surveyor&&) noexcept = default;
Surveyor::~Surveyor() = default;

Result<Surveyor> Surveyor::create(SurveyQuestion question) {
  auto state = std::make_unique<State>(std::move(question));
  CGX_RETURN_IF_ERROR(state->begin());
  return Surveyor(std::move(state));
}

bool Surveyor::work(uint64_t evaluations) {
  if (state_->done) return true;
  if (state_->search && !state_->search->work(evaluations)) return false;
  state_->finish();
  return true;
}

SurveyPtr Surveyor::survey() const {
  return state_->survey;
}

Result<SurveyPtr> make_survey(SurveyQuestion question) {
  constexpr uint64_t kSlice = 1 << 16;
  CGX_ASSIGN_OR_RETURN(Surveyor surveyor, Surveyor::create(std::move(question)));
  while (!surveyor.work(kSlice)) {
  }
  return surveyor.survey();
}

}  // namespace cgx::scheduler
