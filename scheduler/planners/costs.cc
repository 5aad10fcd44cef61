#include "scheduler/planners/costs.h"

#include <cmath>

#include "kernels/codec.h"

namespace cgx::scheduler {
namespace {

// How far a row is from what is asked for; another codec is infinitely far.
double distance(const CodecSpec& row, const CodecSpec& wanted) {
  if (row.codec != wanted.codec) return INFINITY;
  const double bits = std::abs(int{row.bits} - int{wanted.bits});
  const double amount = std::abs(row.amount - wanted.amount);
  const double draws = row.stochastic() == wanted.stochastic() ? 0 : 0.25;
  const double values = row.values == wanted.values ? 0 : 0.125;
  return bits + amount + draws + values;
}

}  // namespace

Result<CodecCurves> MachineCosts::curves_of(const CodecSpec& spec) const {
  const CodecCurves* best = nullptr;
  double least = INFINITY;
  std::string known;
  for (const CodecCurves& row : codecs) {
    known += (known.empty() ? "" : ", ") + kernels::to_string(row.spec);
    const double far = distance(row.spec, spec);
    if (far < least) {
      least = far;
      best = &row;
    }
  }
  if (!best) {
    return Status(StatusCode::kNOT_FOUND, "no cost of codec " + kernels::to_string(spec) +
                                              "; the table has " +
                                              (known.empty() ? "none" : known));
  }
  CodecCurves curves = *best;
  curves.spec = spec;
  if (spec.feedback()) curves.encode.ns_per_byte += copy_ns_per_byte;
  return curves;
}

double MachineCosts::rack_pass_ns(const std::optional<CodecSpec>& rack_spec, double bytes) const {
  return rack_spec && rack_spec->codec != 0 ? copy_ns_per_byte * bytes : 0;
}

}  // namespace cgx::scheduler
