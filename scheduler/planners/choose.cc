#include "scheduler/planners/choose.h"

#include <algorithm>
#include <cmath>

#include "scheduler/plan/way.h"
#include "scheduler/planners/choices.h"

namespace cgx::scheduler {
namespace {

constexpr uint32_t kPassesMax = 8;  // of the descent
constexpr size_t kNearMax = 64;     // plans that are kept beside the best
constexpr double kRounding = 1e-9;

// One plan: levels by segment, groups by their ends and ways.
struct Draft {
  std::vector<uint32_t> levels;
  std::vector<uint32_t> ends;
  std::vector<uint32_t> ways;
  double step_ns = INFINITY, work_ns = INFINITY;

  // Work decides between steps that are equal but for rounding.
  bool better_than(const Draft& other) const {
    if (step_ns < other.step_ns * (1 - kRounding)) return true;
    return step_ns <= other.step_ns * (1 + kRounding) && work_ns < other.work_ns * (1 - kRounding);
  }
  // Among plans whose steps are near each other.
  auto rank() const { return rank_of(work_ns, ends.size(), step_ns); }
};

// A tensor's segments: one, or its pieces.
struct Pieces {
  uint32_t first = 0, end = 0;
  uint64_t raw_bytes = 0;
};

struct Route {
  Way way;
  Travels travels;
};

// The collectives that some realisable option of the tree takes.
std::vector<Collective> collectives_of_the_tree() {
  std::vector<Collective> found;
  for (const Choices& choices : all_choices({.cpu = true, .gpu = false})) {
    const std::optional<Realised> how = realisable(choices);
    if (how && std::find(found.begin(), found.end(), how->collective) == found.end()) {
      found.push_back(how->collective);
    }
  }
  return found;
}

}  // namespace

struct Choose::Search {
  explicit Search(const PlannerQuestion& asked) : question(asked) {}

  Status prepare();
  bool work(uint64_t evaluations);
  Proposal proposal() const;

 private:
  const PlanInputs& inputs() const { return question.inputs; }
  uint32_t count() const { return static_cast<uint32_t>(segments.size()); }
  Proposal proposal_of(const Draft& draft) const;
  Status make_routes();
  Status make_loads();
  void make_order();
  Draft uniform(uint32_t level, uint32_t route, uint64_t bytes) const;
  std::vector<GroupSpan> play_draft(Draft& draft);
  bool offer(Draft draft);
  double near_ns(double step_ns) const;
  void keep(Draft draft);
  std::vector<bool> before_a_bubble();
  void try_codecs(const Pieces& tensor);
  void try_way(uint32_t group);
  void try_boundary(uint32_t group);
  void next_phase();

  enum class Phase : uint8_t { kStarts, kCodecs, kWays, kBoundaries, kDone };

