// What codecs of several strengths would lose of the gradients that a machine contributes, measured
// on the gradients themselves in some steps. Whoever decides by it reads sums; nothing here
// decides. Owned by one communicator.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "proto/wire/types.h"

namespace cgx::scheduler {

constexpr size_t kStrengthsMax = 8;

// Squared, over the values of a tensor; residuals are part of what is to be sent.
struct LossSample {
  double values = 0, nonfinite = 0;  // counts: finite ones, those in ranges that are not
  double intended = 0;
  double gradient = 0, residual = 0;         // its parts, where there is a residual
  std::array<double, kStrengthsMax> lost{};  // by strength

  LossSample& operator+=(const LossSample& other) {
    values += other.values;
    nonfinite += other.nonfinite;
    intended += other.intended;
    gradient += other.gradient;
    residual += other.residual;
    for (size_t i = 0; i < kStrengthsMax; ++i) lost[i] += other.lost[i];
    return *this;
  }
  LossSample times(double factor) const {
    LossSample scaled = *this;
    for (double* each : {&scaled.values, &scaled.nonfinite, &scaled.intended, &scaled.gradient,
                         &scaled.residual}) {
      *each *= factor;
    }
    for (double& each : scaled.lost) each *= factor;
    return scaled;
  }
  // Some of a range's values have been looked at: as if all had.
  LossSample of_all(uint64_t elements) const {
    return times(static_cast<double>(elements) / (values + nonfinite));
  }
};

// Which values of a range are looked at: pieces of so many, evenly spread.
struct LossPieces {
  uint64_t count = 0, elements = 0;

  uint64_t first(uint64_t range_elements, uint64_t piece) const {
    return count == 1 ? 0 : (range_elements - elements) / (count - 1) * piece;
  }
};
inline LossPieces loss_pieces(const std::vector<CodecSpec>& strengths, uint64_t range_elements) {
  constexpr uint64_t kValues = 8192, kPieceMin = 1024;
  uint64_t piece = kPieceMin;
  for (const CodecSpec& spec : strengths) piece = std::max<uint64_t>(piece, spec.bucket);
  piece = std::min(piece, range_elements);
  return {std::clamp<uint64_t>(range_elements / piece, 1, std::max<uint64_t>(1, kValues / piece)),
          piece};
}

using Strengths = std::shared_ptr<const std::vector<CodecSpec>>;

// Squared, over the steps that were measured: what this machine's encoders should have sent, and
// what they did.
struct Norms {
  double intended_sq = 0, sent_sq = 0;
};

class LossMeter {
 public:
  // At most kStrengthsMax of them, none: nothing is measured; and of which tensors, from which step
  // on. What was measured before counts on where they and the table are the same.
  void begin(std::vector<CodecSpec> strengths, uint64_t table_hash,
             const std::vector<bool>& measured, uint32_t every_steps, uint64_t first_step);
  void measure_each(uint32_t every_steps);
  void forget();
  // A function of steps alone: every machine measures the same ones.
  bool due(uint64_t step) const;
  // A step that takes longer than others because it is measured.
  bool disturbs(uint64_t step) const { return every_ > 1 && due(step); }
  const Strengths& strengths() const { return strengths_; }  // null: none

  bool measures(uint32_t tensor) const { return tensor < measured_.size() && measured_[tensor]; }
  static constexpr double kFades = 0.8;  // what is left of older steps with each one

  void add(uint32_t tensor, const LossSample& sample) {
    if (tensor < open_.size()) open_[tensor] += sample;
  }
  void drop_step();  // it is run again, and measured again
  // The step's samples count; false: it was none that is measured.
  bool close_step(uint64_t step);

  uint32_t steps() const { return steps_; }  // that were measured
  const std::vector<LossSample>& tensors() const { return sums_; }
  const LossSample& last() const { return last_; }  // of all tensors, in the last such step

 private:
  Strengths strengths_;
  uint64_t table_hash_ = 0;
  uint32_t every_ = 0, steps_ = 0;
  uint64_t since_ = 0;
  std::vector<bool> measured_;           // by tensor
  std::vector<LossSample> open_, sums_;  // older steps count less
  LossSample last_;
};

}  // namespace cgx::scheduler
