// Figures that others published, beside what the timeline says of their systems. A file of lines:
//
//   source TEXT...                       where the figures and constants are from; any number of
//                                        lines
//   trainer MODEL STEP FORWARD           an architecture, one step of one trainer alone, the
//                                        forward pass's share of it
//   codec NAME sends BYTES encode FLOOR MORE decode FLOOR MORE payloads one|all
//                                        bytes of a 4-byte element; a call's floor, and the time of
//                                        128 MiB beyond it; whose payloads one call decodes
//   codec NAME plain                     not compressed: a ring allreduce
//   calibrate rate|latency CODEC MACHINES CUT SCALING
//                                        chooses that number of the link between so many from one
//                                        published figure
//   scaling ID CODEC MACHINES CUT PUBLISHED TOLERANCE
//                                        in percent; tolerance in points
//   ratio ID CODEC MACHINES PUBLISHED TOLERANCE
//                                        two groups to layer-wise; tolerance in percent
//   speeds NAME PLAIN EIGHT FOUR         of a model, uncompressed and with so many bits: the last
//                                        is predicted from the others
//   median ID TOLERANCE                  how far those predictions are off, in percent
// and those of machines with several GPUs (published_nodes.h).
//
// CUT is layerwise or two (the better of all cuts into two groups). In these systems trainers
// encode and decode themselves, and an allgather carries what was encoded. Thread rule: pure
// functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "proto/wire/status.h"

namespace cgx::scheduler::sim {

struct PublishedRow {
  std::string id;
  double published = 0, ours = 0;
  double tolerance = 0;  // in the unit of `error`
  double error = 0;      // points, or percent of what was published
  const char* unit = "";

  bool holds() const { return error <= tolerance; }
};

struct Validation {
  std::vector<std::string> sources;
  std::vector<std::string> calibrations;  // "rate among 8: 1.2 GB/s, from fp32 layerwise 24 %"
  std::vector<std::string> predictions;   // of speeds: "vgg16 with 4 bits: ..."
  std::vector<PublishedRow> rows;
};
Result<Validation> validate(std::string_view text, const std::string& file_name);

}  // namespace cgx::scheduler::sim
