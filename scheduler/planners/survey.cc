#include "scheduler/planners/survey.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "kernels/codec.h"
#include "scheduler/plan/way.h"
#include "scheduler/planners/choose.h"
#include "scheduler/planners/merge.h"

namespace cgx::scheduler {
namespace {

// More pieces of tensors take a search too long; its plans are the policy's, with one codec each.
constexpr size_t kSearchedPiecesMax = 2048;
// A plan predicted to take so much longer than the one that runs is not worth a trial.
constexpr double kWorthTrying = 1.1;
constexpr double kExactWorthTrying = 1.5;  // one that loses nothing is worth more

size_t pieces_of(const Plan& plan) {
  size_t pieces = 0;
  for (const Group& group : plan.groups) pieces += group.segments.size();
  return pieces;
}

bool is_stronger(const CodecSpec& one, const CodecSpec& other) {
  return weight_of(one) < weight_of(other);
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
            .slab_bytes = question.slab_bytes,
            .ceilings = question.ceilings,
            .decisions = question.running->decisions.get(),
            .sites_each = question.sites_each};
  }
  // The policy's plan with one codec for all that its default decides, raw included. The strongest
  // first: of plans without times it is tried first.
  void add_uniform() {
    const Policy& policy = question.running->policy;
    std::vector<CodecSpec> levels = uniform_levels(policy, menu);
    std::stable_sort(levels.begin(), levels.end(), is_stronger);
    for (const CodecSpec& level : levels) {
      Policy uniform = policy;
      uniform.default_codec = level;
      std::vector<CodecSpec> ceilings = question.ceilings;
      for (CodecSpec& each : ceilings) {
        if (!(level == policy.default_codec)) each = weaker_of(each, level);
      }
      PlanInputs asked = inputs(uniform);
      asked.ceilings = ceilings;
      Result<Plan> plan = make_plan(asked);
      if (plan.ok()) add(kernels::to_string(level), std::move(plan->groups), level.codec == 0);
    }
  }

  void add(const std::string& name, std::vector<Group> groups, bool bypass = false) {
    const auto known = [&](const std::vector<Group>& others) { return others == groups; };
    if (known(question.running->plan.groups)) return;
    if (std::any_of(question.lost.begin(), question.lost.end(), known)) return;
    for (const Candidate& candidate : survey->candidates) {
      if (known(candidate.groups)) return;
    }
    const Policy& policy = question.running->policy;
    Result<Plan> plan = make_plan(inputs(policy), std::move(groups));
    if (!plan.ok()) return;
    Candidate candidate{.name = name, .bypass = bypass};
    if (priced && !price(*plan, candidate)) return;
    candidate.groups = std::move(plan->groups);
    survey->candidates.push_back(std::move(candidate));
  }
  // A job that begins with the plan kept for its name: one compressed plan says little of what raw
  // gradients would take. What its steps take beside arithmetic counts as the link's.
  bool knows_only_a_lossy_plan() const { return question.running->lossy && question.seen.empty(); }
  // False: it takes too long to be worth a trial.
  bool price(const Plan& plan, Candidate& candidate) const {
    const Result<Timeline> step =
        timeline_of(plan, *question.running->table, arrivals, survey->conditions);
    if (!step.ok()) return false;
    const double worth = candidate.bypass ? kExactWorthTrying : kWorthTrying;
    const bool anyway = candidate.bypass && knows_only_a_lossy_plan();
    if (!anyway && step->step_ns() > worth * survey->running_ns) return false;
    candidate.step_ns = step->step_ns();
    candidate.sent_bytes = step->sent_bytes;
    return true;
  }

  Status begin() {
    survey->left_out = question.left_out;
    const Policy& policy = question.running->policy;
    if (policy.mode == PlanMode::kMerge) return begin_merging();
    menu = menu_of(policy);
    arrivals = arrivals_of(question);
    Result<FitSearch> made = FitSearch::create(question, menu, arrivals);
    if (made.status().code() == StatusCode::kRESOURCE_EXHAUSTED) {
      begin_unpriced(made.status().message());
      return {};
    }
    CGX_RETURN_IF_ERROR(made.status());
    fitting.emplace(*std::move(made));
    return {};
  }

  // Prices are known now.
  void begin_search() {
    status = start_search();
    done = !status.ok();
    fitting.reset();
  }
  Status start_search() {
    const Policy& policy = question.running->policy;
    CGX_ASSIGN_OR_RETURN(static_cast<Fit&>(*survey), fitting->found());
    if (const size_t pieces = pieces_of(question.running->plan); pieces > kSearchedPiecesMax) {
      survey->unsearched = "only plans with one codec for all: the plan has " +
                           std::to_string(pieces) + " pieces of tensors, and a codec for each is " +
                           "searched for up to " + std::to_string(kSearchedPiecesMax);
      return {};
    }
    CGX_ASSIGN_OR_RETURN(Choose made, Choose::create({.inputs = inputs(policy),
                                                      .arrival_ns = arrivals,
                                                      .conditions = survey->conditions,
                                                      .menu = menu}));
    search.emplace(std::move(made));
    return {};
  }

  // Of too many groups: trials say which plan is faster, as where groups are merged.
  void begin_unpriced(const std::string& why) {
    priced = false;
    survey->unsearched = "only plans with one codec for all: " + why;
    survey->running_ns = question.measured.step_ns;
  }

  // MergeComp's: real steps say what a model would have to guess.
  Status begin_merging() {
    constexpr uint32_t kMergeTrialsMax = 12;
    survey->trials_max = kMergeTrialsMax;
    survey->steps_max = UINT32_MAX;
    survey->running_ns = question.measured.step_ns;
    CGX_ASSIGN_OR_RETURN(std::vector<MergeCandidate> found,
                         merge_candidates(inputs(question.running->policy),
                                          question.running->plan.groups, question.lost));
    for (MergeCandidate& each : found) {
      survey->candidates.push_back({"merge: " + each.name, std::move(each.groups)});
    }
    done = true;
    return {};
  }

  void finish() {
    if (search) {
      std::vector<Group> groups = search->proposal().groups;
      const std::string name = "choose: " + codecs_text(groups);
      add(name, std::move(groups));
    }
    add_uniform();
    const bool bypass_first = priced && knows_only_a_lossy_plan();
    const auto before = [bypass_first](const Candidate& one, const Candidate& other) {
      if (one.bypass != other.bypass) return one.bypass == bypass_first;
      return one.step_ns < other.step_ns;
    };
    std::stable_sort(survey->candidates.begin(), survey->candidates.end(), before);
    done = true;
  }

  SurveyQuestion question;
  std::vector<CodecSpec> menu;
  std::vector<double> arrivals;
  std::optional<FitSearch> fitting;  // comes first
  std::optional<Choose> search;
  bool priced = true;
  std::shared_ptr<Survey> survey = std::make_shared<Survey>();
  Status status;
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
  if (state_->fitting) {
    if (state_->fitting->work(evaluations)) state_->begin_search();
    return state_->done;
  }
  if (state_->search && !state_->search->work(evaluations)) return false;
  state_->finish();
  return true;
}

Result<SurveyPtr> Surveyor::survey() const {
  if (!state_->status.ok()) return state_->status;
  return SurveyPtr(state_->survey);
}

Result<SurveyPtr> make_survey(SurveyQuestion question) {
  constexpr uint64_t kSlice = 1 << 16;
  CGX_ASSIGN_OR_RETURN(Surveyor surveyor, Surveyor::create(std::move(question)));
  while (!surveyor.work(kSlice)) {
  }
  return surveyor.survey();
}

}  // namespace cgx::scheduler
