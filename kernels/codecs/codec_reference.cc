#include "kernels/codecs/codec_reference.h"

#include <algorithm>
#include <cstdio>
#include <initializer_list>

namespace cgx::kernels {
namespace {

std::string number_text(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%g", value);
  return text;
}

std::string grouped(uint64_t value) {
  std::string text = std::to_string(value);
  for (size_t i = text.size(); i > 3; i -= 3) text.insert(i - 3, 1, ',');
  return text;
}

void fill_strength(const CodecRow& row, CodecUsage& usage) {
  switch (row.strength) {
    case Strength::kNone:
      return;
    case Strength::kBits:
      usage.strength = "bits";
      usage.range = std::to_string(row.bits_min) + " to " + std::to_string(row.bits_max);
      return;
    case Strength::kFormat:
      usage.strength = "format";
      usage.range = "e4m3, e5m2";
      return;
    case Strength::kShare:
      usage.strength = "share";
      usage.range = number_text(kShareMin) + " to " + number_text(kShareMax);
      return;
    case Strength::kThreshold:
      usage.strength = "threshold";
      usage.range = "more than 0, less than " + number_text(kThresholdMax);
      return;
  }
}

// The row at the strength that most models want, plain.
CodecSpec plain(const CodecRow& row) {
  CodecSpec spec{.codec = row.number, .flags = row.implied};
  if (row.sparse) spec.bucket = kSparseBucket;
  if (row.bits_max != 0) spec.bits = std::clamp<uint8_t>(4, row.bits_min, row.bits_max);
  if (row.strength == Strength::kShare) spec.amount = 0.01f;
  if (row.strength == Strength::kThreshold) spec.amount = 0.001f;
  return spec;
}

// With feedback where policy warns of doing without.
CodecSpec recommended(const CodecRow& row) {
  const CodecSpec base = plain(row);
  CodecSpec fed = base;
  fed.flags |= row.options & CodecSpec::kFeedback;
  std::string doubt, doubt_when_fed;
  const bool sound = check_policy(fed, &doubt_when_fed).ok() && doubt_when_fed.empty();
  return check_policy(base, &doubt).ok() && !doubt.empty() && sound ? fed : base;
}

struct Option {
  uint8_t flag;
  const char* name;
};
constexpr Option kOptions[] = {{CodecSpec::kStochastic, "stochastic"},
                               {CodecSpec::kL2Norm, "norm=l2"},
                               {CodecSpec::kClip, "clip"},
                               {CodecSpec::kFeedback, "feedback"}};

void fill_options(const CodecRow& row, CodecUsage& usage) {
  const CodecSpec base = plain(row);
  usage.examples.push_back(recommended(row));
  if (usage.examples.front().feedback()) usage.examples.push_back(base);
  if (row.sparse) {
    usage.options.push_back("values=fp32, fp16, maxmin8 or maxmin4");
    usage.examples.push_back(base);
    usage.examples.back().values = SparseValues::kF16;
  } else {
    usage.options.push_back("bucket=N");
  }
  for (const auto& [flag, name] : kOptions) {
    if (!row.has(flag) || (row.implied & flag) != 0) continue;
    usage.options.push_back(name);
    CodecSpec example = base;
    example.flags |= flag;
    if (example == usage.examples.front() || !check_policy(example, nullptr).ok()) continue;
    usage.examples.push_back(example);
  }
}

// The text of CODECS.md.
const char kHead[] =
    "# Every codec\n\n"
    "Generated from `codecs.def` by `tests/kernels/codec_reference_test.cc`; do not edit. What the "
    "bits are: `ARITHMETIC.md`.\n"
    "A codec is written `name:strength,option,option`, in a policy file, in `cgxctl policy` and in "
    "tests. `bucket=N`\n"
    "(a multiple of 64 from 64 to 4096, default 512) is how many values share a scale; bytes below "
    "are for the default.\n"
    "GB/s are of fp32 in memory, one core, encode / decode. In formulas n is the number of values "
    "of a tensor, b of its\n"
    "buckets, bits the codec's strength. Contractive: what is lost is smaller than what was to be "
    "sent, so error feedback\n"
    "makes up for it later instead of growing.\n\n"
    "Biases and norms travel as `fp32` whatever a rule says, unless it says `small: true`; below 8 "
    "bits send first and\n"
    "last layers as `maxmin:8`. What every codec then costs in loss: \"Convergence\" in "
    "`tests/bench/RESULTS.md`.\n\n";

std::string list(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "`" : ", `") + word + "`";
  return text;
}

std::string size_text(const CodecRow& row, const CodecSpec& spec) {
  constexpr uint64_t kElements = 1 << 20;
  const uint64_t bytes = encoded_bytes(spec, DType::kF32, kElements);
  char share[32];
  std::snprintf(share, sizeof(share), "%.1f %%",
                100.0 * static_cast<double>(bytes) / (4 * kElements));
  return std::string(row.variable_size ? "at most " : "") + grouped(bytes) + " (" + share + ")";
}

// Feedback costs the traffic of a residual, whatever the codec: not counted.
std::string cost_text(const CodecCosts& costs, CodecSpec spec) {
  spec.flags &= static_cast<uint8_t>(~CodecSpec::kFeedback);
  std::string text;
  for (const CodecCost& cost : costs.rows) {
    if (cost.codec != to_string(spec)) continue;
    char line[64];
    std::snprintf(line, sizeof(line), "%.1f / %.1f", cost.encode, cost.decode);
    text += (text.empty() ? "" : "; ") + cost.lane + " " + line;
  }
  return text.empty() ? "not measured" : text;
}

// What check_policy says to feedback at every strength: refusals, and warnings at nearest rounding.
std::string feedback_text(const CodecRow& row) {
  if (!row.has(CodecSpec::kFeedback)) return "not available";
  std::vector<std::string> refused, doubtful;
  for (uint8_t bits = row.bits_min; bits <= row.bits_max; ++bits) {
    for (const uint8_t rounding : {uint8_t{0}, uint8_t{CodecSpec::kStochastic}}) {
      if (!row.has(rounding)) continue;
      CodecSpec spec = plain(row);
      if (row.bits_max != 0) spec.bits = bits;
      spec.flags |= rounding | CodecSpec::kFeedback;
      std::string warning;
      const bool sound = check_policy(spec, &warning).ok();
      if (!sound) refused.push_back(to_string(spec));
      if (sound && !warning.empty() && rounding == 0) doubtful.push_back(to_string(spec));
    }
  }
  std::string text = "available";
  if (!refused.empty()) text += "; refused: " + list(refused);
  if (!doubtful.empty()) text += "; with a warning: " + list(doubtful);
  return text;
}

std::string machine_text(const CodecCosts& costs) {
  if (costs.rows.empty()) return "";
  char copy[32];
  std::snprintf(copy, sizeof(copy), "%.1f", costs.copy);
  return "Measured on " + costs.machine + ", where memcpy copied " + copy +
         " GB/s in the same run.\n\n";
}

std::string overview(const CodecCosts& costs) {
  std::string text =
      "| codec | bytes for 1 Mi values | keeps zeros | feedback | GB/s |\n|---|---|---|---|---|\n";
  for (const CodecRow& row : codecs()) {
    const CodecSpec spec = recommended(row);
    text += "| [`" + to_string(spec) + "`](#" + row.name + ") | " + size_text(row, spec) + " | " +
            (row.zero_exact ? "yes" : "no") + " | " +
            (row.has(CodecSpec::kFeedback) ? "yes" : "no") + " | " + cost_text(costs, spec) +
            " |\n";
  }
  return text;
}

std::string section(const CodecRow& row, const CodecCosts& costs) {
  const CodecUsage usage = usage_of(row);
  std::string text =
      std::string("\n## ") + row.name + "\n\n" + row.summary + "\n\n| | |\n|---|---|\n";
  const auto line = [&](const char* name, const std::string& value) {
    text += std::string("| ") + name + " | " + value + " |\n";
  };
  line("use it for", row.advice);
  line("strength", usage.strength.empty() ? "none" : usage.strength + ", " + usage.range);
  line("options", list(usage.options));
  std::vector<std::string> examples;
  for (const CodecSpec& spec : usage.examples) examples.push_back(to_string(spec));
  line("examples", list(examples));
  line("bytes",
       std::string(usage.bytes) + "; 1 Mi values: " + size_text(row, usage.examples.front()));
  line("error per value", usage.error);
  line("exact zeros", !row.zero_exact ? "become small values"
                      : row.strength == Strength::kBits && row.bits_min == 1
                          ? "stay zero at 2 bits and more"
                          : "stay zero");
  line("NaN and infinity", row.quantizer ? "make their bucket NaN" : "are kept value by value");
  line("contractive", usage.contractive);
  line("feedback", feedback_text(row));
  line("collective", usage.collective);
  for (const CodecSpec& spec : usage.examples) {
    if (spec.feedback()) continue;
    line(("GB/s of `" + to_string(spec) + "`").c_str(), cost_text(costs, spec));
  }
  line("number, wire version",
       std::to_string(row.number) + ", " + std::to_string(row.wire_version));
  return text;
}

}  // namespace

CodecUsage usage_of(const CodecRow& row) {
  CodecUsage usage;
  fill_strength(row, usage);
  fill_options(row, usage);
  usage.collective = row.gathers ? "allgather on few machines, else scatter-reduce-allgather"
                                 : "scatter-reduce-allgather";
  usage.bytes = row.promise.bytes;
  usage.error = row.promise.error;
  usage.contractive = row.promise.contractive;
  return usage;
}

std::string reference_markdown(const CodecCosts& costs) {
  std::string text = kHead + machine_text(costs) + overview(costs);
  for (const CodecRow& row : codecs()) text += section(row, costs);
  return text;
}

}  // namespace cgx::kernels
