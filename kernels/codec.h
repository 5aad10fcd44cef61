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

#include "kernels/tuning.h"
#include "proto/wire/status.h"
#include "proto/wire/types.h"

namespace cgx::kernels {

// What a machine contributes before it is encoded: its local ranks added in the order given, in
// fp32 (fp64 for fp64, integers wrap), times `scale` (1 for SUM, 1.0/n for AVG), plus residual
// times `residual_scale`. Elements are aligned to their own size, nothing more; integers take no
// scale, and only small floats have residuals.
struct RawView {
  const void* const* ranks = nullptr;  // rank_count pointers to element 0 of this range
  uint32_t rank_count = 0;             // 0: nothing present; 0 + residual, and no vote
  DType dtype = DType::kF32;
  double scale = 1.0;                  // fp32(scale) for small floats; 1 means no multiplication
  const float* residual_in = nullptr;  // confirmed slot, or null: no feedback
  float residual_scale = 1.0f;         // decay, learning-rate ratio, loss scale: all in one
};

// Identifies the random draws of bucket `first_bucket` onwards; see ARITHMETIC.md "Randomness". For
// a codec with shared draws every machine and both phases give the same: it says what is sent.
struct DrawKey {
  uint64_t stream = 0;        // mixed from job seed, communicator, tensor, step, phase, site
  uint64_t first_bucket = 0;  // counted from the tensor's element 0
};

// What a call adds to: counts of everything so far.
struct RangeStats {
  uint64_t nonfinite_buckets = 0;
  uint64_t saturated = 0;  // finite values stored as the largest finite one
  // Encoders that were asked for norms: squared, over finite buckets, residual included.
  double intended_sq = 0;  // of what should have been sent
  double sent_sq = 0;      // of what the receiver will decode
};

// One range: `elements` values starting at a bucket border; only the last bucket may be short.
struct EncodeJob {
  CodecSpec spec;
  RawView source;
  uint64_t elements = 0;
  DrawKey key;
  float* residual_out = nullptr;  // tentative slot, or null
  std::span<std::byte> encoded;   // exactly encoded_bytes(spec, dtype, elements); any alignment
  bool norms = false;             // fill intended_sq and sent_sq
};

struct DecodeJob {
  CodecSpec spec;
  std::span<const std::byte> encoded;
  uint64_t elements = 0;
  DType dtype = DType::kF32;
  void* const* targets = nullptr;  // target_count local results; each gets the same bits
  uint32_t target_count = 0;
  // Feedback sites only: where a decoded bucket is non-finite, residual_out := residual_in *
  // residual_scale.
  const float* residual_in = nullptr;
  float* residual_out = nullptr;
  float residual_scale = 1.0f;
};

// sum[i] += decoded value i: several encoded streams into one fp32 accumulator. Small floats only.
struct DecodeAddJob {
  CodecSpec spec;
  std::span<const std::byte> encoded;
  uint64_t elements = 0;
  float* sum = nullptr;
};

// One machine's part of a chunk, in machine order. At most one of the two views is used.
struct Contribution {
  enum class Kind : uint8_t { kAbsent, kRaw, kEncoded };
  Kind kind = Kind::kAbsent;
  RawView raw;                         // kRaw: exact, as the owner's own part is; any small float
  std::span<const std::byte> encoded;  // kEncoded
};

// The owner's fused pass: add contributions in order from +0.0, encode the sum with `spec`, store
// the error of that encoding in residual_out, and decode the own bytes into the local results. A
// target may be one of a raw contribution's rank pointers (in-place allreduce), exactly, not
// shifted.
struct ReduceJob {
  CodecSpec spec;
  std::span<const Contribution> contributions;
  uint64_t elements = 0;
  DType dtype = DType::kF32;
  DrawKey key;
  const float* residual_in = nullptr;  // restored where the result bucket is non-finite
  float* residual_out = nullptr;
  float residual_scale = 1.0f;
  std::span<std::byte> encoded;
  bool norms = false;
  void* const* targets = nullptr;
  uint32_t target_count = 0;
};

// Every machine has every machine's encoded part, its own included (allgather): add them in order
// from +0.0 and store the sum in the local results. No contribution is raw.
struct CombineJob {
  CodecSpec spec;
  std::span<const Contribution> contributions;
  uint64_t elements = 0;
  DType dtype = DType::kF32;
  void* const* targets = nullptr;
  uint32_t target_count = 0;
  // Feedback sites only: where the result bucket is non-finite, residual_out := residual_in *
  // residual_scale.
  const float* residual_in = nullptr;
  float* residual_out = nullptr;
  float residual_scale = 1.0f;
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
  uint32_t bucket = 512;  // the unit of the non-finite rule, but no more than kBucketMax
};

// One lane's implementation. Jobs were validated by the caller (spec, sizes); decode and reduce
// still reject encoded bytes that no encoder produces (CORRUPT) without reading or writing out of
// bounds; targets and residual_out are undefined then. Source memory may change during a call (a
// client can write it at any time): the values are then arbitrary, the accesses are not.
struct LaneOps;
struct Lane {
  const char* name;
  bool (*viable)();
  const LaneOps* ops;
  Tuning tuning = {};