  PlannerQuestion question;
  std::vector<PlannedSegment> segments;
  std::vector<CodecSpec> levels;
  std::vector<Route> routes;
  std::vector<std::vector<GroupLoad>> loads;  // by level, by segment
  std::vector<double> arrivals;               // by segment, none before the one in front
  std::vector<Pieces> order;                  // of codecs: ByteComp's
  std::vector<bool> spared;                   // by segment: lies before a bubble
  Proposal own;                               // the policy's plan
  Draft best;
  // Steps near the best one's, none with a longer step and a higher rank than another has.
  std::vector<Draft> near;
  Phase phase = Phase::kStarts;
  uint32_t at = 0, passes = 0;  // in the phase
  bool improved = false;        // in this pass
  uint64_t spent = 0;           // evaluations
};

Status Choose::Search::make_routes() {
  std::vector<CollectiveWish> wishes = {inputs().policy.collective};
  const bool free = wishes[0] == CollectiveWish::kAuto && inputs().machines > 1;
  if (free) {
    wishes.clear();
    for (const Collective each : collectives_of_the_tree()) wishes.push_back(wish_for(each));
  }
  for (const CollectiveWish wish : wishes) {
    Way way = choose_way(
        {.wish = wish, .machines = inputs().machines, .rack_machines = inputs().rack_machines()},
        {}, inputs().table);
    if (free) way.reason = WayReason::kPlanned;
    routes.push_back({way, travels_of(way, inputs().machines)});
  }
  return {};
}

Status Choose::Search::make_loads() {
  CurvesOf curves_of(question.conditions.costs);
  levels = levels_under(inputs().policy, question.menu);
  for (uint32_t level = 0; level < levels.size(); ++level) {
    std::vector<GroupLoad>& row = loads.emplace_back();
    for (uint32_t i = 0; i < count(); ++i) {
      CGX_ASSIGN_OR_RETURN(const GroupLoad load,
                           load_of(at_level(segments[i], levels, level, inputs().policy),
                                   inputs().table, curves_of));
      row.push_back(load);
    }
  }
  double last_ns = 0;
  for (const PlannedSegment& each : segments) {
    last_ns = std::max(last_ns, question.arrival_ns[each.segment.tensor]);
    arrivals.push_back(last_ns);
  }
  return {};
}

void Choose::Search::make_order() {
  for (uint32_t i = 0; i < count(); ++i) {
    const bool begins = i == 0 || segments[i].segment.tensor != segments[i - 1].segment.tensor;
    if (begins) order.push_back({.first = i});
    order.back().end = i + 1;
    order.back().raw_bytes += loads[0][i].raw_bytes;
  }
  std::reverse(order.begin(), order.end());
  std::stable_sort(order.begin(), order.end(), [](const Pieces& one, const Pieces& other) {
    return one.raw_bytes > other.raw_bytes;
  });
}

Status Choose::Search::prepare() {
  // What the policy's collective cannot carry is an error here.
  CGX_ASSIGN_OR_RETURN(own, proposal_of_policy(question));
  own.exact = false;
  CGX_ASSIGN_OR_RETURN(segments, segments_of(inputs()));
  CGX_RETURN_IF_ERROR(make_routes());
  CGX_RETURN_IF_ERROR(make_loads());
  make_order();
  spared.assign(count(), false);
  return {};
}

Draft Choose::Search::uniform(uint32_t level, uint32_t route, uint64_t bytes) const {
  Draft draft{.levels = std::vector<uint32_t>(count(), level)};
  uint64_t held = 0;
  uint32_t first = 0;
  for (uint32_t i = 0; i < count(); ++i) {
    held += loads[level][i].raw_bytes;
    const bool full = held >= bytes || i + 1 - first == kGroupSegmentsMax;
    if (!full && i + 1 < count()) continue;
    draft.ends.push_back(first = i + 1);
    draft.ways.push_back(route);
    held = 0;
  }
  return draft;
}

std::vector<GroupSpan> Choose::Search::play_draft(Draft& draft) {
  const LaneRules rules{question.conditions, part_limits(inputs().slab_bytes),
                        inputs().policy.window};
  Lanes lanes;
  std::vector<GroupSpan> spans;
  uint32_t first = 0;
  for (uint32_t g = 0; g < draft.ends.size(); ++g) {
    GroupLoad load;
    for (uint32_t i = first; i < draft.ends[g]; ++i) load += loads[draft.levels[i]][i];
    LaneTimes times = times_of(load, routes[draft.ways[g]].travels.of(load), rules);
    times.gap_ns = arrivals[draft.ends[g] - 1] - (first == 0 ? 0 : arrivals[first - 1]);
    spans.push_back(lanes.advance(times, question.conditions.share));
    first = draft.ends[g];
  }
  spent += draft.ends.size();
  draft.step_ns = lanes.step_ns();
  draft.work_ns = lanes.work_ns;
  return spans;
}

bool Choose::Search::offer(Draft draft) {
  play_draft(draft);
  const bool better = draft.better_than(best);
  if (better) {
    best = draft;
    improved = true;
  }
  keep(std::move(draft));
  return better;
}

// What takes at most so long is as good as a step of that length.
double Choose::Search::near_ns(double step_ns) const {
  return step_ns * (1 + std::max(question.tolerance, kRounding));
}

void Choose::Search::keep(Draft draft) {
  const double most_ns = near_ns(best.step_ns);
  if (draft.step_ns > most_ns) return;
  const auto beats = [](const Draft& one, const Draft& other) {
    return one.step_ns <= other.step_ns && one.rank() <= other.rank();
  };
  if (std::any_of(near.begin(), near.end(), [&](const Draft& each) { return beats(each, draft); }))
    return;
  std::erase_if(near,
                [&](const Draft& each) { return each.step_ns > most_ns || beats(draft, each); });
  near.push_back(std::move(draft));
  if (near.size() <= kNearMax) return;
  near.erase(std::max_element(near.begin(), near.end(), [](const Draft& one, const Draft& other) {
    return one.rank() < other.rank();
  }));
}

// By segment. The link's last pause: what was sent before it was not in anybody's way.
std::vector<bool> Choose::Search::before_a_bubble() {
  const std::vector<GroupSpan> spans = play_draft(best);
  uint32_t end = 0;
  for (uint32_t g = 1; g < spans.size(); ++g) {
    if (spans[g].link_begin_ns > spans[g - 1].link_end_ns) end = best.ends[g - 1];
  }
  std::vector<bool> before(count(), false);
  std::fill_n(before.begin(), end, true);
  return before;
}

// All pieces of a tensor have its codec.
void Choose::Search::try_codecs(const Pieces& tensor) {
  if (!segments[tensor.first].by_default || spared[tensor.end - 1]) return;
  const uint32_t now = best.levels[tensor.first];
  bool changed = false;
  for (uint32_t level = 0; level < levels.size(); ++level) {
    if (level == now) continue;
    Draft draft = best;
    std::fill(draft.levels.begin() + tensor.first, draft.levels.begin() + tensor.end, level);
    changed |= offer(std::move(draft));
  }
  if (changed) spared = before_a_bubble();
}

// With the codecs it has, and with one for all of it; a tensor that lies in several groups keeps
// its own.
void Choose::Search::try_way(uint32_t group) {
  const uint32_t first = group == 0 ? 0 : best.ends[group - 1], end = best.ends[group];
  const bool whole = inputs().policy.segment_bytes == 0;
  for (uint32_t route = 0; route < routes.size(); ++route) {
    Draft draft = best;
    draft.ways[group] = route;
    for (uint32_t level = 0; whole && level < levels.size(); ++level) {
      std::fill(draft.levels.begin() + first, draft.levels.begin() + end, level);
      offer(draft);
    }
    if (route == best.ways[group]) continue;
    Draft other = best;
    other.ways[group] = route;
    offer(std::move(other));
  }
}

// Behind the group: without it, one segment earlier or later; and in the middle of the group.
void Choose::Search::try_boundary(uint32_t group) {
  const uint32_t first = group == 0 ? 0 : best.ends[group - 1], end = best.ends[group];
  if (end - first > 1) {
    Draft split = best;
    split.ends.insert(split.ends.begin() + group, first + (end - first) / 2);
    split.ways.insert(split.ways.begin() + group, split.ways[group]);
    if (offer(std::move(split))) return;
  }
  if (group + 1 >= best.ends.size()) return;
  const uint32_t next_end = best.ends[group + 1];
  const auto holds = [](uint32_t from, uint32_t to) { return to - from <= kGroupSegmentsMax; };
  if (holds(first, next_end)) {
    Draft merged = best;
    merged.ends.erase(merged.ends.begin() + group);
    merged.ways.erase(merged.ways.begin() + group);
    if (offer(std::move(merged))) return;
  }
  for (const uint32_t moved : {end - 1, end + 1}) {
    if (moved <= first || moved >= next_end) continue;
    if (!holds(first, moved) || !holds(moved, next_end)) continue;
    Draft draft = best;
    draft.ends[group] = moved;
    if (offer(std::move(draft))) return;
  }
}

void Choose::Search::next_phase() {
  at = 0;
  switch (phase) {
    case Phase::kStarts:
    case Phase::kBoundaries:
      if (phase == Phase::kBoundaries && (!improved || ++passes == kPassesMax)) {
        phase = Phase::kDone;
        return;
      }
      phase = Phase::kCodecs;
      spared = before_a_bubble();
      improved = false;
      return;
    case Phase::kCodecs:
      phase = Phase::kWays;
      return;
    case Phase::kWays:
      phase = Phase::kBoundaries;
      return;
    case Phase::kDone:
      return;
  }
}

bool Choose::Search::work(uint64_t evaluations) {
  const uint64_t until = spent + evaluations < spent ? UINT64_MAX : spent + evaluations;
  const auto starts = static_cast<uint32_t>(levels.size() * routes.size() * kUniformBytes.size());
  while (phase != Phase::kDone && spent < until) {
    switch (phase) {
      case Phase::kStarts: {
        if (at == starts) {
          next_phase();
          break;
        }
        const uint32_t level = at % static_cast<uint32_t>(levels.size());
        const uint32_t rest = at / static_cast<uint32_t>(levels.size());
        offer(uniform(level, rest % static_cast<uint32_t>(routes.size()),
                      kUniformBytes[rest / routes.size()]));
        ++at;
        break;
      }
      case Phase::kCodecs:
        at < order.size() ? try_codecs(order[at++]) : next_phase();
        break;
      case Phase::kWays:
        at < best.ends.size() ? try_way(at++) : next_phase();
        break;
      case Phase::kBoundaries:
        at < best.ends.size() ? try_boundary(at++) : next_phase();
        break;
      case Phase::kDone:
        break;
    }
  }
  return phase == Phase::kDone;
}

Proposal Choose::Search::proposal() const {
  const double most_ns = near_ns(std::min(own.step_ns, best.step_ns));
  const Draft* chosen = nullptr;
  for (const Draft& each : near) {
    if (each.step_ns > most_ns) continue;
    if (chosen == nullptr || each.rank() < chosen->rank()) chosen = &each;
  }
  if (chosen == nullptr) return own;
  const bool own_takes_less = own.work_ns < chosen->work_ns * (1 - kRounding);
  return own_takes_less && own.step_ns <= most_ns ? own : proposal_of(*chosen);
}

Proposal Choose::Search::proposal_of(const Draft& draft) const {
  Proposal proposal{.step_ns = draft.step_ns, .work_ns = draft.work_ns, .exact = false};
  uint32_t first = 0;
  for (uint32_t g = 0; g < draft.ends.size(); ++g) {
    Group& group = proposal.groups.emplace_back(Group{.way = routes[draft.ways[g]].way});
    for (uint32_t i = first; i < draft.ends[g]; ++i) {
      group.segments.push_back(at_level(segments[i], levels, draft.levels[i], inputs().policy));
    }
    fit_group(inputs().policy, group, inputs().machines);
    first = draft.ends[g];
  }
  return proposal;
}

Choose::Choose(std::unique_ptr<Search> search) : search_(std::move(search)) {}
Choose::Choose(Choose&&) noexcept = default;
Choose::~Choose() = default;

Result<Choose> Choose::create(const PlannerQuestion& question) {
  auto search = std::make_unique<Search>(question);
  CGX_RETURN_IF_ERROR(search->prepare());
  return Choose(std::move(search));
}

bool Choose::work(uint64_t evaluations) {
  return search_->work(evaluations);
}

Proposal Choose::proposal() const {
  return search_->proposal();
}

Result<Proposal> propose_choose(const PlannerQuestion& question) {
  return propose_by<Choose>(question);
}

}  // namespace cgx::scheduler
