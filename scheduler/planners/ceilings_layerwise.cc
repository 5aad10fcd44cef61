// The row `layerwise`: bits a tensor, after L-GreCo and CGX. Errors are those that were measured,
// at every strength, so that nothing is extrapolated where codes are few.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>

#include "kernels/codec.h"
#include "scheduler/planners/ceilings.h"
#include "scheduler/planners/layerwise.h"

namespace cgx::scheduler {
namespace {

constexpr uint8_t kBitsTried[] = {8, 6, 5, 4, 3, 2};
// More tensors are put together before the search: each costs it memory and milliseconds.
constexpr size_t kExactTensorsMax = 512;
constexpr size_t kClusters = 16;
// What ceilings have to gain, and how far errors may grow, until they are changed.
constexpr double kWorthChanging = 0.97, kStillWithin = 1.0;
// Of the bound, so that steps that differ from the measured ones stay within it.
constexpr double kAimedAt = 0.85;

std::vector<CodecSpec> layerwise_strengths(const Policy& policy) {
  const CodecSpec& uniform = policy.default_codec;
  const kernels::CodecRow* const row = kernels::find_codec(uniform.codec);
  std::vector<uint8_t> bits(std::begin(kBitsTried), std::end(kBitsTried));
  if (std::find(bits.begin(), bits.end(), uniform.bits) == bits.end()) bits.push_back(uniform.bits);
  std::sort(bits.rbegin(), bits.rend());
  std::vector<CodecSpec> strengths;
  for (const uint8_t each : bits) {
    CodecSpec spec = uniform;
    spec.bits = each;
    const bool fits = each >= row->bits_min && each <= row->bits_max;
    if (fits && kernels::check_policy(spec, nullptr).ok()) strengths.push_back(spec);
  }
  return strengths;
}

Status check_layerwise(const Policy& policy) {
  const kernels::CodecRow* const row = kernels::find_codec(policy.default_codec.codec);
  if (row->strength != kernels::Strength::kBits) {
    return invalid_argument("ceilings: layerwise finds bits for each tensor, but codec " +
                            kernels::to_string(policy.default_codec) +
                            " has none; give one with bits, such as maxmin:4");
  }
  if (policy.layerwise_alpha > 0) return {};
  return invalid_argument("layerwise_alpha: " + std::to_string(policy.layerwise_alpha) +
                          " is not above 0");
}

// Tensors that lose alike by element, together: one-dimensional k-means over the logarithm.
std::vector<size_t> clusters_of(const std::vector<double>& densities) {
  std::vector<size_t> order(densities.size()), cluster(densities.size(), 0);
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(),
            [&](size_t one, size_t other) { return densities[one] < densities[other]; });
  const size_t k = std::min(kClusters, densities.size());
  std::vector<double> centers;
  for (size_t c = 0; c < k; ++c)
    centers.push_back(densities[order[(2 * c + 1) * order.size() / (2 * k)]]);
  constexpr int kRounds = 20;
  for (int round = 0; round < kRounds; ++round) {
    std::vector<double> sums(k, 0), counts(k, 0);
    for (size_t i = 0; i < densities.size(); ++i) {
      const auto nearest =
          std::min_element(centers.begin(), centers.end(), [&](double a, double b) {
            return std::abs(a - densities[i]) < std::abs(b - densities[i]);
          });
      cluster[i] = static_cast<size_t>(nearest - centers.begin());
      sums[cluster[i]] += densities[i];
      ++counts[cluster[i]];
    }
    for (size_t c = 0; c < k; ++c) {
      if (counts[c] > 0) centers[c] = sums[c] / counts[c];
    }
  }
  return cluster;
}

// Of choices for all measured tensors.
struct LayerTotal {
  double bytes = 0, error = 0;
  void add(const LayerCandidate& each) {
    bytes += static_cast<double>(each.bytes);
    error += each.squared_error;
  }
};

class LayerSearch final : public CeilingSearch {
 public:
  static Result<std::unique_ptr<CeilingSearch>> begin(CeilingQuestion question) {
    auto search = std::make_unique<LayerSearch>(std::move(question));
    CGX_RETURN_IF_ERROR(search->prepare());
    return std::unique_ptr<CeilingSearch>(std::move(search));
  }
  explicit LayerSearch(CeilingQuestion question) : question_(std::move(question)) {}

  bool work(uint64_t evaluations) override { return !search_ || search_->work(evaluations); }
  CeilingAnswer answer() const override;

