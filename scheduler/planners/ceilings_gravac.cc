// The row `gravac`: one share for all tensors, after GraVAC, but with every candidate's gain known
// from the same gradients, and one decision for all machines. The gain of a share is what it keeps
// of the squared norm of what is to be sent, residuals included. One step stronger at a time,
// because residuals grow with it; as far back as it takes, uncompressed at last. What fell once
// would fall again: it waits longer each time.
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "kernels/codec.h"
#include "scheduler/planners/ceilings.h"

namespace cgx::scheduler {
namespace {

constexpr size_t kSharesTried = 7;
// A stronger share, and any share after uncompressed steps, is measured without the residuals that
// it will make: once it runs it keeps 0.6 to 0.8 of what it seemed to. So it has to keep more than
// enough, by this factor, but never more than so far on the way from epsilon to 1.
constexpr double kOnceItRuns = 0.57, kPlainlyEnough = 0.75;
constexpr uint32_t kMeasuredAgain = 2;
constexpr uint8_t kFallsMost = 6;  // that double the wait

std::vector<CodecSpec> gravac_strengths(const Policy& policy) {
  std::vector<CodecSpec> strengths;
  const double least = policy.gravac_min, most = policy.gravac_max;
  const size_t count = least == most ? 1 : kSharesTried;
  for (size_t i = 0; i < count; ++i) {
    const double along = count == 1 ? 0 : static_cast<double>(i) / static_cast<double>(count - 1);
    CodecSpec spec = policy.default_codec;
    spec.amount = static_cast<float>(1 / (least * std::pow(most / least, along)));
    spec.amount = std::clamp(spec.amount, kernels::kShareMin, kernels::kShareMax);
    strengths.push_back(spec);
  }
  return strengths;
}

Status check_gravac(const Policy& policy) {
  const kernels::CodecRow* const row = kernels::find_codec(policy.default_codec.codec);
  if (row->strength != kernels::Strength::kShare || !policy.default_codec.feedback()) {
    return invalid_argument("ceilings: gravac finds the share that is sent, but codec " +
                            kernels::to_string(policy.default_codec) +
                            " has no share and feedback; give one such as topk:0.01,feedback");
  }
  return {};
}

Status check_gravac_keys(const Policy& policy) {
  const auto within = [](const char* key, float factor) -> Status {
    const float least = 1 / kernels::kShareMax, most = 1 / kernels::kShareMin;
    if (factor >= least && factor <= most) return {};
    char text[96];
    std::snprintf(text, sizeof text, "%s: %g is not within %g and %g", key, factor, least, most);
    return invalid_argument(text);
  };
  CGX_RETURN_IF_ERROR(within("gravac_min", policy.gravac_min));
  CGX_RETURN_IF_ERROR(within("gravac_max", policy.gravac_max));
  if (policy.gravac_min <= policy.gravac_max) return {};
  char text[96];
  std::snprintf(text, sizeof text, "gravac_min: %g is above gravac_max, %g", policy.gravac_min,
                policy.gravac_max);
  return invalid_argument(text);
}

class GravacSearch final : public CeilingSearch {
 public:
  static Result<std::unique_ptr<CeilingSearch>> begin(CeilingQuestion question) {
    return std::unique_ptr<CeilingSearch>(std::make_unique<GravacSearch>(std::move(question)));
  }
  explicit GravacSearch(CeilingQuestion question) : question_(std::move(question)) {}

  bool work(uint64_t) override { return true; }
  CeilingAnswer answer() const override;

 private:
  const std::vector<CodecSpec>& strengths() const { return *question_.strengths; }
  double epsilon() const { return question_.running->policy.gravac_epsilon; }
  double gain(size_t level) const {
    const LossSample& all = question_.everywhere;
    return all.intended <= 0 ? 1 : 1 - all.lost[level] / all.intended;
  }
  // Of the strengths; -1: uncompressed.
  int level_now() const;
  int level_that_is_enough() const;  // the one of now, or one further back
  bool may_climb() const;

  CeilingQuestion question_;
};

int GravacSearch::level_now() const {
  return question_.level < static_cast<int>(strengths().size()) ? question_.level : 0;
}

int GravacSearch::level_that_is_enough() const {
  int level = level_now();
  while (level >= 0 && gain(static_cast<size_t>(level)) < epsilon()) --level;
  return level;
}

bool GravacSearch::may_climb() const {
  const auto next = static_cast<size_t>(int64_t{level_now()} + 1);
  if (next >= strengths().size() || question_.everywhere.intended <= 0) return false;
  const double plainly =
      std::min(epsilon() / kOnceItRuns, epsilon() + kPlainlyEnough * (1 - epsilon()));
  return gain(next) >= plainly;
}

CeilingAnswer GravacSearch::answer() const {
  CeilingAnswer answer{.again = kMeasuredAgain};
  const int now = level_now();
  answer.level = level_that_is_enough();
  Climb& climb = answer.climb = question_.climb;
  if (answer.level < now) {
    climb.rest = 1u << climb.falls;
    climb.falls = std::min<uint8_t>(climb.falls + 1, kFallsMost);
  } else if (climb.rest > 0) {
    --climb.rest;
  } else if (may_climb()) {
    ++answer.level;
  }
  answer.changes = answer.level != now;
  const bool raw = answer.level < 0;
  const CodecSpec exact = exact_for(strengths().front());
  const CodecSpec& spec = raw ? exact : strengths()[static_cast<size_t>(answer.level)];
  answer.ceilings.assign(question_.running->table->size(), spec);
  char text[96];
  const auto kept = [&](int level) { return 100 * gain(static_cast<size_t>(level)); };
  if (raw) {
    std::snprintf(text, sizeof text,
                  "uncompressed, since 1 in %.0f keeps %.0f %% of the squared norm",
                  1 / strengths()[0].amount, kept(0));
  } else {
    std::snprintf(text, sizeof text, "1 in %.0f, which keeps %.0f %% of the squared norm",
                  1 / spec.amount, kept(answer.level));
  }
  answer.why = text;
  return answer;
}

}  // namespace

const CeilingRow kCeilings_gravac{gravac_strengths, check_gravac, GravacSearch::begin,
                                  check_gravac_keys};

}  // namespace cgx::scheduler
