// The codec interface: arithmetic on one range of buckets of one tensor.
//
// A codec is a stateless row (kernels/codecs.def); a lane is one implementation of all rows
// (scalar, avx2, avx512). Everything a call needs comes in its job struct; nothing allocates, locks
// or reads a clock. The bytes and floats produced are the same on every lane
// (kernels/ARITHMETIC.md). Thread rule: every function is pure and may run anywhere.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "proto/wire/status.h"
#include "proto/wire/types.h"

namespace cgx::kernels {

// What a machine contributes before it is encoded: its local ranks added in the order given, in
// fp32 (fp64 for fp64, integers wrap), times `scale` (1 for SUM, 1.0/n for AVG), plus residual.
// Elements are aligned to their own size, nothing more; integers take no scale, and only small
// floats have residuals.
struct RawView {
  const void* const* ranks = nullptr;  // rank_count pointers to element 0 of this range
  uint32_t rank_count = 0;             // 0: nothing present; contributes 0 + residual
  DType dtype = DType::kF32;
  double scale = 1.0;                  // fp32(scale) for small floats; 1 means no multiplication
  const float* residual_in = nullptr;  // confirmed slot, or null: no feedback
};

// Identifies the random draws of bucket `first_bucket` onwards; see ARITHMETIC.md "Randomness".
struct DrawKey {
  uint64_t stream = 0;        // mixed from job seed, communicator, tensor, step, phase, site
  uint64_t first_bucket = 0;  // counted from the tensor's element 0
};

struct RangeStats {
  uint64_t nonfinite_buckets = 0;
  uint64_t saturated = 0;  // finite values stored as the largest finite one
};

// One range: `elements` values starting at a bucket border; only the last bucket may be short.
struct EncodeJob {
  CodecSpec spec;
  RawView source;
  uint64_t elements = 0;
  DrawKey key;
  float* residual_out = nullptr;  // tentative slot, or null
  std::span<std::byte> encoded;   // exactly encoded_bytes(spec, dtype, elements); any alignment
  // Outputs that are not read soon on this core and should bypass its caches.
  bool stream_stores = false;    // encoded
  bool stream_residual = false;  // residual_out
};

struct DecodeJob {
  CodecSpec spec;
  std::span<const std::byte> encoded;
  uint64_t elements = 0;
  DType dtype = DType::kF32;
  void* const* targets = nullptr;  // target_count local results; each gets the same bits
  uint32_t target_count = 0;
  // Feedback sites only: where a decoded bucket is non-finite, residual_out := residual_in.
  const float* residual_in = nullptr;
  float* residual_out = nullptr;
  bool stream_stores = false;  // targets are not read soon on this core: bypass its caches
};

// sum[i] += decoded value i: several encoded streams into one fp32 accumulator. Small floats only.
struct DecodeAddJob {
  CodecSpec spec;
  std::span<const std::byte> encoded;
  uint64_t elements = 0;
  float* sum = nullptr;
};

// One machine's part of a chunk, in machine order. Exactly one of the two views is used.
struct Contribution {
  enum class Kind : uint8_t { kAbsent, kRaw, kEncoded };
  Kind kind = Kind::kAbsent;
  RawView raw;                         // kRaw: the owner's own exact part
  std::span<const std::byte> encoded;  // kEncoded
};

// The owner's fused pass: add contributions in order from +0.0, encode the sum with `spec`, store
// the error of that encoding in residual_out, and decode the own bytes into the local results. A
// target may be one of the raw contribution's rank pointers (in-place allreduce), exactly, not
// shifted.
struct ReduceJob {
  CodecSpec spec;
  std::span<const Contribution> contributions;
  uint64_t elements = 0;
  DType dtype = DType::kF32;
  DrawKey key;
  const float* residual_in = nullptr;  // restored where the result bucket is non-finite
  float* residual_out = nullptr;
  std::span<std::byte> encoded;
  void* const* targets = nullptr;
  uint32_t target_count = 0;
  bool stream_stores = false;    // targets are not read soon on this core: bypass its caches
  bool stream_residual = false;  // residual_out likewise
};

// One machine only: result = cast(sum of ranks * scale + residual), to every target. No encoding.
// Targets may be the ranks themselves. residual_out becomes 0, or residual_in where the result
// bucket is non-finite.
struct LocalReduceJob {
  RawView source;
  uint64_t elements = 0;
  void* const* targets = nullptr;
  uint32_t target_count = 0;
  float* residual_out = nullptr;
  uint32_t bucket = 512;  // the unit of the non-finite rule
};

// One lane's implementation. Jobs were validated by the caller (spec, sizes); decode and reduce
// still reject encoded bytes that no encoder produces (CORRUPT) without reading or writing out of
// bounds; targets and residual_out are undefined then. Source memory may change during a call (a
// client can write it at any time): the values are then arbitrary, the accesses are not.
struct Lane {
  const char* name;
  bool (*viable)();
  RangeStats (*encode)(const EncodeJob&);
  Status (*decode)(const DecodeJob&, RangeStats&);
  Status (*reduce)(const ReduceJob&, RangeStats&);
  void (*local_reduce)(const LocalReduceJob&);
  Status (*decode_add)(const DecodeAddJob&, RangeStats&);
};

std::span<const Lane* const> lanes();                  // best first; only compiled-in ones
const Lane& best_lane();                               // the first viable one
Result<const Lane*> find_lane(std::string_view name);  // "auto" or a name; error lists names

// One row of the codec table.
struct CodecRow {
  uint8_t number;       // CodecSpec::codec
  const char* name;     // "maxmin"
  const char* summary;  // one line of help
  uint16_t wire_version;
  bool zero_exact;
  uint8_t bits_min, bits_max;  // 0,0: takes no bits
  bool stochastic;             // can round stochastically
  bool feedback;               // error feedback applies: it loses something and is contractive
};
std::span<const CodecRow> codecs();
const CodecRow* find_codec(uint8_t number);
const CodecRow* find_codec(std::string_view name);

// Error names codec, parameter, value and what is allowed.
Status validate(const CodecSpec& spec, DType dtype);
// Divergent or doubtful combinations (contractive or not); kOK with a warning text in *warning.
Status check_policy(const CodecSpec& spec, std::string* warning);
// Exact size of `elements` values of `dtype` (elements from a bucket border). All codecs so far are
// fixed-size; variable ones will return their bound.
uint64_t encoded_bytes(const CodecSpec& spec, DType dtype, uint64_t elements);
// "maxmin:4,bucket=512,stochastic"; flags are "stochastic" and "feedback".
std::string to_string(const CodecSpec& spec);
Result<CodecSpec> parse_codec_spec(std::string_view text);  // the reverse

// The stream part of DrawKey.
struct DrawSource {
  uint64_t job_seed, communicator, tensor_name_hash, step;
  uint32_t phase, site;
};
uint64_t draw_stream(const DrawSource& source);

}  // namespace cgx::kernels
