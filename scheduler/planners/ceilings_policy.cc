// The row `policy`: the policy's codec is the ceiling, and nothing is searched. In mode auto what
// weaker codecs of the menu would lose is measured, so that guards (scheduler/planners/guards.h)
// have levels to go down; a codec that somebody has fixed stays.
#include <algorithm>

#include "scheduler/planners/ceilings.h"
#include "scheduler/planners/proposal.h"

namespace cgx::scheduler {
namespace {

constexpr uint32_t kGuardedAgain = 4;  // measured steps

std::vector<CodecSpec> policy_strengths(const Policy& policy) {
  if (policy.mode != PlanMode::kAuto || policy.default_codec.codec == 0) return {};
  const std::vector<CodecSpec> menu = menu_of(policy);
  std::vector<CodecSpec> strengths = levels_under(policy, menu);
  std::erase_if(strengths, [](const CodecSpec& spec) { return spec.codec == 0; });
  std::stable_sort(strengths.begin(), strengths.end(),
                   [](const CodecSpec& one, const CodecSpec& other) {
                     return !(one == other) && weaker_of(other, one) == one;
                   });
  if (strengths.size() > kStrengthsMax) {  // the policy's own is the last
    strengths.erase(strengths.begin(), strengths.end() - kStrengthsMax);
  }
  return strengths;
}

class NothingToSearch final : public CeilingSearch {
 public:
  bool work(uint64_t) override { return true; }
  CeilingAnswer answer() const override {
    return {.ceilings = {}, .base = {}, .guards = {}, .again = kGuardedAgain, .why = "guards"};
  }
};

// NOLINTNEXTLINE(performance-unnecessary-value-param): rows that search keep their question
Result<std::unique_ptr<CeilingSearch>> begin_nothing(CeilingQuestion) {
  return std::unique_ptr<CeilingSearch>(std::make_unique<NothingToSearch>());
}

}  // namespace

const CeilingRow kCeilings_policy{.strengths = policy_strengths, .begin = begin_nothing};

}  // namespace cgx::scheduler
