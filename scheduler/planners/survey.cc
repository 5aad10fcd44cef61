#include "scheduler/planners/survey.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <utility>

#include "kernels/codec.h"
#include "scheduler/planners/choose.h"
#include "scheduler/planners/merge.h"

namespace cgx::scheduler {
namespace {

// A table of more takes a search too long; its plans are the policy's, with one codec each.
constexpr size_t kSearchedTensorsMax = 2048;
// A plan predicted to take so much longer than the one that runs is not worth a trial.
constexpr double kWorthTrying = 1.1;
// The one that loses nothing is worth more.
constexpr double kBypassWorthTrying = 1.5;
// Less than this between two fits is rounding.
constexpr double kTelling = 1e-4;
// How much longer work may take than it should; less where it was timed while others had the core.
constexpr double kCrowds[] = {1, 0.7, 0.5, 0.35, 0.25, 1.5, 2, 3, 4, 6, 8};
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

// "12 fp32, 149 maxmin:4,bucket=512": pieces of tensors, by codec.
std::string codecs_text(const std::vector<Group>& groups) {
  std::map<std::string, size_t> counts;
  for (const Group& group : groups) {
    for (const Segment& segment : group.segments) ++counts[kernels::to_string(segment.spec)];
  }
  std::string text;
  for (const auto& [codec, count] : counts) {
    text += (text.empty() ? "" : ", ") + std::to_string(count) + " " + codec;
  }
  return text + " in " + std::to_string(groups.size()) +
         (groups.size() == 1 ? " group" : " groups");
}

// What the arithmetic of each codec takes under a plan, by the table of costs.
using ByCodec = std::vector<std::pair<CodecSpec, double>>;

Result<ByCodec> arithmetic_of(const PlanFacts& facts, const MachineCosts& costs) {
  ByCodec times;
  for (const Group& group : facts.plan.groups) {
    const Travel travel = travel_of(group.way, facts.plan.machines);
    for (const Segment& segment : group.segments) {
      CGX_ASSIGN_OR_RETURN(const GroupLoad load, load_of(segment, *facts.table, costs));
      const double ns = travel.encodes * load.encode_ns + travel.decodes * load.decode_ns;
      const auto found = std::find_if(times.begin(), times.end(),
                                      [&](const auto& each) { return each.first == segment.spec; });
      if (found == times.end()) {
        times.emplace_back(segment.spec, ns);
      } else {
        found->second += ns;
      }
    }
  }
  return times;
}

double sum_of(const ByCodec& times) {
  double sum = 0;
  for (const auto& [spec, ns] : times) sum += ns;
  return sum;
}

void slow_down(CodecCurves& codec, double times) {
  for (Curve* curve : {&codec.encode, &codec.decode}) {
    curve->floor_ns *= times;
    curve->ns_per_byte *= times;
  }
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
            .decisions = question.running->decisions.get()};
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
    const Conditions alone = conditions;
    double least = INFINITY;
    for (const double crowd : kCrowds) {
      CGX_ASSIGN_OR_RETURN(const Conditions crowded, fit_link(alone, crowd));
      CGX_ASSIGN_OR_RETURN(const double error, error_of(crowded));
      if (error > least - kTelling) continue;  // of equals the first
      least = error;
      conditions = crowded;
      survey->crowd = crowd;
    }
    CGX_ASSIGN_OR_RETURN(survey->running_ns, step_of(question.running->plan, conditions));
    return {};
  }

  // The link that explains the plan that runs, where all work takes `crowd` times as long.
  Result<Conditions> fit_link(Conditions conditions, double crowd) const {
    MachineCosts& costs = conditions.costs;
    for (double* cost : {&costs.copy_ns_per_byte, &costs.operation_ns, &costs.segment_ns,
                         &costs.frame_ns, &costs.wire_ns_per_byte}) {
      *cost *= crowd;
    }
    for (CodecCurves& codec : costs.codecs) slow_down(codec, crowd);
    double fast = 0, slow = kSlowestLink;
    for (int halvings = 0; halvings < 30; ++halvings) {
      CGX_ASSIGN_OR_RETURN(const double step_ns, step_of(question.running->plan, conditions));
      if (halvings == 0 && step_ns >= question.measured.step_ns) break;  // without a link, even
      (step_ns < question.measured.step_ns ? fast : slow) = conditions.link.ns_per_byte;
      conditions.link.ns_per_byte = (fast + slow) / 2;
    }
    return conditions;
  }