 private:
  const Policy& policy() const { return question_.running->policy; }
  Status prepare();
  std::vector<LayerCandidate> candidates_of(uint32_t tensor) const;
  size_t level_of(const CodecSpec& spec) const {
    return static_cast<size_t>(std::find(levels_.begin(), levels_.end(), spec) - levels_.begin());
  }

  CeilingQuestion question_;
  std::vector<CodecSpec> levels_;  // the strengths, and behind them raw
  std::vector<uint32_t> tensors_;  // that are measured and the policy's default decides
  std::vector<std::vector<LayerCandidate>> candidates_;  // of those, by level
  std::vector<size_t> unit_of_;                          // of those, in the search
  LayerTotal uniform_, running_;
  std::optional<Layerwise> search_;
};

std::vector<LayerCandidate> LayerSearch::candidates_of(uint32_t tensor) const {
  const TensorDesc& what = (*question_.running->table)[tensor];
  const LossSample& loss = question_.losses[tensor];
  std::vector<LayerCandidate> candidates;
  for (size_t level = 0; level < levels_.size(); ++level) {
    const bool raw = levels_[level].codec == 0;
    const double error =
        raw ? 0 : loss.lost[level] / loss.values * static_cast<double>(what.elements);
    candidates.push_back(
        {kernels::encoded_bytes(levels_[level], what.dtype, what.elements), error});
  }
  return candidates;
}

Status LayerSearch::prepare() {
  const PlanFacts& running = *question_.running;
  levels_ = *question_.strengths;
  levels_.push_back(exact_for(policy().default_codec));
  const size_t uniform = level_of(policy().default_codec);
  std::vector<double> densities;
  for (uint32_t t = 0; t < running.table->size(); ++t) {
    const LossSample& loss = question_.losses[t];
    if (!running.by_default(t) || loss.values <= 0 || loss.intended <= 0) continue;  // zeros only
    tensors_.push_back(t);
    const auto& candidates = candidates_.emplace_back(candidates_of(t));
    uniform_.add(candidates[uniform]);
    const size_t now = question_.now.empty() ? uniform : level_of(question_.now[t]);
    running_.add(candidates[std::min(now, levels_.size() - 1)]);
    const double by_element = question_.losses[t].lost[uniform] / question_.losses[t].values;
    densities.push_back(std::log2(std::max(by_element, 1e-30)));
  }
  if (tensors_.empty()) return {};
  unit_of_.resize(tensors_.size());
  std::iota(unit_of_.begin(), unit_of_.end(), 0);
  std::vector<std::vector<LayerCandidate>> units = candidates_;
  if (policy().layerwise_solver == LayerSolver::kKmeans || tensors_.size() > kExactTensorsMax) {
    unit_of_ = clusters_of(densities);
    units.assign(kClusters, std::vector<LayerCandidate>(levels_.size()));
    for (size_t i = 0; i < tensors_.size(); ++i) {
      for (size_t level = 0; level < levels_.size(); ++level) {
        units[unit_of_[i]][level].bytes += candidates_[i][level].bytes;
        units[unit_of_[i]][level].squared_error += candidates_[i][level].squared_error;
      }
    }
  }
  CGX_ASSIGN_OR_RETURN(
      Layerwise search,
      Layerwise::create(std::move(units), kAimedAt * policy().layerwise_alpha * uniform_.error));
  search_.emplace(std::move(search));
  return {};
}

CeilingAnswer LayerSearch::answer() const {
  if (!search_) return {.why = "no tensor to find bits for"};
  const LayerwiseAnswer found = search_->answer();
  CeilingAnswer answer;
  answer.ceilings.assign(question_.running->table->size(), policy().default_codec);
  LayerTotal ours;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const size_t level = found.choices[unit_of_[i]];
    answer.ceilings[tensors_[i]] = levels_[level];
    ours.add(candidates_[i][level]);
  }
  const double bound = policy().layerwise_alpha * uniform_.error;
  answer.changes =
      running_.error > kStillWithin * bound || ours.bytes < kWorthChanging * running_.bytes;
  char text[96];
  std::snprintf(text, sizeof text, "%.2f times fewer bytes than ", uniform_.bytes / ours.bytes);
  answer.why = text + kernels::to_string(policy().default_codec);
  std::snprintf(text, sizeof text, " for all, %.2f of its squared error",
                uniform_.error > 0 ? ours.error / uniform_.error : 0.0);
  answer.why += text;
  return answer;
}

}  // namespace

const CeilingRow kCeilings_layerwise{layerwise_strengths, check_layerwise, LayerSearch::begin};

}  // namespace cgx::scheduler
