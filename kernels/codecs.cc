// The codec table: rows, checks, sizes and texts. Everything here follows from codecs.def.
#include <charconv>
#include <initializer_list>

#include "kernels/codec.h"
#include "kernels/range.h"
#include "kernels/rows.h"

namespace cgx::kernels {
namespace {

constexpr CodecRow kRows[] = {
#define X(stem, number, name, summary, version, zero_exact, bits_min, bits_max, stochastic, \
          feedback)                                                                         \
  {number, name, summary, version, zero_exact, bits_min, bits_max, stochastic, feedback},
#include "kernels/codecs.def"
#undef X
};

constexpr uint32_t kDefaultBucket = CodecSpec().bucket;

std::string quoted(std::string_view text) {
  std::string result(1, '"');
  return result.append(text).append(1, '"');
}

std::string known_names() {
  std::string names;
  for (const CodecRow& row : kRows) names.append(names.empty() ? "" : ", ").append(row.name);
  return names;
}

Status refuse(const CodecRow& row, const std::string& parameter, const std::string& why) {
  return invalid_argument("codec " + std::string(row.name) + ": " + parameter + " " + why);
}

Status validate_bits(const CodecRow& row, const CodecSpec& spec) {
  if (spec.bits >= row.bits_min && spec.bits <= row.bits_max) return {};
  if (row.bits_max == 0)
    return refuse(row, "bits", "must not be given, not " + std::to_string(spec.bits));
  return refuse(row, "bits",
                "must be " + std::to_string(row.bits_min) + " to " + std::to_string(row.bits_max) +
                    ", not " + std::to_string(spec.bits));
}

Status validate_flags(const CodecRow& row, const CodecSpec& spec) {
  if (spec.stochastic() && !row.stochastic) return refuse(row, "stochastic", "is not available");
  if (spec.feedback() && !row.feedback)
    return refuse(row, "feedback", "is not available: it is exact");
  constexpr uint8_t kKnown = CodecSpec::kStochastic | CodecSpec::kFeedback;
  if (spec.flags & ~kKnown || spec.reserved != 0) {
    return refuse(row, "flags",
                  "hold unknown bits: " + std::to_string(spec.flags) + ", reserved " +
                      std::to_string(spec.reserved) +
                      "; allowed are stochastic (1) and feedback (2)");
  }
  return {};
}

template <class Family>
uint64_t range_bytes(const CodecSpec& spec, uint64_t elements) {
  const uint64_t bytes =
      Family::meta_bytes() * buckets_of(elements, spec.bucket) + Family::code_bytes(spec, elements);
  return (bytes + 7) & ~uint64_t{7};
}

template <class Number>
bool parse_number(std::string_view text, Number& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size();
}

std::string_view take_until(std::string_view& text, char separator) {
  const size_t end = text.find(separator);
  const std::string_view word = text.substr(0, end);
  text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  return word;
}

Status parse_option(std::string_view option, const CodecRow& row, CodecSpec& spec) {
  constexpr std::string_view kBucket = "bucket=";
  if (option == "stochastic") {
    spec.flags |= CodecSpec::kStochastic;
  } else if (option == "feedback") {
    spec.flags |= CodecSpec::kFeedback;
  } else if (!option.starts_with(kBucket)) {
    return refuse(row, quoted(option), "is no parameter; known are bucket=N, stochastic, feedback");
  } else if (!parse_number(option.substr(kBucket.size()), spec.bucket)) {
    return refuse(row, quoted(option), "is not a number of elements");
  }
  return {};
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

Status validate(const CodecSpec& spec, DType dtype) {
  const CodecRow* row = find_codec(spec.codec);
  if (row == nullptr) {
    return invalid_argument("codec number " + std::to_string(spec.codec) +
                            " is unknown; known are " + known_names());
  }
  CGX_RETURN_IF_ERROR(validate_bits(*row, spec));
  CGX_RETURN_IF_ERROR(validate_flags(*row, spec));
  if (spec.bucket < kBucketMin || spec.bucket > kBucketMax || spec.bucket % kBlock != 0) {
    return refuse(*row, "bucket",
                  "must be a multiple of " + std::to_string(kBlock) + " from " +
                      std::to_string(kBucketMin) + " to " + std::to_string(kBucketMax) + ", not " +
                      std::to_string(spec.bucket));
  }
  if (!dtype_is_small_float(dtype) && spec.codec != 0) {
    return refuse(
        *row, "tensor type",
        std::string(dtype_name(dtype)) + " is not supported; it takes fp32, fp16 and bf16");
  }
  return {};
}

Status check_policy(const CodecSpec& spec, std::string* warning) {
  CGX_RETURN_IF_ERROR(validate(spec, DType::kF32));
  const CodecRow& row = *find_codec(spec.codec);
  const auto warn = [&](const char* text) {
    if (warning != nullptr) *warning = to_string(spec) + ": " + text;
  };
  if (row.bits_max == 0) return {};
  if (spec.feedback() && spec.bits == 1) {
    return refuse(row, "feedback", "diverges at 1 bit; use at least 2 bits");
  }
  if (spec.feedback() && spec.bits == 2 && spec.stochastic()) {
    return refuse(row, "stochastic",
                  "with feedback diverges at 2 bits; drop one of them or use 3 bits");
  }
  if (spec.feedback() && spec.bits == 2) {
    warn(
        "buckets with zeros keep a residual of about 1.2 times the gradient at 2 bits; 3 bits are "
        "safer");
  } else if (spec.feedback() && spec.stochastic()) {
    warn("nearest rounding leaves a smaller residual when feedback is on");
  } else if (spec.stochastic() && spec.bits < 3) {
    warn("stochastic rounding below 3 bits adds noise larger than the gradient");
  } else if (!spec.feedback() && !spec.stochastic() && spec.bits < 4) {
    warn("nearest rounding without feedback is biased; add stochastic or feedback");
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

std::string to_string(const CodecSpec& spec) {
  const CodecRow* row = find_codec(spec.codec);
  std::string text = row != nullptr ? row->name : "codec" + std::to_string(spec.codec);
  if (spec.bits != 0) text.append(":").append(std::to_string(spec.bits));
  if (spec.bits != 0 || spec.bucket != kDefaultBucket) {
    text.append(",bucket=").append(std::to_string(spec.bucket));
  }
  if (spec.stochastic()) text.append(",stochastic");
  if (spec.feedback()) text.append(",feedback");
  return text;
}

Result<CodecSpec> parse_codec_spec(std::string_view text) {
  std::string_view rest = text;
  std::string_view head = take_until(rest, ',');
  const std::string_view name = take_until(head, ':');
  const CodecRow* row = find_codec(name);
  if (row == nullptr)
    return invalid_argument("codec " + quoted(name) + " is unknown; known are " + known_names());
  CodecSpec spec;
  spec.codec = row->number;
  if (!head.empty() && !parse_number(head, spec.bits)) {
    return refuse(*row, quoted(head), "is not a number of bits");
  }
  if (row->bits_max != 0 && head.empty()) {
    return refuse(*row, "bits", "are missing; write " + std::string(row->name) + ":4");
  }
  while (!rest.empty()) CGX_RETURN_IF_ERROR(parse_option(take_until(rest, ','), *row, spec));
  CGX_RETURN_IF_ERROR(validate(spec, DType::kF32));
  return spec;
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
