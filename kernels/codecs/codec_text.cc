// Codecs as operators write them: name, strength after a colon, options after commas.
#include <charconv>

#include "kernels/codec.h"
#include "kernels/codecs/codec_refusal.h"

namespace cgx::kernels {
namespace {

constexpr uint32_t kDefaultBucket = CodecSpec().bucket;
constexpr std::string_view kValueNames[] = {"fp32", "fp16", "maxmin8", "maxmin4"};

std::string quoted(std::string_view text) {
  std::string result(1, '"');
  return result.append(text).append(1, '"');
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

// What a user may write after the name, as an example.
const char* strength_example(Strength strength) {
  switch (strength) {
    case Strength::kNone:
      return "";
    case Strength::kBits:
      return ":4";
    case Strength::kFormat:
      return ":e4m3";
    case Strength::kShare:
      return ":0.01";
    case Strength::kThreshold:
      return ":0.001";
  }
  return "";
}

const char* strength_name(Strength strength) {
  switch (strength) {
    case Strength::kNone:
    case Strength::kBits:
      return "bits";
    case Strength::kFormat:
      return "format";
    case Strength::kShare:
      return "share";
    case Strength::kThreshold:
      return "threshold";
  }
  return "";
}

Status parse_strength(std::string_view text, const CodecRow& row, CodecSpec& spec) {
  if (text.empty()) {
    if (row.strength == Strength::kNone) return {};
    const bool plural = row.strength == Strength::kBits;
    return refuse(row, strength_name(row.strength),
                  std::string(plural ? "are" : "is") + " missing; write " + row.name +
                      strength_example(row.strength));
  }
  switch (row.strength) {
    case Strength::kNone:
    case Strength::kBits:
      if (!parse_number(text, spec.bits)) {
        return refuse(row, quoted(text), "is not a number of bits");
      }
      return {};
    case Strength::kFormat:
      if (text != "e4m3" && text != "e5m2") {
        return refuse(row, quoted(text), "is no format; known are e4m3, e5m2");
      }
      spec.bits = text == "e4m3" ? 4 : 5;
      return {};
    case Strength::kShare:
    case Strength::kThreshold:
      if (!parse_number(text, spec.amount)) return refuse(row, quoted(text), "is not a number");
      return {};
  }
  return {};
}

Status parse_values(std::string_view name, const CodecRow& row, CodecSpec& spec) {
  for (uint8_t i = 0; i < std::size(kValueNames); ++i) {
    if (name != kValueNames[i]) continue;
    spec.values = static_cast<SparseValues>(i);
    return {};
  }
  return refuse(row, "values", "must be fp32, fp16, maxmin8 or maxmin4, not " + quoted(name));
}

std::string known_options(const CodecRow& row) {
  std::string known = row.sparse ? "values=NAME" : "bucket=N";
  if (row.has(CodecSpec::kStochastic)) known += ", stochastic";
  if (row.has(CodecSpec::kL2Norm)) known += ", norm=l2";
  if (row.has(CodecSpec::kClip)) known += ", clip";
  return row.has(CodecSpec::kFeedback) ? known + ", feedback" : known;
}

Status parse_option(std::string_view option, const CodecRow& row, CodecSpec& spec) {
  constexpr std::string_view kBucket = "bucket=", kValues = "values=";
  if (option == "stochastic") {
    spec.flags |= CodecSpec::kStochastic;
  } else if (option == "feedback") {
    spec.flags |= CodecSpec::kFeedback;
  } else if (option == "norm=l2") {
    spec.flags |= CodecSpec::kL2Norm;
  } else if (option == "norm=max") {
    spec.flags &= static_cast<uint8_t>(~CodecSpec::kL2Norm);
  } else if (option == "clip") {
    spec.flags |= CodecSpec::kClip;
  } else if (option.starts_with(kValues)) {
    return parse_values(option.substr(kValues.size()), row, spec);
  } else if (!option.starts_with(kBucket)) {
    return refuse(row, quoted(option), "is no parameter; known are " + known_options(row));
  } else if (!parse_number(option.substr(kBucket.size()), spec.bucket)) {
    return refuse(row, quoted(option), "is not a number of elements");
  }
  return {};
}

}  // namespace

std::string to_string(const CodecSpec& spec) {
  const CodecRow* row = find_codec(spec.codec);
  if (row == nullptr) return "codec" + std::to_string(spec.codec);
  std::string text = row->name;
  const bool strong = row->strength != Strength::kNone;
  if (row->strength == Strength::kFormat) {
    text.append(spec.bits == 4 ? ":e4m3" : ":e5m2");
  } else if (spec.bits != 0) {
    text.append(":").append(std::to_string(spec.bits));
  } else if (strong) {
    text.append(":").append(shortest(spec.amount));
  }
  if (!row->sparse && (strong || spec.bucket != kDefaultBucket)) {
    text.append(",bucket=").append(std::to_string(spec.bucket));
  }
  if (spec.values != SparseValues::kF32) {
    const auto values = static_cast<size_t>(spec.values);
    const bool known = values < std::size(kValueNames);
    text.append(",values=")
        .append(known ? std::string(kValueNames[values]) : std::to_string(values));
  }
  const auto flag = [&](uint8_t bit, const char* name) {
    if ((spec.flags & bit) != 0 && (row->implied & bit) == 0) text.append(name);
  };
  flag(CodecSpec::kStochastic, ",stochastic");
  flag(CodecSpec::kL2Norm, ",norm=l2");
  flag(CodecSpec::kClip, ",clip");
  flag(CodecSpec::kFeedback, ",feedback");
  return text;
}

Result<CodecSpec> parse_codec_spec(std::string_view text) {
  std::string_view rest = text;
  std::string_view head = take_until(rest, ',');
  const std::string_view name = take_until(head, ':');
  const CodecRow* row = find_codec(name);
  if (row == nullptr) {
    return invalid_argument("codec " + quoted(name) + " is unknown; known are " + codec_names());
  }
  CodecSpec spec{.codec = row->number, .flags = row->implied};
  if (row->sparse) spec.bucket = kSparseBucket;
  CGX_RETURN_IF_ERROR(parse_strength(head, *row, spec));
  while (!rest.empty()) CGX_RETURN_IF_ERROR(parse_option(take_until(rest, ','), *row, spec));
  CGX_RETURN_IF_ERROR(validate(spec, DType::kF32));
  return spec;
}

}  // namespace cgx::kernels
