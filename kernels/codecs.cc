// The codec table: rows, what a spec may say, and sizes. Everything here follows from codecs.def.
#include <algorithm>
#include <iterator>
#include <string>

#include "kernels/codec.h"
#include "kernels/codecs/codec_refusal.h"
#include "kernels/draw.h"
#include "kernels/families.h"  // made by CMakeLists.txt
#include "kernels/range.h"

namespace cgx::kernels {
namespace {

constexpr CodecRow kRows[] = {
#define X(stem, id, text, what, when, ...) \
  {.number = id, .name = text, .summary = what, .advice = when, __VA_ARGS__},
#include "kernels/codecs.def"
#undef X
};

constexpr bool promises(const CodecRow& row) {
  return row.promise.bytes && row.promise.error && row.promise.contractive;
}
static_assert(std::all_of(std::begin(kRows), std::end(kRows), promises),
              "a row of codecs.def has no .promise");

Status validate_bits(const CodecRow& row, const CodecSpec& spec) {
  if (spec.bits >= row.bits_min && spec.bits <= row.bits_max) return {};
  const std::string given = std::to_string(spec.bits);
  if (row.bits_max == 0) return refuse(row, "bits", "must not be given, not " + given);
  return refuse(row, row.strength == Strength::kFormat ? "exponent bits" : "bits",
                "must be " + std::to_string(row.bits_min) + " to " + std::to_string(row.bits_max) +
                    ", not " + given);
}

Status validate_flags(const CodecRow& row, const CodecSpec& spec) {
  struct Option {
    uint8_t flag;
    const char* name;
  };
  constexpr Option kOptions[] = {{CodecSpec::kStochastic, "stochastic"},
                                 {CodecSpec::kFeedback, "feedback"},
                                 {CodecSpec::kL2Norm, "norm=l2"},
                                 {CodecSpec::kClip, "clip"}};
  uint8_t unknown = spec.flags;
  for (const auto& [flag, name] : kOptions) {
    unknown &= static_cast<uint8_t>(~flag);
    if ((spec.flags & flag) == 0 || ((row.options | row.implied) & flag) != 0) continue;
    const bool exact = flag == CodecSpec::kFeedback && row.number == 0;
    return refuse(row, name, std::string("is not available") + (exact ? ": it is exact" : ""));
  }
  if (unknown != 0 || spec.reserved != 0) {
    return refuse(row, "flags",
                  "hold unknown bits: " + std::to_string(spec.flags) + ", reserved " +
                      std::to_string(spec.reserved) +
                      "; allowed are stochastic (1), feedback (2), norm=l2 (4) and clip (8)");
  }
  if ((spec.flags & row.implied) != row.implied) {
    return refuse(row, "flags", "must hold " + std::to_string(row.implied) + ", it is part of it");
  }
  return {};
}

Status validate_bucket(const CodecRow& row, const CodecSpec& spec) {
  const std::string given = ", not " + std::to_string(spec.bucket);
  if (row.sparse) {
    if (spec.bucket == kSparseBucket) return {};
    return refuse(row, "bucket", "is always " + std::to_string(kSparseBucket) + given);
  }
  if (spec.bucket >= kBucketMin && spec.bucket <= kBucketMax && spec.bucket % kBlock == 0)
    return {};
  return refuse(row, "bucket",
                "must be a multiple of " + std::to_string(kBlock) + " from " +
                    std::to_string(kBucketMin) + " to " + std::to_string(kBucketMax) + given);
}

Status validate_amount(const CodecRow& row, const CodecSpec& spec) {
  const std::string given = ", not " + shortest(spec.amount);
  switch (row.strength) {
    case Strength::kNone:
    case Strength::kBits:
    case Strength::kFormat:
      if (spec.amount == 0) return {};
      return refuse(row, "amount", "must not be given" + given);
    case Strength::kShare:
      if (spec.amount >= kShareMin && spec.amount <= kShareMax) return {};
      return refuse(row, "share",
                    "must be " + shortest(kShareMin) + " to " + shortest(kShareMax) + given);
    case Strength::kThreshold:
      if (spec.amount > 0 && spec.amount < kThresholdMax) return {};
      return refuse(row, "threshold", "must be more than 0 and less than 1e30" + given);
  }
  return {};
}

Status validate_values(const CodecRow& row, const CodecSpec& spec) {
  if (spec.values == SparseValues::kF32) return {};
  if (row.sparse && spec.values <= SparseValues::kMaxMin4) return {};
  return refuse(row, "values", row.sparse ? "are unknown" : "are not available: it is not sparse");
}

template <class Family>
uint64_t range_bytes(const CodecSpec& spec, uint64_t elements) {
  const uint64_t bytes =
      Family::meta_bytes() * buckets_of(elements, spec.bucket) + Family::code_bytes(spec, elements);
  return (bytes + 7) & ~uint64_t{7};
}

Status corrupt(std::string message) {
  return {StatusCode::kCORRUPT, std::move(message)};
}

// What the entries of a range of variable size take up; 0 if they do not end within `bytes`.
template <class Family>
uint64_t used_length(const CodecSpec& spec, uint64_t elements, std::span<const std::byte> bytes) {
  if constexpr (requires { &Family::length; }) {
    return Family::length(spec, elements, reinterpret_cast<const uint8_t*>(bytes.data()),
                          bytes.size());
  }
  return 0;
}

uint64_t used_bytes(const CodecSpec& spec, uint64_t elements, std::span<const std::byte> bytes) {
  switch (spec.codec) {
#define X(stem, number, ...) \
  case number:               \
    return used_length<stem##Family>(spec, elements, bytes);
#include "kernels/codecs.def"
#undef X
  }
  return 0;
}

}  // namespace

std::span<const CodecRow> codecs() {
  return kRows;
}

const CodecRow* find_codec(uint8_t number) {
  for (const CodecRow& row : kRows) {
    if (row.number == number) return &row;
  }
  return nullptr;
}

const CodecRow* find_codec(std::string_view name) {
  for (const CodecRow& row : kRows) {
    if (row.name == name) return &row;
  }
  return nullptr;
}

std::string codec_names() {
  std::string names;
  for (const CodecRow& row : kRows) names.append(names.empty() ? "" : ", ").append(row.name);
  return names;
}

uint64_t codec_formats() {
  uint64_t formats = 0;
  for (const CodecRow& row : kRows) {
    formats = mix64((formats ^ (uint64_t{row.number} << 16 | row.wire_version)) + kGolden64);
  }
  return formats;
}

Status validate(const CodecSpec& spec, DType dtype) {
  const CodecRow* row = find_codec(spec.codec);
  if (row == nullptr) {
    return invalid_argument("codec number " + std::to_string(spec.codec) +
                            " is unknown; known are " + codec_names());
  }
  CGX_RETURN_IF_ERROR(validate_bits(*row, spec));
  CGX_RETURN_IF_ERROR(validate_flags(*row, spec));
  CGX_RETURN_IF_ERROR(validate_bucket(*row, spec));
  CGX_RETURN_IF_ERROR(validate_amount(*row, spec));
  CGX_RETURN_IF_ERROR(validate_values(*row, spec));
  if (!dtype_is_small_float(dtype) && spec.codec != 0) {
    return refuse(
        *row, "tensor type",
        std::string(dtype_name(dtype)) + " is not supported; it takes fp32, fp16 and bf16");
  }
  return {};
}

uint64_t encoded_bytes(const CodecSpec& spec, DType dtype, uint64_t elements) {
  if (!dtype_is_small_float(dtype)) return (dtype_bytes(dtype) * elements + 7) & ~uint64_t{7};
  switch (spec.codec) {
#define X(stem, number, ...) \
  case number:               \
    return range_bytes<stem##Family>(spec, elements);
#include "kernels/codecs.def"
#undef X
  }
  return 0;
}

Result<uint64_t> encoded_length(const CodecSpec& spec, DType dtype, uint64_t elements,
                                std::span<const std::byte> bytes) {
  const CodecRow* row = find_codec(spec.codec);
  if (row != nullptr && row->variable_size) {
    const uint64_t used = used_bytes(spec, elements, bytes);
    if (used != 0 || elements == 0) return used;
    return corrupt(std::to_string(bytes.size()) + " encoded bytes hold no " + to_string(spec) +
                   " encoding of " + std::to_string(elements) + " values");
  }
  const uint64_t length = encoded_bytes(spec, dtype, elements);
  if (bytes.size() >= length) return length;
  return corrupt(std::to_string(bytes.size()) + " encoded bytes where " + to_string(spec) +
                 " has " + std::to_string(length) + " for " + std::to_string(elements) +
                 " values of " + std::string(dtype_name(dtype)));
}

uint64_t draw_stream(const DrawSource& source) {
  uint64_t stream = 0;
  for (const uint64_t word : {source.job_seed, source.communicator, source.tensor_name_hash,
                              source.step, uint64_t{source.phase} << 32 | source.site}) {
    stream = mix64((stream ^ word) + kGolden64);
  }
  return stream;
}

}  // namespace cgx::kernels
