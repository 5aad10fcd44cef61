// One codec on bytes that no encoder made, and on values that no model made: decode, decode-add,
// reduce and encode on every lane.
// Buffers have their exact sizes, so that the sanitizer sees any step outside of the scalar lane;
// the others, compiled without it, have to agree with it on the outcome.
//
// CGX_FUZZ_CODEC is the codec; input: what to do, strength and flags, element type,
// elements (2 bytes), then the encoded bytes or values. For a sparse row the strength byte holds
// the kind of values (2 bits) and of amount (2 bits), and whether the range crosses the border of
// two buckets.
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "kernels/codec.h"

namespace {

using namespace cgx;
using namespace cgx::kernels;

constexpr size_t kHeader = 6;

void require(bool condition) {
  if (!condition) std::abort();
}

struct Input {
  CodecSpec spec;
  DType dtype = DType::kF32;
  size_t elements = 0;
  std::vector<std::byte> encoded;
};

void make_sparse(uint8_t strength, Input& input) {
  constexpr float kAmounts[] = {0.01f, 0.25f, 0.001f, 0.1f};
  input.spec.bits = 0;
  input.spec.bucket = kSparseBucket;
  input.spec.values = static_cast<SparseValues>(strength & 3);
  input.spec.amount = kAmounts[strength >> 2 & 3];
  if (strength & 16) input.elements += kSparseBucket - 512;
}

// False if the header names nothing that validate() accepts.
bool read_input(const uint8_t* data, size_t size, Input& input) {
  if (size < kHeader || !dtype_known(data[3])) return false;
  const CodecRow& row = *find_codec(CGX_FUZZ_CODEC);
  input.spec = {.codec = row.number, .bits = data[1], .flags = data[2], .bucket = 64};
  input.dtype = static_cast<DType>(data[3]);
  input.elements = (data[4] | data[5] << 8) % 1024;
  if (row.sparse) make_sparse(data[1], input);
  if (!validate(input.spec, input.dtype).ok()) return false;
  input.encoded.resize(encoded_bytes(input.spec, input.dtype, input.elements));
  const size_t given = std::min(size - kHeader, input.encoded.size());
  if (given > 0) std::memcpy(input.encoded.data(), data + kHeader, given);
  const auto used = encoded_length(input.spec, input.dtype, input.elements, input.encoded);
  if (used.ok()) input.encoded.resize(*used);
  return true;
}

struct Outcome {
  bool good;
  std::vector<std::byte> result, encoded;
  std::vector<float> residual;
};

void require_same(const Outcome& a, const Outcome& b) {
  require(a.good == b.good);
  if (!a.good) return;
  require(a.result == b.result && a.encoded == b.encoded);
  require(a.residual.empty() || std::memcmp(a.residual.data(), b.residual.data(),
                                            a.residual.size() * sizeof(float)) == 0);
}

Outcome decode(const Lane& lane, const Input& input) {
  Outcome outcome;
  outcome.result.resize(input.elements * dtype_bytes(input.dtype));
  if (dtype_is_small_float(input.dtype)) outcome.residual.resize(input.elements);
  void* target = outcome.result.data();
  DecodeJob job{.spec = input.spec, .encoded = input.encoded, .elements = input.elements};
  job.dtype = input.dtype;
  job.targets = &target;
  job.target_count = 1;
  job.residual_out = outcome.residual.empty() ? nullptr : outcome.residual.data();
  RangeStats stats;
  outcome.good = lane.decode(job, stats).ok();
  return outcome;
}

Outcome reduce(const Lane& lane, const Input& input) {
  Outcome outcome;
  outcome.result.resize(input.elements * dtype_bytes(input.dtype));
  outcome.encoded.resize(encoded_bytes(input.spec, input.dtype, input.elements));
  if (dtype_is_small_float(input.dtype)) outcome.residual.resize(input.elements);
  const std::vector<std::byte> own(outcome.result.size(), std::byte{0x3c});
  const void* rank = own.data();
  Contribution parts[2];
  parts[0].kind = Contribution::Kind::kEncoded;
  parts[0].encoded = input.encoded;
  parts[1].kind = Contribution::Kind::kRaw;
  parts[1].raw = {.ranks = &rank, .rank_count = 1, .dtype = input.dtype};
  void* target = outcome.result.data();
  ReduceJob job{.spec = input.spec, .contributions = parts, .elements = input.elements};
  job.dtype = input.dtype;
  job.encoded = outcome.encoded;
  job.targets = &target;
  job.target_count = 1;
  job.residual_out = outcome.residual.empty() ? nullptr : outcome.residual.data();
  RangeStats stats;
  outcome.good = lane.reduce(job, stats).ok();
  return outcome;
}

// What to do, by bit; without the first, decode.
enum Wish : uint8_t { kEncodeValues = 0x80, kTwoRanks = 0x40, kWithResidual = 0x20 };

// The input's bytes as values, over and over until there are enough.
std::vector<float> values_of(const uint8_t* data, size_t size, size_t count) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count && size >= sizeof(float); ++i) {
    std::memcpy(&values[i], data + i * sizeof(float) % (size - size % sizeof(float)),
                sizeof(float));
  }
  return values;
}

