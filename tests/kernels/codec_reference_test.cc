// CODECS.md is generated. After a change of codecs.def, of a promise or of the measured costs run
// this test once with CGX_UPDATE_GENERATED=1 and commit what it wrote.
#include "kernels/codecs/codec_reference.h"

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <regex>

#include "tests/kernels/codec_cases.h"

namespace cgx::kernels::testing {
namespace {

std::string read(const std::string& path) {
  std::ifstream file(std::string(CGX_SOURCE_DIR) + path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// One object per line, as bench_codec_cost writes them.
CodecCosts measured_costs() {
  const std::regex machine("\"machine\": \"([^\"]+)\", \"copy\": ([0-9.]+)");
  const std::regex row(
      "\\{\"codec\": \"([^\"]+)\", \"lane\": \"(\\w+)\", \"encode\": ([0-9.]+), "
      "\"decode\": ([0-9.]+)\\}");
  const std::string text = read("/tests/bench/codec_cost.json");
  CodecCosts costs;
  std::smatch head;
  if (std::regex_search(text, head, machine)) {
    costs.machine = head[1];
    costs.copy = std::stod(head[2]);
  }
  for (std::sregex_iterator found(text.begin(), text.end(), row), end; found != end; ++found) {
    const std::smatch& part = *found;
    costs.rows.push_back({part[1], part[2], std::stod(part[3]), std::stod(part[4])});
  }
  return costs;
}

TEST(CodecReference, IsCommittedAsGenerated) {
  const std::string text = reference_markdown(measured_costs());
  if (std::getenv("CGX_UPDATE_GENERATED") != nullptr) {
    std::ofstream(CGX_SOURCE_DIR "/kernels/CODECS.md") << text;
  }
  EXPECT_EQ(read("/kernels/CODECS.md"), text)
      << "CODECS.md is out of date: run this test with CGX_UPDATE_GENERATED=1";
}

TEST(CodecReference, EveryRowSaysWhatItPromises) {
  for (const CodecRow& row : codecs()) {
    const CodecUsage usage = usage_of(row);
    EXPECT_STRNE(usage.bytes, "") << row.name;
    EXPECT_STRNE(usage.error, "") << row.name;
    EXPECT_STRNE(usage.contractive, "") << row.name;
    EXPECT_EQ(usage.strength.empty(), usage.range.empty()) << row.name;
  }
}

TEST(CodecReference, ExamplesAreSoundAndReadBack) {
  for (const CodecRow& row : codecs()) {
    for (const CodecSpec& spec : usage_of(row).examples) {
      const Result<CodecSpec> parsed = parse_codec_spec(to_string(spec));
      ASSERT_TRUE(parsed.ok()) << parsed.status().to_string();
      EXPECT_EQ(*parsed, spec) << to_string(spec);
      EXPECT_TRUE(check_policy(spec, nullptr).ok()) << to_string(spec);
    }
  }
}

}  // namespace
}  // namespace cgx::kernels::testing
