#include "scheduler/planners/fit.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "kernels/codec.h"
#include "scheduler/planners/slowest_machine.h"

namespace cgx::scheduler {

// What FitSearch::State holds cannot be of the unnamed namespace.

// A plan that was seen, with what it took.
struct Evidence {
  WeighedPlan plan;
  double step_ns = 0;
};

// All work but arithmetic: what each operation, tensor and frame takes, and each byte.
struct OtherWork {
  double items = 1, bytes = 1;  // times longer than in the table
};

namespace {

// Less than this between two fits is rounding.
constexpr double kTelling = 1e-4;
// How much longer work that was not timed may take than it should; less where its arithmetic was
// timed while others had the core. The first is that of work that was timed.
constexpr double kCrowds[] = {1, 0.7, 0.5, 0.35, 0.25, 1.5, 2, 3, 4, 6, 8};
// Of a round trip that was measured behind gradients.
constexpr double kTrips[] = {1, 0.3, 0.1, 0};
// What speaks against each of them, for each factor of e away from 1: so far off may a prediction
// be.
constexpr double kUnlikely = 0.02;
// A link that explains so much less of a step than was measured may be as fast as that.
constexpr double kNoise = 0.05;
// Of the daemon's arithmetic against the table of costs: a slow machine, cores that are shared.
constexpr double kArithmeticMin = 0.5, kArithmeticMax = 8;
// Of the rest of its work likewise: the kernel's part differs more.
constexpr double kOtherWorkMin = 0.25, kOtherWorkMax = 16;
// Of a link, in ns a byte; 100 kB/s is slower than any. It is found by halving what is in question.
constexpr double kSlowestLink = 10'000;
constexpr int kHalvings = 30;

double squared(double value) {
  return value * value;
}

double unlikely(double factor) {
  return squared(kUnlikely * std::log(std::max(factor, 0.05)));
}

void slow_down(CodecCurves& codec, double times) {
  for (Curve* curve : {&codec.encode, &codec.decode}) {
    curve->floor_ns *= times;
    curve->ns_per_byte *= times;
  }
}

// What each codec takes under a plan, by the table of costs.
using ByCodec = std::vector<std::pair<CodecSpec, double>>;

Result<ByCodec> arithmetic_of(const PlanFacts& facts, const MachineCosts& costs) {
  ByCodec times;
  const auto add = [&](const CodecSpec& spec, double ns) {
    const auto found = std::find_if(times.begin(), times.end(),
                                    [&](const auto& each) { return each.first == spec; });
    if (found == times.end()) {
      times.emplace_back(spec, ns);
    } else {
      found->second += ns;
    }
  };
  CurvesOf curves_of(costs);
  Way last;
  Travel travel = travel_of(last, facts.plan.machines);
  for (const Group& group : facts.plan.groups) {
    if (!(group.way == last)) travel = travel_of(last = group.way, facts.plan.machines);
    for (const Segment& segment : group.segments) {
      CGX_ASSIGN_OR_RETURN(const GroupLoad load, load_of(segment, *facts.table, curves_of));
      const double in_rack = rack_arithmetic_ns(load, travel);
      add(segment.spec, arithmetic_ns(load, travel) - in_rack);
      if (in_rack > 0) add(segment.codec(/*in_rack=*/true), in_rack);
    }
  }
  return times;
}

double sum_of(const ByCodec& times) {
  double sum = 0;
  for (const auto& [spec, ns] : times) sum += ns;
  return sum;
}

// 1: one of them is not known.
double times_longer(double measured_ns, double predicted_ns) {
  if (predicted_ns <= 0 || measured_ns <= 0) return 1;
  return std::clamp(measured_ns / predicted_ns, kArithmeticMin, kArithmeticMax);
}

// The one that runs comes last.
std::vector<SeenPlan> all_seen(const SurveyQuestion& question) {
  std::vector<SeenPlan> seen = question.seen;
  const StepSample& now = question.measured;
  seen.push_back({question.running, now.arithmetic_ns, now.step_ns, now.busy_ns});
  return seen;
}

// Each once.
std::vector<CodecSpec> codecs_of(const std::vector<SeenPlan>& plans) {
  std::vector<CodecSpec> codecs;
  const auto add = [&](const CodecSpec& spec) {
    if (std::find(codecs.begin(), codecs.end(), spec) == codecs.end()) codecs.push_back(spec);
  };
  for (const SeenPlan& seen : plans) {
    for (const Group& group : seen.plan->plan.groups) {
      for (const Segment& segment : group.segments) {
        add(segment.spec);
        add(segment.codec(/*in_rack=*/true));
      }
    }
  }
  return codecs;
}

// So that the codec is learned by itself.
void add_own_row(CodecSpec spec, MachineCosts& costs) {
  spec.flags &= static_cast<uint8_t>(~CodecSpec::kFeedback);
  const auto same = [&](const CodecCurves& row) { return same_row(row.spec, spec); };
  if (std::any_of(costs.codecs.begin(), costs.codecs.end(), same)) return;
  const Result<CodecCurves> near = costs.curves_of(spec);
  if (near.ok()) costs.codecs.push_back(*near);
}

// Of each codec that may run or that a plan had.
void add_own_rows(std::span<const CodecSpec> menu, const std::vector<SeenPlan>& seen,
                  MachineCosts& costs) {
  for (const CodecSpec& spec : menu) add_own_row(spec, costs);
  add_own_row(seen.back().plan->policy.default_codec, costs);
  for (const CodecSpec& spec : codecs_of(seen)) add_own_row(spec, costs);
}

Status learn(const SeenPlan& seen, MachineCosts& costs) {
  CGX_ASSIGN_OR_RETURN(const ByCodec parts, arithmetic_of(*seen.plan, costs));
  const double all = sum_of(parts);
  const double longer = times_longer(seen.arithmetic_ns, all);
  for (const auto& [spec, ns] : parts) {
    for (CodecCurves& codec : costs.codecs) {
      if (same_row(codec.spec, spec) && ns > 0) slow_down(codec, std::pow(longer, ns / all));
    }
  }
  return {};
}

// Each plan that was seen says how slow its codecs are here, each by its part in it; the one that
// runs comes last and is believed most. Codecs that no plan had are as slow as its own.
Result<double> fit_arithmetic(const SurveyQuestion& question, MachineCosts& costs) {
  CGX_ASSIGN_OR_RETURN(const ByCodec parts, arithmetic_of(*question.running, costs));
  const double all = times_longer(question.measured.arithmetic_ns, sum_of(parts));
  for (CodecCurves& codec : costs.codecs) slow_down(codec, all);
  costs.copy_ns_per_byte *= all;
  const std::vector<SeenPlan> seen = all_seen(question);
  constexpr int kPasses = 3;  // codecs share plans
  for (int pass = 0; pass < kPasses; ++pass) {
    for (const SeenPlan& plan : seen) CGX_RETURN_IF_ERROR(learn(plan, costs));
  }
  return all;
}

Result<std::vector<Evidence>> evidence_of(const SurveyQuestion& question,
                                          std::span<const double> arrivals,
                                          const MachineCosts& costs) {
  std::vector<Evidence> found;
  const auto add = [&](const PlanFacts& facts, double step_ns) -> Status {
    CGX_ASSIGN_OR_RETURN(WeighedPlan plan, weigh(facts.plan, *facts.table, arrivals, costs));
    found.push_back({std::move(plan), step_ns});
    return {};
  };
  CGX_RETURN_IF_ERROR(add(*question.running, question.measured.step_ns));
  for (const SeenPlan& seen : question.seen) {
    if (seen.step_ns > 0) CGX_RETURN_IF_ERROR(add(*seen.plan, seen.step_ns));
  }
  return found;
}

Conditions slowed(Conditions conditions, const OtherWork& times) {
  MachineCosts& costs = conditions.costs;
  for (double* cost : {&costs.operation_ns, &costs.segment_ns, &costs.frame_ns}) {
    *cost *= times.items;
  }
  costs.wire_ns_per_byte *= times.bytes;
  return conditions;
}

// How many times longer than it should the daemon takes for what is not arithmetic, of plans where
// both were timed. What plans differ in tells items from bytes; until then they are as slow as each
// other.
class OtherWorkFit {
 public:
  void add(double items_ns, double bytes_ns, double took_ns) {
    if (items_ns + bytes_ns <= 0) return;
    const double weight = 1 / squared(items_ns + bytes_ns);  // a share of the work counts alike
    items_items_ += weight * items_ns * items_ns;
    items_bytes_ += weight * items_ns * bytes_ns;
    bytes_bytes_ += weight * bytes_ns * bytes_ns;
    items_took_ += weight * items_ns * took_ns;
    bytes_took_ += weight * bytes_ns * took_ns;
    ++plans_;
  }

