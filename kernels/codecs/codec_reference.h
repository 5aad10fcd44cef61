// The codec table as operators read it: `cgxctl codecs` shows it, CODECS.md is generated from it.
//
// Everything follows from codecs.def, check_policy and encoded_bytes. Thread rule: pure functions.
#pragma once

#include <string>
#include <vector>

#include "kernels/codec.h"

namespace cgx::kernels {

// What may be written for a codec, and what it promises.
struct CodecUsage {
  std::string strength;              // what follows the colon: "bits", "format", ... or nothing
  std::string range;                 // of the strength: "1 to 8", "e4m3, e5m2"
  std::vector<std::string> options;  // what may follow commas: "bucket=N", "stochastic"
  std::vector<CodecSpec> examples;   // the recommended one first, then one for each option
  const char* bytes = "";            // of n values in b buckets
  const char* error = "";            // the bound, per value
  const char* contractive = "";      // whether what is not sent is less than what was wanted
  const char* collective = "";       // what few machines do best with it
};
CodecUsage usage_of(const CodecRow& row);

// What one core does, in GB/s of fp32: tests/bench/codec_cost.json.
struct CodecCost {
  std::string codec, lane;  // as to_string writes it
  double encode = 0, decode = 0;
};
struct CodecCosts {
  std::string machine;
  double copy = 0;  // memcpy in the same run, GB/s of what is copied
  std::vector<CodecCost> rows;
};
// The text of CODECS.md. Codecs without a cost are said to be not measured.
std::string reference_markdown(const CodecCosts& costs);

}  // namespace cgx::kernels
