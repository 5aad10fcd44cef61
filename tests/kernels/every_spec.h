// Every codec at every strength with every set of options that changes its bytes. Shares and
// thresholds at the recommended one; feedback is not among them, it encodes nothing.
#pragma once

#include <vector>

#include "kernels/codecs/codec_reference.h"

namespace cgx::kernels::testing {

inline std::vector<CodecSpec> every_spec(const CodecRow& row, uint32_t bucket) {
  constexpr uint8_t kEncoding = CodecSpec::kStochastic | CodecSpec::kL2Norm | CodecSpec::kClip;
  std::vector<CodecSpec> specs;
  CodecSpec spec = usage_of(row).examples.front();
  if (!row.sparse) spec.bucket = bucket;
  for (uint8_t bits = row.bits_min; bits <= row.bits_max; ++bits) {
    for (uint8_t flags = 0; flags <= kEncoding; ++flags) {
      if ((flags & ~(row.options & kEncoding)) != 0) continue;
      for (uint8_t values = 0; values < (row.sparse ? 4 : 1); ++values) {
        spec.bits = bits;
        spec.flags = flags | row.implied;
        spec.values = static_cast<SparseValues>(values);
        if (specs.empty() || spec != specs.back()) specs.push_back(spec);
      }
    }
  }
  return specs;
}

inline std::vector<CodecSpec> every_spec(uint32_t bucket) {
  std::vector<CodecSpec> specs;
  for (const CodecRow& row : codecs()) {
    const std::vector<CodecSpec> of_row = every_spec(row, bucket);
    specs.insert(specs.end(), of_row.begin(), of_row.end());
  }
  return specs;
}

}  // namespace cgx::kernels::testing
