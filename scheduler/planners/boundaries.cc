#include "scheduler/planners/boundaries.h"

#include <algorithm>
#include <cmath>

#include "scheduler/plan/way.h"

namespace cgx::scheduler {
namespace {

constexpr size_t kStatesMax = 512;   // more than these are thinned
constexpr size_t kStatesKept = 256;  // to these

// Segments that arrive at once.
struct Atom {
  uint32_t first = 0, end = 0;  // among all segments
  double gap_ns = 0;            // since the atom before
  uint64_t raw_bytes = 0;
};

struct Option {
  uint32_t level = 0;
  Way way;
  Travels travels;
};

struct State {
  Lanes lanes;
  uint32_t groups = 0;
  uint32_t from = 0, parent = 0;  // the atoms before the last group, and the state there
  uint32_t option = 0;            // of the last group
};

// What is at least to come behind an atom.
struct Rest {
  double gap_ns = 0, work_ns = 0, link_ns = 0;
};

bool nowhere_later(const State& one, const State& other) {
  return one.lanes.work_ns <= other.lanes.work_ns && one.lanes.end_ns <= other.lanes.end_ns &&
         one.lanes.daemon_ns <= other.lanes.daemon_ns &&
         one.lanes.window_ns <= other.lanes.window_ns && one.groups <= other.groups &&
         one.lanes.link_nowhere_later(other.lanes);
}

std::vector<CollectiveWish> wishes_under(const PlanInputs& inputs) {
  if (inputs.policy.collective != CollectiveWish::kAuto) return {inputs.policy.collective};
  if (inputs.machines == 1) return {CollectiveWish::kScatter};
  std::vector<CollectiveWish> wishes;
  for (size_t i = 0; i < std::size(kCollectives); ++i) {
    const auto each = static_cast<Collective>(i);
    if (!row_of(each).in_racks || inputs.sites_each > 1) wishes.push_back(wish_for(each));
  }
  return wishes;
}

}  // namespace

struct Boundaries::Search {
  explicit Search(const PlannerQuestion& asked) : question(asked) {}

  Status prepare();
  bool work(uint64_t evaluations);
  Proposal proposal() const;

 private:
  const PlanInputs& inputs() const { return question.inputs; }
  uint32_t count() const { return static_cast<uint32_t>(atoms.size()); }
  void make_atoms();
  void make_options();
  Status make_sums();
  void make_rest();
  void bound();
  LaneTimes times(uint32_t from, uint32_t to, const Option& option) const;
  double least(const State& state, uint32_t at) const;
  void extend(uint32_t to);
  void insert(State state, uint32_t at);
  void thin(std::vector<State>& states, uint32_t at);
  Group group_of(uint32_t from, uint32_t to, const Option& option) const;