Outcome encode(const Lane& lane, const Input& input, uint8_t wish,
               const std::vector<float>& values) {
  Outcome outcome{.good = true};
  outcome.encoded.resize(encoded_bytes(input.spec, input.dtype, input.elements));
  outcome.residual.resize(input.elements);
  const void* ranks[] = {values.data(), values.data() + input.elements};
  EncodeJob job{.spec = input.spec, .elements = input.elements, .key = {0x5eed, 3}};
  job.source = {.ranks = ranks, .rank_count = wish & kTwoRanks ? 2u : 1u, .dtype = input.dtype};
  if (wish & kTwoRanks) job.source.scale = 0.5;
  if (wish & kWithResidual) job.source.residual_in = values.data() + 2 * input.elements;
  job.residual_out = outcome.residual.data();
  job.encoded = outcome.encoded;
  RangeStats stats;
  outcome.encoded.resize(lane.encode(job, stats));
  for (const float error : outcome.residual) require(std::isfinite(error));
  return outcome;
}

// Values that a daemon may be given: of small float types, residuals finite.
void encode_on_all_lanes(const Input& input, uint8_t wish, const uint8_t* data, size_t size) {
  if (!dtype_is_small_float(input.dtype)) return;
  std::vector<float> values = values_of(data, size, 3 * input.elements);
  for (size_t i = 2 * input.elements; i < values.size(); ++i) {
    if (!std::isfinite(values[i])) values[i] = 0;
  }
  const Outcome expected = encode(**find_lane("scalar"), input, wish, values);
  for (const Lane* lane : lanes()) {
    if (lane->viable()) require_same(expected, encode(*lane, input, wish, values));
  }
  require(encoded_length(input.spec, input.dtype, input.elements, expected.encoded).ok());
}

Outcome decode_add(const Lane& lane, const Input& input) {
  Outcome outcome;
  outcome.residual.assign(input.elements, 1.0f);
  DecodeAddJob job{.spec = input.spec, .encoded = input.encoded, .elements = input.elements};
  job.sum = outcome.residual.data();
  RangeStats stats;
  outcome.good = lane.decode_add(job, stats).ok();
  return outcome;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Input input;
  if (!read_input(data, size, input)) return 0;
  if (data[0] & kEncodeValues) {
    encode_on_all_lanes(input, data[0], data + kHeader, size - kHeader);
    return 0;
  }
  const Lane& scalar = **find_lane("scalar");
  const Outcome decoded = decode(scalar, input), reduced = reduce(scalar, input);
  for (const Lane* lane : lanes()) {
    if (!lane->viable()) continue;
    require_same(decoded, decode(*lane, input));
    require_same(reduced, reduce(*lane, input));
    if (input.dtype == DType::kF32) {
      require_same(decode_add(scalar, input), decode_add(*lane, input));
    }
  }
  return 0;
}
