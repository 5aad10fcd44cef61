#include "scheduler/planners/guards.h"

#include <algorithm>
#include <utility>

namespace cgx::scheduler {
namespace {

constexpr double kResidualMost = 16;  // of the gradient's squared norm: four times its norm
constexpr double kKeptLeast = 0.05;   // of the squared norm of what is to be sent, of one tensor
constexpr double kFiniteLeast = 0.5;  // of the values; fewer come of a loss scale once in a while
constexpr uint8_t kBackOffMost = 6;   // doublings

bool is_hurt(const LossSample& loss, size_t level) {
  const double all = loss.values + loss.nonfinite;
  if (all <= 0) return false;
  if (loss.values < kFiniteLeast * all) return true;
  if (loss.residual > kResidualMost * loss.gradient) return loss.gradient > 0;
  return loss.intended > 0 && loss.lost[level] > (1 - kKeptLeast) * loss.intended;
}

// One level down where it hurts; where it has not for so many windows, one back.
void follow(Guard& guard, bool hurt) {
  if (hurt) {
    ++guard.down;
    guard.windows = 1u << guard.times;
    guard.times = std::min<uint8_t>(guard.times + 1, kBackOffMost);
  } else if (guard.down > 0 && --guard.windows == 0) {
    --guard.down;
    guard.windows = 1u << guard.times;
  }
}

// Of the strengths; -1: none of them.
int level_of(const CeilingQuestion& question, const CodecSpec& spec) {
  const std::vector<CodecSpec>& strengths = *question.strengths;
  const auto found = std::find(strengths.begin(), strengths.end(), spec);
  return found == strengths.end() ? -1 : static_cast<int>(found - strengths.begin());
}

}  // namespace

Guarded under_guards(const CeilingQuestion& question, const std::vector<CodecSpec>& base,
                     std::vector<Guard> guards) {
  Guarded made{base, std::move(guards), 0};
  made.guards.resize(base.size());
  for (size_t t = 0; t < base.size(); ++t) {
    const int level = level_of(question, base[t]);
    if (made.guards[t].down == 0 || level < 0) continue;
    const int allowed = level - made.guards[t].down;
    ++made.weakened;
    made.ceilings[t] =
        allowed >= 0 ? (*question.strengths)[static_cast<size_t>(allowed)] : exact_for(base[t]);
  }
  return made;
}

Guarded guard(const CeilingQuestion& question, const std::vector<CodecSpec>& base) {
  std::vector<Guard> guards = question.guards;
  guards.resize(base.size());
  for (uint32_t t = 0; t < base.size(); ++t) {
    const int level = level_of(question, base[t]);
    if (level < 0 || !question.running->by_default(t)) continue;
    Guard& guard = guards[t];
    const int now = level - guard.down;
    follow(guard, now >= 0 && is_hurt(question.losses[t], static_cast<size_t>(now)));
  }
  return under_guards(question, base, std::move(guards));
}

}  // namespace cgx::scheduler
