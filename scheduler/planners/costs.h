// What work takes: curves per codec and kind of work, an operation's and a frame's share, links.
// Plain values; whoever measured or was told them fills them in (a daemon as it starts,
// scheduler/sim/cost_file.h, tests).
// Times are nanoseconds.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/speeds.h"
#include "proto/wire/status.h"
#include "proto/wire/types.h"

namespace cgx::scheduler {

struct Curve {
  double floor_ns = 0;     // each call
  double ns_per_byte = 0;  // of raw fp32
  double ns(double bytes) const { return floor_ns + ns_per_byte * bytes; }
};

// Of one codec on one lane. One with feedback has the row of the codec without.
struct CodecCurves {
  CodecSpec spec;
  Curve encode, decode;  // decode: also what adding a contribution takes
};

bool same_row(CodecSpec one, CodecSpec other);  // the same codec, whether errors are kept or not

// What one machine's daemon spends.
struct MachineCosts {
  std::string processor;  // on which they were measured
  std::vector<CodecCurves> codecs;
  double copy_ns_per_byte = 0;  // reading and writing once; a residual takes as much again
  double operation_ns = 0;      // each operation, whatever it carries
  double segment_ns = 0;        // each tensor, or piece of one
  double frame_ns = 0;          // each frame sent or received
  double wire_ns_per_byte = 0;  // the kernel's work and checksums, each byte sent or received

  // Of the codec as it is asked for; without such a row, of the same codec at the closest strength.
  // NOT_FOUND names what there is.
  Result<CodecCurves> curves_of(const CodecSpec& spec) const;
  // Beside decoding it, of a contribution with a codec of racks (none: it has its segment's): what
  // is not raw is written to memory, and read from there to be added.
  double rack_pass_ns(const std::optional<CodecSpec>& rack_spec, double bytes) const;
};

// Curves of a table, each codec looked for once: plans have many segments and a handful of codecs.
class CurvesOf {
 public:
  // REQUIRES: outlives this, unchanged.
  explicit CurvesOf(const MachineCosts& costs) : costs_(costs) {}
  const MachineCosts& costs() const { return costs_; }
  Result<CodecCurves> operator()(const CodecSpec& spec);

 private:
  const MachineCosts& costs_;
  std::vector<CodecCurves> found_;
};

// The table for a machine whose codecs were timed. Those that were not are as much slower than in
// the table as the others of their kind: raw, or with arithmetic.
MachineCosts timed_here(MachineCosts table, std::span<const kernels::CodecSpeed> speeds);

struct Link {
  double ns_per_byte = 0;  // 8 / (rate in bit/ns)
  double trip_ns = 0;      // one way, with the wake-up at its end
};

// What stays the same whatever the plan.
struct Conditions {
  MachineCosts costs;
  Link link;
  double share = 0;  // 0 to 1: how much of the daemon's processor time the trainers lose
};

}  // namespace cgx::scheduler