  // How far predictions of plans that were seen are from what they took, squared.
  Result<double> error_of(const Conditions& conditions) const {
    double error = 0;
    const auto add = [&](const Plan& plan, double measured_ns) -> Status {
      CGX_ASSIGN_OR_RETURN(const double step_ns, step_of(plan, conditions));
      const double off = std::log(step_ns / measured_ns);
      error += off * off;
      return {};
    };
    CGX_RETURN_IF_ERROR(add(question.running->plan, question.measured.step_ns));
    for (const SeenPlan& seen : question.seen) {
      if (seen.step_ns > 0) CGX_RETURN_IF_ERROR(add(seen.plan->plan, seen.step_ns));
    }
    return error;
  }

  // Each plan that was seen says how slow its codecs are here, each by its part in it; the one that
  // runs comes last and is believed most. Codecs that no plan had are as slow as its own.
  Status fit_arithmetic() {
    MachineCosts& costs = survey->conditions.costs;
    add_own_rows(costs);
    CGX_ASSIGN_OR_RETURN(const ByCodec parts, arithmetic_of(*question.running, costs));
    survey->arithmetic = times(question.measured.arithmetic_ns, sum_of(parts));
    for (CodecCurves& codec : costs.codecs) slow_down(codec, survey->arithmetic);
    costs.copy_ns_per_byte *= survey->arithmetic;
    std::vector<SeenPlan> seen = question.seen;
    seen.push_back({question.running, question.measured.arithmetic_ns});
    constexpr int kPasses = 3;  // codecs share plans
    for (int pass = 0; pass < kPasses; ++pass) {
      for (const SeenPlan& plan : seen) CGX_RETURN_IF_ERROR(learn(plan));
    }
    return {};
  }

  // 1: one of them is not known.
  static double times(double measured_ns, double predicted_ns) {
    if (predicted_ns <= 0 || measured_ns <= 0) return 1;
    return std::clamp(measured_ns / predicted_ns, kArithmeticMin, kArithmeticMax);
  }

  Status learn(const SeenPlan& seen) {
    CGX_ASSIGN_OR_RETURN(const ByCodec parts, arithmetic_of(*seen.plan, survey->conditions.costs));
    const double all = sum_of(parts);
    const double slower = times(seen.arithmetic_ns, all);
    for (const auto& [spec, ns] : parts) {
      for (CodecCurves& codec : survey->conditions.costs.codecs) {
        if (codec.spec == spec && ns > 0) slow_down(codec, std::pow(slower, ns / all));
      }
    }
    return {};
  }

  // A row for each codec that may run, so that each is learned by itself. One with feedback goes by
  // the row of the codec without.
  void add_own_rows(MachineCosts& costs) const {
    std::vector<CodecSpec> specs = menu;
    specs.push_back(question.running->policy.default_codec);
    for (const CodecSpec& spec : specs) {
      const auto same = [&](const CodecCurves& row) { return row.spec == spec; };
      const bool has = std::any_of(costs.codecs.begin(), costs.codecs.end(), same);
      const Result<CodecCurves> near = costs.curves_of(spec);
      if (!has && !spec.feedback() && near.ok()) costs.codecs.push_back(*near);
    }
  }

  // The policy's plan with one codec for all that its default decides, raw included.
  void add_uniform() {
    const Policy& policy = question.running->policy;
    for (const CodecSpec& level : levels_under(policy, menu)) {
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
    const Result<double> step_ns = step_of(*plan, survey->conditions);
    const double worth = bypass ? kBypassWorthTrying : kWorthTrying;
    if (!step_ns.ok() || *step_ns > worth * survey->running_ns) return;
    survey->candidates.push_back({name, std::move(plan->groups), *step_ns, bypass});
  }

  Status begin() {
    const Policy& policy = question.running->policy;
    if (policy.mode == PlanMode::kMerge) return begin_merging();
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

  // MergeComp's: real steps say what a model would have to guess.
  Status begin_merging() {
    constexpr uint32_t kMergeTrialsMax = 12;
    survey->trials_max = kMergeTrialsMax;
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
    auto& candidates = survey->candidates;
    std::stable_sort(candidates.begin(), candidates.end(), [](const auto& one, const auto& other) {
      return one.bypass != other.bypass ? other.bypass : one.step_ns < other.step_ns;
    });
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
