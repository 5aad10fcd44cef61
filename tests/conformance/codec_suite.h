// The promises of kernels/codec.h, checked for every codec on every lane. A row added to codecs.def
// is tested without a line here; what only some codecs promise is asked of their row.
#pragma once

#include <string>
#include <vector>

#include "tests/kernels/codec_cases.h"

namespace cgx::kernels::testing {

struct CodecOnLane {
  const Lane* lane;
  CodecSpec spec;
};

inline void PrintTo(const CodecOnLane& param, std::ostream* out) {
  *out << param.lane->name << " " << to_string(param.spec);
}

// All, those of max-min, and those that promise to keep zeros (one bit has no code to spare).
std::vector<CodecOnLane> all_codecs_on_lanes();
std::vector<CodecOnLane> maxmin_on_lanes();
std::vector<CodecOnLane> zero_exact_codecs_on_lanes();
std::string codec_on_lane_name(const ::testing::TestParamInfo<CodecOnLane>& info);

class CodecConformance : public ::testing::TestWithParam<CodecOnLane> {
 protected:
  const Lane& lane() const { return *GetParam().lane; }
  const CodecSpec& spec() const { return GetParam().spec; }
  bool quantizer() const { return is_quantizer(spec()); }
  bool sparse() const { return is_sparse(spec()); }

  Floats round_trip(const Floats& values) const {
    return testing::round_trip(lane(), spec(), values, key_);
  }
  // How many of n values the one sent of value i stands for.
  float weight_of(size_t i, size_t n) const;

  std::mt19937_64 random_{test_seed()};
  DrawKey key_{0x5eed, 3};
};

}  // namespace cgx::kernels::testing