  std::optional<OtherWork> times() const {
    if (plans_ == 0) return std::nullopt;
    const double both =
        std::clamp((items_took_ + bytes_took_) / (items_items_ + 2 * items_bytes_ + bytes_bytes_),
                   kOtherWorkMin, kOtherWorkMax);
    // Least squares, with a little against items and bytes that differ.
    const double alike = kAlike * plans_;
    const double a = items_items_ + alike, b = items_bytes_ - alike, c = bytes_bytes_ + alike;
    const auto near = [&](double times) { return std::clamp(times, both / kApart, both * kApart); };
    const double items = near((c * items_took_ - b * bytes_took_) / (a * c - b * b));
    return OtherWork{items, near((bytes_took_ - b * items) / c)};
  }

 private:
  static constexpr double kAlike = 0.003;
  // Whoever else had the cores while one of the plans ran must not tell them apart.
  static constexpr double kApart = 3;

  double items_items_ = 0, items_bytes_ = 0, bytes_bytes_ = 0, items_took_ = 0, bytes_took_ = 0;
  int plans_ = 0;
};

Result<std::optional<OtherWork>> fit_other_work(const SurveyQuestion& question,
                                                std::span<const double> arrivals,
                                                const Conditions& conditions) {
  OtherWorkFit fit;
  for (const SeenPlan& seen : all_seen(question)) {
    const bool timed = seen.arithmetic_ns > 0 && seen.busy_ns > seen.arithmetic_ns;
    if (!timed || seen.step_ns <= 0) continue;
    CGX_ASSIGN_OR_RETURN(const ByCodec parts, arithmetic_of(*seen.plan, conditions.costs));
    CGX_ASSIGN_OR_RETURN(const WeighedPlan weighed,
                         weigh(seen.plan->plan, *seen.plan->table, arrivals, conditions.costs));
    const double all_ns = play(weighed, conditions).work_ns - sum_of(parts);
    const double items_ns = play(weighed, slowed(conditions, {1, 0})).work_ns - sum_of(parts);
    fit.add(items_ns, all_ns - items_ns, seen.busy_ns - seen.arithmetic_ns);
  }
  return fit.times();
}

// The link with which a step of the plan takes so long.
void fit_link(const WeighedPlan& plan, double wanted_ns, Conditions& conditions) {
  double fast = 0, slow = kSlowestLink;
  conditions.link.ns_per_byte = 0;
  if (play(plan, conditions).step_ns() >= wanted_ns) return;
  for (int halving = 0; halving < kHalvings; ++halving) {
    conditions.link.ns_per_byte = (fast + slow) / 2;
    const double step_ns = play(plan, conditions).step_ns();
    (step_ns < wanted_ns ? fast : slow) = conditions.link.ns_per_byte;
  }
}

// How far predictions are from what plans took, squared.
double error_of(const std::vector<Evidence>& seen, const Conditions& conditions) {
  double error = 0;
  for (const Evidence& each : seen) {
    error += squared(std::log(play(each.plan, conditions).step_ns() / each.step_ns));
  }
  return error;
}

}  // namespace

std::vector<double> arrivals_of(const SurveyQuestion& question) {
  const auto& measured = question.measured.arrival_ns;
  std::vector<double> arrivals(measured.begin(), measured.end());
  arrivals.resize(question.running->table->size());
  delay_to_the_latest(question, arrivals);
  return arrivals;
}

struct FitSearch::State {
  // What is tried: a crowd, a length of the way, and the plan that the link has to explain, or, as
  // the first, a link that is as fast as it may be.
  size_t links() const { return explained + (faster ? 1 : 0); }
  size_t attempts() const {
    return (other_work ? 1 : std::size(kCrowds)) * std::size(kTrips) * links();
  }
  void begin_crowd(double crowd) {
    crowded = seen;
    for (Evidence& each : crowded) each.plan = each.plan.slower(crowd);
  }
  void attempt(size_t number) {
    const size_t link = number % links(), trips = number / links() % std::size(kTrips);
    const double crowd = kCrowds[number / links() / std::size(kTrips)];
    if (link == 0 && trips == 0) begin_crowd(crowd);
    Fit tried{.conditions = slowed(alone, {crowd, crowd}), .crowd = crowd, .trips = kTrips[trips]};
    tried.conditions.costs.copy_ns_per_byte *= crowd;
    tried.conditions.link.trip_ns *= tried.trips;
    const bool fast = faster && link == 0;
    const Evidence& wanted = crowded[faster && link > 0 ? link - 1 : link];
    fit_link(wanted.plan, (fast ? 1 - kNoise : 1) * wanted.step_ns, tried.conditions);
    offer(tried, faster && !fast ? squared(2 * kNoise) : 0);
    spent += kHalvings * wanted.plan.loads.size();
  }
  // Of what explains as much as another, the first counts. `doubt`: what speaks against it,
  // squared.
  void offer(const Fit& tried, double doubt) {
    const double error =
        error_of(crowded, tried.conditions) + unlikely(tried.crowd) + unlikely(tried.trips) + doubt;
    for (const Evidence& each : crowded) spent += each.plan.loads.size();
    if (error > least - kTelling) return;
    least = error;
    fit.crowd = tried.crowd;
    fit.trips = tried.trips;
    fit.conditions = tried.conditions;
  }
  Result<Fit> end() {
    for (CodecCurves& codec : fit.conditions.costs.codecs) slow_down(codec, fit.crowd);
    if (other_work) fit.crowd = other_work->items;
    CGX_ASSIGN_OR_RETURN(const Timeline step,
                         timeline_of(running->plan, *running->table, arrivals, fit.conditions));
    fit.running_ns = step.step_ns();
    fit.running_bytes = step.sent_bytes;
    return std::move(fit);
  }

