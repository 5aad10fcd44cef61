#include "scheduler/planners/layerwise.h"

#include <algorithm>
#include <cmath>
#include <string>

namespace cgx::scheduler {

Result<Layerwise> Layerwise::create(std::vector<std::vector<LayerCandidate>> tensors,
                                    double squared_error_max) {
  Layerwise search(std::move(tensors), squared_error_max);
  search.rest_.assign(search.tensors_.size() + 1, 0);
  for (size_t t = search.tensors_.size(); t-- > 0;) {
    double least = INFINITY;
    for (const LayerCandidate& each : search.tensors_[t]) {
      if (!(each.squared_error >= 0)) {
        return invalid_argument("tensor " + std::to_string(t) + ": an error that is no number");
      }
      least = std::min(least, each.squared_error);
    }
    if (std::isinf(least)) {
      return invalid_argument("tensor " + std::to_string(t) + " has no candidate");
    }
    search.rest_[t] = search.rest_[t + 1] + least;
  }
  if (!(search.rest_[0] <= squared_error_max)) {
    return invalid_argument("the least squared error there is, " + std::to_string(search.rest_[0]) +
                            ", is above the bound of " + std::to_string(squared_error_max));
  }
  search.sums_.push_back({Sum{}});
  return search;
}

// Drops what is no better in anything, and then what is close to another.
void Layerwise::keep_best(std::vector<Sum>& sums) {
  std::sort(sums.begin(), sums.end(), [](const Sum& one, const Sum& other) {
    return one.squared_error != other.squared_error ? one.squared_error < other.squared_error
                                                    : one.bytes < other.bytes;
  });
  uint64_t fewest = UINT64_MAX;
  std::erase_if(sums, [&](const Sum& sum) {
    if (sum.bytes >= fewest) return true;
    fewest = sum.bytes;
    return false;
  });
  if (sums.size() <= kSumsMax) return;
  exact_ = false;
  // Bytes fall, so the last of each step is the best of it; the first of all may be all that leaves
  // room for the rest.
  const double step = squared_error_max_ / static_cast<double>(kSumsMax - 1);
  std::vector<Sum> kept = {sums.front()};
  for (size_t i = 1; i < sums.size(); ++i) {
    const bool last = i + 1 == sums.size() || std::floor(sums[i + 1].squared_error / step) !=
                                                  std::floor(sums[i].squared_error / step);
    if (last) kept.push_back(sums[i]);
  }
  sums = std::move(kept);
}

void Layerwise::extend() {
  const size_t tensor = sums_.size() - 1;
  const std::vector<Sum>& before = sums_.back();
  const double most = squared_error_max_ - rest_[tensor + 1];
  std::vector<Sum> after;
  for (uint32_t parent = 0; parent < before.size(); ++parent) {
    for (uint32_t choice = 0; choice < tensors_[tensor].size(); ++choice) {
      const LayerCandidate& what = tensors_[tensor][choice];
      const double error = before[parent].squared_error + what.squared_error;
      if (error > most * (1 + 1e-12)) continue;  // the rest would not fit
      after.push_back({error, before[parent].bytes + what.bytes, parent, choice});
    }
  }
  keep_best(after);
  sums_.push_back(std::move(after));
}

bool Layerwise::work(uint64_t evaluations) {
  uint64_t done = 0;
  while (sums_.size() <= tensors_.size()) {
    if (done >= evaluations && done > 0) return false;
    done += sums_.back().size() * tensors_[sums_.size() - 1].size();
    extend();
  }
  return true;
}

LayerwiseAnswer Layerwise::answer() const {
  CGX_ASSERT(sums_.size() == tensors_.size() + 1);
  const Sum& best = sums_.back().back();  // fewest bytes
  LayerwiseAnswer answer{.choices = std::vector<uint32_t>(tensors_.size()),
                         .bytes = best.bytes,
                         .squared_error = best.squared_error,
                         .exact = exact_};
  const Sum* at = &best;
  for (size_t t = tensors_.size(); t-- > 0; at = &sums_[t][at->parent]) {
    answer.choices[t] = at->choice;
  }
  return answer;
}

}  // namespace cgx::scheduler
