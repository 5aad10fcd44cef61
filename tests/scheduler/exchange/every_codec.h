// A sound setting of every codec in the table, so that new rows are covered without being named.
#pragma once

#include <vector>

#include "kernels/codec.h"

namespace cgx::scheduler {

// At full strength; `flags` are added where the codec takes them.
inline std::vector<CodecSpec> every_codec(uint8_t flags = 0) {
  std::vector<CodecSpec> specs;
  for (const kernels::CodecRow& row : kernels::codecs()) {
    CodecSpec spec{.codec = row.number,
                   .bits = row.bits_max,
                   .flags = static_cast<uint8_t>(row.implied | (row.options & flags)),
                   .bucket = row.sparse ? kSparseBucket : 512};
    for (float amount : {0.0f, 0.02f}) {
      spec.amount = amount;
      if (!kernels::validate(spec, DType::kF32).ok()) continue;
      specs.push_back(spec);
      break;
    }
  }
  return specs;
}

inline const kernels::CodecRow& row_of(const CodecSpec& spec) {
  return *kernels::find_codec(spec.codec);
}

}  // namespace cgx::scheduler