  // The same lane, gone about otherwise: the bits stay.
  Lane with(const Tuning& other) const { return {name, viable, ops, other}; }

  // Returns how many bytes of `encoded` are used: all but for codecs of variable size.
  uint64_t encode(const EncodeJob& job, RangeStats& stats) const;
  Status decode(const DecodeJob& job, RangeStats& stats) const;
  Result<uint64_t> reduce(const ReduceJob& job, RangeStats& stats) const;  // bytes used, as encode
  Status combine(const CombineJob& job, RangeStats& stats) const;
  void local_reduce(const LocalReduceJob& job) const;
  Status decode_add(const DecodeAddJob& job, RangeStats& stats) const;
};

std::span<const Lane* const> lanes();  // best first; only compiled-in ones
const Lane& best_lane();               // the first viable one
// This thread rounds to nearest and keeps denormals again, as every lane assumes: libraries loaded
// into the process may change that (what -ffast-math links does). A few cycles, before each job.
void restore_float_mode();
Result<const Lane*> find_lane(std::string_view name);  // "auto" or a name; error lists names

// What follows the colon of a codec's text.
enum class Strength : uint8_t { kNone, kBits, kFormat, kShare, kThreshold };

// One row of the codec table.
// What ARITHMETIC.md promises, in words. n values in b buckets; bits as given.
struct CodecPromise {
  const char* bytes = nullptr;
  const char* error = nullptr;
  const char* contractive = nullptr;
};

struct CodecRow {
  uint8_t number;       // CodecSpec::codec
  const char* name;     // "maxmin"
  const char* summary;  // one line of help
  const char* advice;   // when to use it
  uint16_t wire_version = 1;
  Strength strength = Strength::kNone;
  uint8_t bits_min = 0, bits_max = 0;  // kBits and kFormat
  uint8_t options = 0;                 // CodecSpec flags that may be given
  uint8_t implied = 0;                 // and those that always are
  bool zero_exact = true;              // exact zeros stay zeros (at two bits and more)
  bool quantizer = true;               // NaN spreads to its bucket; false: kept per element
  bool sparse = false;                 // selects from buckets of kSparseBucket
  bool variable_size = false;
  bool shared_draws = false;  // phase and site are no part of its DrawKey
  bool votes = false;    // every machine has one: a sum of several machines' is no contribution
  bool gathers = false;  // few machines do better with allgather than with scatter-reduce-allgather
  CodecPromise promise = {};

  bool has(uint8_t flags) const { return (options & flags) == flags; }
};
std::span<const CodecRow> codecs();
const CodecRow* find_codec(uint8_t number);
const CodecRow* find_codec(std::string_view name);
std::string codec_names();  // "fp32, fp16, ..."
// One number for all rows and their wire versions: machines that differ in it must not exchange.
uint64_t codec_formats();

constexpr float kShareMin = 1e-4f, kShareMax = 0.25f;  // of a bucket that a sparse codec may keep
constexpr float kThresholdMax = 1e30f;

// Error names codec, parameter, value and what is allowed.
Status validate(const CodecSpec& spec, DType dtype);
// Divergent or doubtful combinations (contractive or not); kOK with a warning text in *warning.
Status check_policy(const CodecSpec& spec, std::string* warning);
// Size of `elements` values of `dtype` (elements from a bucket border): exact, or the most that a
// codec of variable size can need.
uint64_t encoded_bytes(const CodecSpec& spec, DType dtype, uint64_t elements);
// How many of `bytes` belong to the range that starts there; CORRUPT if it does not end within
// them. Looks at headers only, and only for codecs of variable size.
Result<uint64_t> encoded_length(const CodecSpec& spec, DType dtype, uint64_t elements,
                                std::span<const std::byte> bytes);
// "maxmin:4,bucket=512,stochastic", "topk:0.01,values=fp16,feedback".
std::string to_string(const CodecSpec& spec);
Result<CodecSpec> parse_codec_spec(std::string_view text);  // the reverse

// The stream part of DrawKey.
struct DrawSource {
  uint64_t job_seed, communicator, tensor_name_hash, step;
  uint32_t phase, site;
};
uint64_t draw_stream(const DrawSource& source);

}  // namespace cgx::kernels