  PlannerQuestion question;
  std::vector<PlannedSegment> segments;
  std::vector<Atom> atoms;
  std::vector<CodecSpec> levels;
  std::vector<Option> options;
  std::vector<std::vector<GroupLoad>> sums;  // by level, of all atoms before
  std::vector<double> arrivals;              // of atoms, added up
  std::vector<Rest> rest;
  Proposal start;                          // the policy's own plan
  double at_most_ns = 0;                   // some plan takes no longer
  std::vector<std::vector<State>> states;  // by atoms that are in groups
  uint32_t from = 0, state = 0, to = 0;    // where the search stands
  bool exact = true;
};

void Boundaries::Search::make_atoms() {
  double last_ns = 0;
  for (uint32_t i = 0; i < segments.size(); ++i) {
    const Segment& segment = segments[i].segment;
    const double arrival = std::max(last_ns, question.arrival_ns[segment.tensor]);
    const uint64_t bytes = segment_bytes(segment, inputs().table);
    const bool joins = !atoms.empty() && arrival == last_ns &&
                       atoms.back().raw_bytes + bytes <= inputs().policy.group_bytes;
    if (!joins) atoms.push_back({.first = i, .gap_ns = arrival - last_ns});
    atoms.back().end = i + 1;
    atoms.back().raw_bytes += bytes;
    last_ns = arrival;
  }
}

// At least the policy's own codec goes its own way: its plan was made.
void Boundaries::Search::make_options() {
  levels = levels_under(inputs().policy, question.menu);
  for (uint32_t level = 0; level < levels.size(); ++level) {
    for (const CollectiveWish wish : wishes_under(inputs())) {
      Option option{.level = level};
      option.way = choose_way(
          {.wish = wish, .machines = inputs().machines, .rack_machines = inputs().rack_machines()},
          {}, inputs().table);
      if (inputs().policy.collective == CollectiveWish::kAuto && inputs().machines > 1) {
        option.way.reason = WayReason::kPlanned;
      }
      const Group all = count() == 0 ? Group{.way = option.way} : group_of(0, count(), option);
      if (!check_way(all.way, all, inputs().machines).ok()) continue;
      option.travels = travels_of(option.way, inputs().machines);
      options.push_back(option);
    }
  }
}

Status Boundaries::Search::make_sums() {
  CurvesOf curves_of(question.conditions.costs);
  for (uint32_t level = 0; level < levels.size(); ++level) {
    std::vector<GroupLoad>& sum = sums.emplace_back(1);
    for (const Atom& atom : atoms) {
      sum.push_back(sum.back());
      for (uint32_t i = atom.first; i < atom.end; ++i) {
        CGX_ASSIGN_OR_RETURN(const GroupLoad load,
                             load_of(at_level(segments[i], levels, level, inputs().policy),
                                     inputs().table, curves_of));
        sum.back() += load;
      }
    }
  }
  arrivals.push_back(0);
  for (const Atom& atom : atoms) arrivals.push_back(arrivals.back() + atom.gap_ns);
  return {};
}

LaneTimes Boundaries::Search::times(uint32_t first, uint32_t end, const Option& option) const {
  const std::vector<GroupLoad>& sum = sums[option.level];
  const LaneRules rules{question.conditions, part_limits(inputs().slab_bytes),
                        inputs().policy.window};
  const GroupLoad load = sum[end].minus(sum[first]);
  LaneTimes times = times_of(load, option.travels.of(load), rules);
  times.gap_ns = arrivals[end] - arrivals[first];
  return times;
}

void Boundaries::Search::make_rest() {
  rest.resize(atoms.size() + 1);
  const MachineCosts& costs = question.conditions.costs;
  for (uint32_t k = count(); k-- > 0;) {
    Rest least{INFINITY, INFINITY, INFINITY};
    for (const Option& option : options) {
      const GroupLoad load = sums[option.level][k + 1].minus(sums[option.level][k]);
      // What loses nothing may lie beside what does.
      for (const Travel& travel : {option.travels.raw, option.travels.lossy}) {
        least.work_ns =
            std::min(least.work_ns, costs.segment_ns * static_cast<double>(load.segments) +
                                        arithmetic_ns(load, travel) +
                                        costs.wire_ns_per_byte * bytes_moved(load, travel));
        least.link_ns = std::min(least.link_ns,
                                 question.conditions.link.ns_per_byte * bytes_sent(load, travel));
      }
    }
    rest[k] = {rest[k + 1].gap_ns + atoms[k].gap_ns, rest[k + 1].work_ns + least.work_ns,
               rest[k + 1].link_ns + least.link_ns};
  }
}

// No plan that begins so ends earlier.
double Boundaries::Search::least(const State& at_state, uint32_t at) const {
  const Lanes& lanes = at_state.lanes;
  if (at == count()) return lanes.step_ns();
  const Rest& more = rest[at];
  return std::max({lanes.end_ns,
                   lanes.backprop_ns + more.gap_ns + question.conditions.share * more.work_ns,
                   lanes.daemon_ns + more.work_ns, lanes.link_ns + more.link_ns});
}

// Cuts at equal sizes: something to be better than.
void Boundaries::Search::bound() {
  at_most_ns = INFINITY;
  for (const Option& option : options) {
    for (const uint64_t bytes : kUniformBytes) {
      Lanes lanes;
      uint32_t first = 0;
      for (uint32_t end = 1; end <= count(); ++end) {
        const GroupLoad load = sums[option.level][end].minus(sums[option.level][first]);
        if (end < count() && load.raw_bytes < bytes) continue;
        lanes.advance(times(first, end, option), question.conditions.share);
        first = end;
      }
      at_most_ns = std::min(at_most_ns, lanes.step_ns());
    }
  }
}

Status Boundaries::Search::prepare() {
  CGX_ASSIGN_OR_RETURN(start, proposal_of_policy(question));
  CGX_ASSIGN_OR_RETURN(segments, segments_of(inputs()));
  make_atoms();
  make_options();
  CGX_RETURN_IF_ERROR(make_sums());
  make_rest();
  bound();
  states.resize(atoms.size() + 1);
  states[0].push_back({});
  to = 1;
  return {};
}

void Boundaries::Search::insert(State made, uint32_t at) {
  const double bound = least(made, at);
  if (bound > at_most_ns * (1 + question.tolerance)) return;
  Lanes& lanes = made.lanes;
  if (at == count()) {
    at_most_ns = std::min(at_most_ns, bound);
  } else {
    // A lane that is free before anything can come is as good as one that is free then.
    lanes.nothing_before(lanes.backprop_ns + atoms[at].gap_ns);
    lanes.end_ns = std::max(lanes.end_ns, bound);
  }
  std::vector<State>& there = states[at];
  for (const State& other : there) {
    if (nowhere_later(other, made)) return;
  }
  std::erase_if(there, [&](const State& other) { return nowhere_later(made, other); });
  there.push_back(made);
  if (there.size() > kStatesMax) thin(there, at);
}

// Keeps those that promise the shortest step, and of equals the least work.
void Boundaries::Search::thin(std::vector<State>& there, uint32_t at) {
  exact = false;
  const auto before = [&](const State& one, const State& other) {
    const double first = least(one, at), second = least(other, at);
    return first != second ? first < second : one.lanes.work_ns < other.lanes.work_ns;
  };
  std::nth_element(there.begin(), there.begin() + kStatesKept, there.end(), before);
  there.resize(kStatesKept);
}

void Boundaries::Search::extend(uint32_t end) {
  const State before = states[from][state];
  for (uint32_t o = 0; o < options.size(); ++o) {
    State made = before;
    made.lanes.advance(times(from, end, options[o]), question.conditions.share);
    made.groups = before.groups + 1;
    made.from = from;
    made.parent = state;
    made.option = o;
    insert(made, end);
  }
}

bool Boundaries::Search::work(uint64_t evaluations) {
  uint64_t done = 0;
  while (from < count()) {
    if (state >= states[from].size()) {
      ++from;
      state = 0;
      to = from + 1;
      continue;
    }
    if (done >= evaluations) return false;
    extend(to);
    done += options.size();
    if (++to > count()) {
      ++state;
      to = from + 1;
    }
  }
  return true;
}

Group Boundaries::Search::group_of(uint32_t first, uint32_t end, const Option& option) const {
  Group group{.way = option.way};
  for (uint32_t i = atoms[first].first; i < atoms[end - 1].end; ++i) {
    group.segments.push_back(at_level(segments[i], levels, option.level, inputs().policy));
  }
  fit_group(inputs().policy, group, inputs().machines);
  return group;
}

Proposal Boundaries::Search::proposal() const {
  CGX_ASSERT(from == count());
  double shortest = INFINITY;
  for (const State& end : states.back()) shortest = std::min(shortest, end.lanes.step_ns());
  const State* best = nullptr;
  for (const State& end : states.back()) {
    if (end.lanes.step_ns() > shortest * (1 + question.tolerance)) continue;
    const auto rank = [](const State& one) {
      return rank_of(one.lanes.work_ns, one.groups, one.lanes.step_ns());
    };
    if (!best || rank(end) < rank(*best)) best = &end;
  }
  // The policy's own plan may cut what arrives at once.
  if (!best || start.step_ns < shortest * (1 - 1e-9)) return start;
  Proposal proposal{
      .step_ns = best->lanes.step_ns(), .work_ns = best->lanes.work_ns, .exact = exact};
  uint32_t end = count();
  for (const State* at = best; end > 0; at = &states[end][at->parent]) {
    proposal.groups.push_back(group_of(at->from, end, options[at->option]));
    end = at->from;
    if (end == 0) break;
  }
  std::reverse(proposal.groups.begin(), proposal.groups.end());
  return proposal;
}

Boundaries::Boundaries(std::unique_ptr<Search> search) : search_(std::move(search)) {}
Boundaries::Boundaries(Boundaries&&) noexcept = default;
Boundaries::~Boundaries() = default;

Result<Boundaries> Boundaries::create(const PlannerQuestion& question) {
  auto search = std::make_unique<Search>(question);
  CGX_RETURN_IF_ERROR(search->prepare());
  return Boundaries(std::move(search));
}

bool Boundaries::work(uint64_t evaluations) {
  return search_->work(evaluations);
}

Proposal Boundaries::proposal() const {
  return search_->proposal();
}

Result<Proposal> propose_boundaries(const PlannerQuestion& question) {
  return propose_by<Boundaries>(question);
}

}  // namespace cgx::scheduler
