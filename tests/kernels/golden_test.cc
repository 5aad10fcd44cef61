// Golden vectors: the bytes and floats of max-min, computed apart from this code, on every lane.
#include <fstream>
#include <map>
#include <sstream>

#include "kernels/draw.h"
#include "tests/kernels/codec_cases.h"

namespace cgx::kernels::testing {
namespace {

Bytes from_hex(const std::string& text) {
  Bytes bytes;
  for (size_t i = 0; i + 1 < text.size(); i += 2) {
    bytes.push_back(static_cast<std::byte>(std::stoul(text.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

uint64_t fnv1a(const Floats& values) {
  uint64_t digest = 0xcbf29ce484222325u;
  const auto* bytes = reinterpret_cast<const uint8_t*>(values.data());
  for (size_t i = 0; i < values.size() * sizeof(float); ++i) {
    digest = (digest ^ bytes[i]) * 0x100000001b3u;
  }
  return digest;
}

struct GoldenCase {
  std::string input, spec;
  Bytes encoded;
  uint64_t decoded_digest;
};

struct GoldenFile {
  uint64_t stream = 0;
  std::vector<uint32_t> draws;
  std::map<std::string, Floats> inputs;
  std::vector<GoldenCase> cases;
};

GoldenFile read_golden() {
  GoldenFile golden;
  std::ifstream file(CGX_GOLDEN_DIR "/maxmin.txt");
  std::string line, kind, name, text, digest;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    words >> kind;
    if (kind == "stream") {
      words >> std::hex >> golden.stream;
    } else if (kind == "draws") {
      for (uint32_t draw; words >> std::hex >> draw;) golden.draws.push_back(draw);
    } else if (kind == "input") {
      words >> name >> text;
      const Bytes bytes = from_hex(text);
      Floats values(bytes.size() / sizeof(float));
      std::memcpy(values.data(), bytes.data(), bytes.size());
      golden.inputs[name] = values;
    } else if (kind == "case") {
      std::string spec;
      words >> name >> spec >> text >> digest;
      golden.cases.push_back({name, spec, from_hex(text), std::stoull(digest, nullptr, 16)});
    }
  }
  return golden;
}

const GoldenFile& golden() {
  static const GoldenFile file = read_golden();
  return file;
}

TEST(Golden, FileIsComplete) {
  EXPECT_EQ(golden().inputs.size(), 6u);
  EXPECT_EQ(golden().cases.size(), 6u * 16u);
}

TEST(Golden, DrawsAreTheDocumentedOnes) {
  EXPECT_EQ(golden().stream, draw_stream({1, 2, 3, 4, 5, 6}));
  ASSERT_EQ(golden().draws.size(), 8u);
  for (uint32_t i = 0; i < 8; ++i) {
    EXPECT_EQ(draw(bucket_key(golden().stream, 7), i), golden().draws[i]);
  }
}

TEST(Golden, EveryLaneEncodesTheGoldenBytes) {
  for (const Lane* lane : viable_lanes()) {
    for (const GoldenCase& golden_case : golden().cases) {
      SCOPED_TRACE(std::string(lane->name) + " " + golden_case.input + " " + golden_case.spec);
      const CodecSpec spec = parse_codec_spec(golden_case.spec).value();
      const Floats& values = golden().inputs.at(golden_case.input);
      const Encoded encoded = encode(*lane, spec, values, {golden().stream, 7});
      EXPECT_TRUE(same_bits(encoded.bytes, golden_case.encoded));
    }
  }
}

TEST(Golden, EveryLaneDecodesTheGoldenValues) {
  for (const Lane* lane : viable_lanes()) {
    for (const GoldenCase& golden_case : golden().cases) {
      SCOPED_TRACE(std::string(lane->name) + " " + golden_case.input + " " + golden_case.spec);
      const CodecSpec spec = parse_codec_spec(golden_case.spec).value();
      const size_t elements = golden().inputs.at(golden_case.input).size();
      EXPECT_EQ(fnv1a(decode(*lane, spec, golden_case.encoded, elements)),
                golden_case.decoded_digest);
    }
  }
}

}  // namespace
}  // namespace cgx::kernels::testing