  FactsPtr running;
  std::vector<double> arrivals;
  std::vector<Evidence> seen, crowded;  // the plan that runs is the first
  // If it is known, no crowd but 1 comes into question, and the link may be any that explains one
  // of the plans, because work may hide it from the one that runs.
  std::optional<OtherWork> other_work;
  bool faster = false;      // as SurveyQuestion's
  size_t explained = 1;     // plans, by the link
  Conditions alone;         // without a crowd
  Fit fit;                  // the best so far
  double least = INFINITY;  // what speaks against it
  size_t next = 0;          // attempt
  uint64_t spent = 0;       // evaluations
  bool done = false;
  Result<Fit> found = Fit{};
};

FitSearch::FitSearch(std::unique_ptr<State> state) : state_(std::move(state)) {}
FitSearch::FitSearch(FitSearch&&) noexcept = default;
FitSearch::~FitSearch() = default;

Result<FitSearch> FitSearch::create(const SurveyQuestion& asked, std::span<const CodecSpec> menu,
                                    std::span<const double> arrivals) {
  const SurveyQuestion question = by_the_slowest(asked);
  const size_t groups = question.running->plan.groups.size();
  if (groups > kFittedGroupsMax) {
    return resource_exhausted("plans of " + std::to_string(groups) +
                              " groups are not priced, which would take seconds; " +
                              std::to_string(kFittedGroupsMax) +
                              " are the most: raise group_bytes, or segment_bytes");
  }
  auto state = std::make_unique<State>();
  Fit& fit = state->fit;
  fit.conditions = {*question.costs, {.trip_ns = question.trip_ns}, question.share};
  MachineCosts& costs = fit.conditions.costs;
  add_own_rows(menu, all_seen(question), costs);
  CGX_ASSIGN_OR_RETURN(fit.arithmetic, fit_arithmetic(question, costs));
  CGX_ASSIGN_OR_RETURN(state->other_work, fit_other_work(question, arrivals, fit.conditions));
  const std::optional<OtherWork>& other_work = state->other_work;
  if (other_work) fit.conditions = slowed(std::move(fit.conditions), *other_work);
  CGX_ASSIGN_OR_RETURN(state->seen, evidence_of(question, arrivals, costs));
  state->explained = other_work ? state->seen.size() : 1;
  state->faster = question.faster;
  state->alone = fit.conditions;
  state->running = question.running;
  state->arrivals.assign(arrivals.begin(), arrivals.end());
  return FitSearch(std::move(state));
}

bool FitSearch::work(uint64_t evaluations) {
  state_->spent = 0;
  while (state_->next < state_->attempts()) {
    if (state_->spent >= evaluations) return false;
    state_->attempt(state_->next++);
  }
  if (!std::exchange(state_->done, true)) state_->found = state_->end();
  return true;
}

const Result<Fit>& FitSearch::found() const {
  return state_->found;
}

Result<bool> finish_fit(std::optional<FitSearch>& fitting, uint64_t evaluations, Fit& fitted) {
  if (!fitting) return true;
  if (!fitting->work(evaluations)) return false;
  CGX_ASSIGN_OR_RETURN(fitted, fitting->found());
  fitting.reset();
  return false;
}

}  // namespace cgx::scheduler
