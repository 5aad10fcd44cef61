#include "scheduler/planners/choices.h"

#include <algorithm>
#include <utility>

namespace cgx::scheduler {
namespace {

// What is still to be done. Between: among machines, when the first step within one is done;
// Second: only second steps are left; plain or coded: what comes in.
enum class Symbol : uint8_t {
  kFlat,
  kTwoLevels,
  kSummedWithin,
  kBetweenPlain,
  kBetweenCoded,
  kSecondBetweenPlain,
  kSecondPlain,
  kSecondCoded,
  kDone,
};

struct Rule {
  Symbol from;
  std::vector<Task> tasks;
  Symbol to;
};

const std::vector<Rule>& rules() {
  using enum Task;
  using S = Symbol;
  static const std::vector<Rule> kRules = {
      {S::kFlat, {kWhole}, S::kDone},
      {S::kFlat, {kFirst}, S::kSecondPlain},
      {S::kFlat, {kCompress, kWholeCoded, kDecompress}, S::kDone},
      {S::kFlat, {kCompress, kFirstCoded}, S::kSecondCoded},

      {S::kTwoLevels, {kFirst}, S::kSummedWithin},
      {S::kTwoLevels, {kCompress, kFirstCoded, kDecompress}, S::kSummedWithin},
      {S::kTwoLevels, {kCompress, kFirstCoded}, S::kBetweenCoded},
      {S::kSummedWithin, {}, S::kBetweenPlain},
      {S::kSummedWithin, {kCompress}, S::kBetweenCoded},

      {S::kBetweenPlain, {kWhole}, S::kSecondPlain},
      {S::kBetweenPlain, {kFirst}, S::kSecondBetweenPlain},
      {S::kBetweenCoded, {kWholeCoded}, S::kSecondCoded},
      {S::kBetweenCoded, {kFirstCoded, kSecondCoded}, S::kSecondCoded},
      {S::kBetweenCoded, {kFirstCoded, kDecompress}, S::kSecondBetweenPlain},
      {S::kSecondBetweenPlain, {kSecond}, S::kSecondPlain},
      {S::kSecondBetweenPlain, {kCompress, kSecondCoded}, S::kSecondCoded},

      {S::kSecondPlain, {kSecond}, S::kDone},
      {S::kSecondPlain, {kCompress, kSecondCoded, kDecompress}, S::kDone},
      {S::kSecondCoded, {kSecondCoded, kDecompress}, S::kDone},
      {S::kSecondCoded, {kDecompress}, S::kSecondPlain},
  };
  return kRules;
}

class Walk {
 public:
  explicit Walk(const Places& places) : places_(places) {}

  void go(Symbol symbol) {
    if (symbol == Symbol::kDone) {
      found.push_back(so_far_);
      return;
    }
    for (const Rule& rule : rules()) {
      if (rule.from == symbol) take(rule, 0);
    }
  }
  void begin(bool two_levels) {
    so_far_.two_levels = two_levels;
    go(two_levels ? Symbol::kTwoLevels : Symbol::kFlat);
  }

  std::vector<Choices> found;

 private:
  // The rule's tasks from `at` on, each alternative in turn.
  void take(const Rule& rule, size_t at) {
    if (at == rule.tasks.size()) return go(rule.to);
    const auto with = [&](Stage stage) {
      so_far_.stages.push_back(stage);
      take(rule, at + 1);
      so_far_.stages.pop_back();
    };
    const Task task = rule.tasks[at];
    switch (task) {
      case Task::kCompress:
      case Task::kDecompress:
        if (places_.gpu) with({task, true, false});
        if (places_.cpu) with({task, false, false});
        return;
      case Task::kWhole:
      case Task::kWholeCoded:
        return with({task, false, false});
      case Task::kFirst:
      case Task::kFirstCoded:
        for (const bool root : {false, true}) {
          open_.push_back(root);
          with({task, false, root});
          open_.pop_back();
        }
        return;
      case Task::kSecond:
      case Task::kSecondCoded: {
        const bool root = open_.back();
        open_.pop_back();
        with({task, false, root});
        open_.push_back(root);
        return;
      }
    }
  }

  Places places_;
  Choices so_far_;
  std::vector<bool> open_;  // first steps whose second is to come, the last one first
};

const char* name_of(const Stage& stage) {
  switch (stage.task) {
    case Task::kCompress:
      return stage.gpu ? "compress on gpu" : "compress on cpu";
    case Task::kDecompress:
      return stage.gpu ? "decompress on gpu" : "decompress on cpu";
    case Task::kWhole:
      return "allreduce";
    case Task::kFirst:
      return stage.root ? "reduce" : "reduce-scatter";
    case Task::kWholeCoded:
      return "allgather coded";
    case Task::kFirstCoded:
      return stage.root ? "gather coded" : "all-to-all coded";
    case Task::kSecond:
      return stage.root ? "broadcast" : "allgather";
    case Task::kSecondCoded:
      return stage.root ? "broadcast coded" : "allgather coded";
  }
  return "";
}

}  // namespace

std::string to_string(const Choices& choices) {
  std::string text = choices.two_levels ? "two levels" : "flat";
  for (const Stage& stage : choices.stages) text.append(", ").append(name_of(stage));
  return text;
}

std::vector<Choices> all_choices(const Places& places) {
  Walk walk(places);
  walk.begin(false);
  walk.begin(true);
  return std::move(walk.found);
}

// Ranks of a machine meet in shared memory, so what is left is one level. An exact allreduce in one
// trip is everybody's values to everybody; what goes to a root only is slower than scattering on
// links that carry both ways.
std::optional<Realised> realisable(const Choices& choices) {
  if (choices.two_levels) return std::nullopt;
  std::vector<Task> tasks;
  for (const Stage& stage : choices.stages) {
    if (stage.gpu || stage.root) return std::nullopt;
    tasks.push_back(stage.task);
  }
  using enum Task;
  if (tasks == std::vector{kWhole}) return Realised{false, Collective::kAllgather};
  if (tasks == std::vector{kFirst, kSecond}) return Realised{false, Collective::kScatter};
  if (tasks == std::vector{kCompress, kWholeCoded, kDecompress}) {
    return Realised{true, Collective::kAllgather};
  }
  const std::vector scatter = {kCompress, kFirstCoded,  kDecompress,
                               kCompress, kSecondCoded, kDecompress};
  if (tasks == scatter) return Realised{true, Collective::kScatter};
  return std::nullopt;
}

}  // namespace cgx::scheduler
