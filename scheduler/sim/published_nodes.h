// Published figures of systems with several GPUs a machine, which choose for each tensor whether
// and where it is compressed: how much faster a step is than uncompressed, and how near to codecs
// that cost nothing. Lines:
//
//   nodes MACHINES GPUS LATENCY PROCESSORS
//                          latency of one stage of a collective; how fast a machine's processors
//                          encode, as a rate of bits before
//   gpucodec NAME SENDS BOTH DECODE TWICE
//                          bytes of a 4-byte element; times of a GPU for its share of a tensor, of
//                          both ways, of decoding, and where gradients are encoded inside machines,
//                          too: up to 2^20 elements, in proportion above
//   system NAME MODEL BACKWARD FORWARD INSIDE BETWEEN SCALING
//                          an architecture; its passes on one GPU; times of 1,000 bytes between
//                          GPUs of a machine and between machines; published scaling without
//                          compression, in percent, from which follows how many times faster
//                          both are
//   gain ID SYSTEM CODEC PUBLISHED TOLERANCE
//                          uncompressed step / step; tolerance in percent
//   upper ID SYSTEM CODEC PUBLISHED TOLERANCE
//                          how much longer a step takes than with codecs that cost nothing, in
//                          percent; tolerance in points
//
// As in Espresso's artifact, encoding on a GPU holds the backward pass up, and encoding and
// decoding hold the link. Thread rule: pure functions.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "scheduler/sim/lines.h"
#include "scheduler/sim/published.h"

namespace cgx::scheduler::sim {

class PublishedNodes {
 public:
  Status nodes(const Line& line);
  Status codec(const Line& line);
  Result<std::string> system(const Line& line);  // what was calibrated, for people
  Result<PublishedRow> gain(const Line& line) const;
  Result<PublishedRow> upper(const Line& line) const;

 private:
  struct Codec {
    double sends = 4;  // of a 4-byte element
    double both_ns = 0, decode_ns = 0, twice_ns = 0;
  };
  struct System {
    std::vector<double> bytes, gap_ns;  // by tensor, in order of arrival
    double forward_ns = 0;
    double inside_ns = 0, between_ns = 0;  // a byte
  };
  // How one tensor goes.
  enum class Choice : uint8_t { kRaw, kBetween, kEverywhere, kProcessors };
  struct Cost {
    double stall_ns = 0, link_ns = 0, processors_ns = 0;
  };
  struct Asked {
    const System* system = nullptr;
    const Codec* codec = nullptr;
  };
  Result<Asked> asked(const Line& line) const;
  Cost cost_of(const System& system, const Codec& codec, double bytes, Choice choice) const;
  double step_ns(const System& system, const Codec& codec, const std::vector<Choice>& way) const;
  double best_ns(const System& system, const Codec& codec) const;
  void improve(const System& system, const Codec& codec, std::vector<Choice>& way,
               double& step) const;

  double machines_ = 0, gpus_ = 0, latency_ns_ = 0, processors_ns_ = 0;
  std::map<std::string, Codec> codecs_;
  std::map<std::string, System> systems_;
};

}  // namespace cgx::scheduler::sim
