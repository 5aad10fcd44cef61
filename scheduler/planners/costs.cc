#include "scheduler/planners/costs.h"

#include <algorithm>
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
  // Of two rows that are as near, the one that differs in nothing else: bucket, norm, clipping.
  const double rest = same_row(row, wanted) ? 0 : 1e-6;
  return bits + amount + draws + values + rest;
}

Status no_cost_of(const CodecSpec& spec, const std::vector<CodecCurves>& rows) {
  std::string known;
  for (const CodecCurves& row : rows) {
    known += (known.empty() ? "" : ", ") + kernels::to_string(row.spec);
  }
  return {StatusCode::kNOT_FOUND, "no cost of codec " + kernels::to_string(spec) +
                                      "; the table has " + (known.empty() ? "none" : known)};
}

// How many times slower codecs are than the table has it: raw ones, others.
class Slower {
 public:
  Slower(const MachineCosts& table, std::span<const kernels::CodecSpeed> speeds) {
    for (const kernels::CodecSpeed& timed : speeds) {
      const Result<CodecCurves> known = table.curves_of(timed.spec);
      if (!known.ok()) continue;
      of(timed.spec)
          .add(timed.encode_ns_per_byte / known->encode.ns_per_byte,
               timed.decode_ns_per_byte / known->decode.ns_per_byte);
    }
  }

  double raw() const { return raw_.times(); }
  double of_row(const CodecSpec& spec) const { return (spec.codec == 0 ? raw_ : others_).times(); }

 private:
  struct Mean {
    double logs = 0;
    int count = 0;
    void add(double encode, double decode) {
      logs += std::log(encode) + std::log(decode);
      count += 2;
    }
    double times() const { return count == 0 ? 1 : std::exp(logs / count); }
  };
  Mean& of(const CodecSpec& spec) { return spec.codec == 0 ? raw_ : others_; }

  Mean raw_, others_;
};

}  // namespace

bool same_row(CodecSpec one, CodecSpec other) {
  one.flags |= CodecSpec::kFeedback;
  other.flags |= CodecSpec::kFeedback;
  return one == other;
}

Result<CodecCurves> MachineCosts::curves_of(const CodecSpec& spec) const {
  const CodecCurves* best = nullptr;
  double least = INFINITY;
  for (const CodecCurves& row : codecs) {
    const double far = distance(row.spec, spec);
    if (far < least) {
      least = far;
      best = &row;
    }
  }
  if (!best) return no_cost_of(spec, codecs);
  CodecCurves curves = *best;
  curves.spec = spec;
  if (spec.feedback()) curves.encode.ns_per_byte += copy_ns_per_byte;
  return curves;
}

Result<CodecCurves> CurvesOf::operator()(const CodecSpec& spec) {
  for (const CodecCurves& each : found_) {
    if (each.spec == spec) return each;
  }
  CGX_ASSIGN_OR_RETURN(const CodecCurves curves, costs_.curves_of(spec));
  found_.push_back(curves);
  return curves;
}

MachineCosts timed_here(MachineCosts table, std::span<const kernels::CodecSpeed> speeds) {
  const Slower slower(table, speeds);
  for (CodecCurves& row : table.codecs) {
    row.encode.ns_per_byte *= slower.of_row(row.spec);
    row.decode.ns_per_byte *= slower.of_row(row.spec);
  }
  table.copy_ns_per_byte *= slower.raw();
  for (const kernels::CodecSpeed& timed : speeds) {
    const CodecCurves here{
        timed.spec, {0, timed.encode_ns_per_byte}, {0, timed.decode_ns_per_byte}};
    const auto row = std::find_if(table.codecs.begin(), table.codecs.end(),
                                  [&](const CodecCurves& each) { return each.spec == timed.spec; });
    row == table.codecs.end() ? void(table.codecs.push_back(here)) : void(*row = here);
  }
  return table;
}

double MachineCosts::rack_pass_ns(const std::optional<CodecSpec>& rack_spec, double bytes) const {
  return rack_spec && rack_spec->codec != 0 ? copy_ns_per_byte * bytes : 0;
}

}  // namespace cgx::scheduler
