// The planner `layerwise`: a candidate for each tensor so that all of them send the fewest bytes
// while their squared errors, added up, stay within a bound. Slow: it sets how strong a tensor's
// codec may be, and other planners choose below that.
//
// Squared errors of independent tensors add, norms do not. Dynamic programming over tensors keeps
// every (error, bytes) of which none is better in both; where that are more than kSumsMax, one for
// each of so many steps of the bound: errors stay those of the choice, so the bound holds, only
// bytes may be missed. Owned by one thread; a search goes on where it stopped.
#pragma once

#include <cstdint>
#include <vector>

#include "proto/wire/status.h"

namespace cgx::scheduler {

struct LayerCandidate {
  uint64_t bytes = 0;
  double squared_error = 0;
};

struct LayerwiseAnswer {
  std::vector<uint32_t> choices;  // by tensor, which of its candidates
  uint64_t bytes = 0;
  double squared_error = 0;
  bool exact = true;
};

class Layerwise {
 public:
  static constexpr size_t kSumsMax = 4'000;

  // By tensor its candidates. An error: a tensor without any, an error that is no number of 0 or
  // above, or a bound that nothing meets.
  static Result<Layerwise> create(std::vector<std::vector<LayerCandidate>> tensors,
                                  double squared_error_max);
  // Goes on for about so many evaluations, at least one tensor's; true: done.
  bool work(uint64_t evaluations);
  LayerwiseAnswer answer() const;  // REQUIRES: done

 private:
  struct Sum {
    double squared_error = 0;
    uint64_t bytes = 0;
    uint32_t parent = 0, choice = 0;
  };
  Layerwise(std::vector<std::vector<LayerCandidate>> tensors, double squared_error_max)
      : tensors_(std::move(tensors)), squared_error_max_(squared_error_max) {}
  void extend();
  void keep_best(std::vector<Sum>& sums);

  std::vector<std::vector<LayerCandidate>> tensors_;
  double squared_error_max_;
  std::vector<double> rest_;            // by tensor, the least error of it and those behind
  std::vector<std::vector<Sum>> sums_;  // of the first k tensors, error rising, bytes falling
  bool exact_ = true;
};

}  // namespace cgx::scheduler
