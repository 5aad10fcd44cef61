// Golden vectors: bytes and floats of every codec, computed apart from this code (golden/), on
// every lane. golden/<codec>.txt also says which wire version it holds: a changed format has a new
// one.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "kernels/draw.h"
#include "kernels/floats.h"
#include "tests/kernels/codec_cases.h"
#include "tests/kernels/every_spec.h"

namespace cgx::kernels::testing {
namespace {

constexpr uint64_t kFirstBucket = 7;

Bytes from_hex(const std::string& text) {
  Bytes bytes;
  for (size_t i = 0; i + 1 < text.size(); i += 2) {
    bytes.push_back(static_cast<std::byte>(std::stoul(text.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

std::string to_hex(uint64_t number, int digits) {
  char text[17];
  std::snprintf(text, sizeof(text), "%0*llx", digits, static_cast<unsigned long long>(number));
  return text;
}

std::string fnv1a(const Bytes& bytes) {
  uint64_t digest = 0xcbf29ce484222325u;
  for (const std::byte byte : bytes) {
    digest = (digest ^ static_cast<uint8_t>(byte)) * 0x100000001b3u;
  }
  return to_hex(digest, 16);
}

// Bytes as the files hold them: in full, or size and digest where `like` is one.
std::string as_text(const Bytes& bytes, const std::string& like) {
  if (like.starts_with("digest:")) {
    return "digest:" + std::to_string(bytes.size()) + ":" + fnv1a(bytes);
  }
  std::string text;
  for (const std::byte byte : bytes) text += to_hex(static_cast<uint8_t>(byte), 2);
  return text;
}

struct GoldenCase {
  DType dtype = DType::kF32;
  std::vector<std::string> inputs;  // one: an encoding; three: a reduction, the second one raw
  CodecSpec spec;
  std::string encoded, decoded_digest;

  std::string name() const {
    std::string name = to_string(spec) + " " + std::string(dtype_name(dtype));
    for (const std::string& input : inputs) name += " " + input;
    return name;
  }
};

struct GoldenFile {
  std::string codec;
  uint16_t version = 0;
  std::vector<GoldenCase> cases;
};

struct Golden {
  uint64_t stream = 0;
  std::vector<uint32_t> draws;
  std::map<std::string, Floats> inputs;
  std::vector<GoldenFile> files;
};

DType dtype_of(const std::string& name) {
  return name == "fp16" ? DType::kF16 : name == "bf16" ? DType::kBF16 : DType::kF32;
}

GoldenCase read_case(const std::string& kind, std::istringstream& words) {
  GoldenCase one;
  std::string word, spec;
  if (kind == "reduce") {
    words >> word;
    one.dtype = dtype_of(word);
  }
  one.inputs.resize(kind == "reduce" ? 3 : 1);
  for (std::string& input : one.inputs) words >> input;
  words >> spec >> one.encoded >> one.decoded_digest;
  const Result<CodecSpec> parsed = parse_codec_spec(spec);
  EXPECT_TRUE(parsed.ok()) << parsed.status().to_string();
  if (parsed.ok()) one.spec = *parsed;
  return one;
}

// Inputs too long to be written down; generate.py has the same formula.
Floats drawn(uint64_t key, uint32_t count) {
  Floats values(count);
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t bits = draw(key, i), exponent = 120 + (bits >> 23 & 7);
    values[i] = (bits >> 26 & 3) == 0 ? 0.0f : from_bits((bits & 0x807fffffu) | exponent << 23);
  }
  return values;
}

void read_file(const std::filesystem::path& path, Golden& golden) {
  GoldenFile file;
  std::ifstream lines(path);
  std::string line, kind, name, text;
  while (std::getline(lines, line)) {
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
    } else if (kind == "drawn") {
      uint32_t count;
      uint64_t key;
      words >> name >> std::dec >> count >> std::hex >> key;
      golden.inputs[name] = drawn(key, count);
    } else if (kind == "codec") {
      words >> file.codec;
    } else if (kind == "version") {
      words >> file.version;
    } else if (kind == "case" || kind == "reduce") {
      file.cases.push_back(read_case(kind, words));
    }
  }
  if (!file.codec.empty()) golden.files.push_back(file);
}

const Golden& golden() {
  static const Golden all = [] {
    Golden found;
    for (const auto& entry : std::filesystem::directory_iterator(CGX_GOLDEN_DIR)) {
      if (entry.path().extension() == ".txt") read_file(entry.path(), found);
    }
    return found;
  }();
  return all;
}

const GoldenFile* file_of(const CodecRow& row) {
  for (const GoldenFile& file : golden().files) {
    if (file.codec == row.name) return &file;
  }
  return nullptr;
}

TEST(Golden, EveryCodecHasAFileOfItsWireVersion) {
  for (const CodecRow& row : codecs()) {
    const GoldenFile* file = file_of(row);
    ASSERT_NE(file, nullptr) << row.name << " needs golden/" << row.name << ".txt";
    EXPECT_EQ(file->version, row.wire_version) << row.name;
  }
  EXPECT_EQ(golden().files.size(), codecs().size());
}

TEST(Golden, EveryStrengthAndOptionIsPinned) {
  for (const CodecRow& row : codecs()) {
    const GoldenFile* file = file_of(row);
    if (file == nullptr) continue;  // the test above says so
    const std::vector<GoldenCase>& cases = file->cases;
    for (const CodecSpec& spec : every_spec(row, 64)) {
      const bool pinned = std::ranges::any_of(cases, [&](const GoldenCase& one) {
        return one.spec.bits == spec.bits && one.spec.flags == spec.flags &&
               one.spec.values == spec.values;
      });
      EXPECT_TRUE(pinned) << to_string(spec);
    }
  }
}

TEST(Golden, DrawsAreTheDocumentedOnes) {
  EXPECT_EQ(golden().stream, draw_stream({1, 2, 3, 4, 5, 6}));
  ASSERT_EQ(golden().draws.size(), 8u);
  for (uint32_t i = 0; i < 8; ++i) {
    EXPECT_EQ(draw(bucket_key(golden().stream, kFirstBucket), i), golden().draws[i]);
  }
}

// Elements of a tensor of some type.
Bytes as_tensor(const Floats& values, size_t count, DType dtype) {
  Bytes bytes(count * dtype_bytes(dtype));
  for (size_t i = 0; i < count; ++i) store_element(bytes.data(), dtype, i, values[i]);
  return bytes;
}

struct Outcome {
  Bytes encoded, decoded;
};

Bytes encode_tensor(const Lane& lane, const CodecSpec& spec, DType dtype, const Bytes& tensor) {
  const void* rank = tensor.data();
  const size_t elements = tensor.size() / dtype_bytes(dtype);
  Bytes encoded(encoded_bytes(spec, dtype, elements));
  EncodeJob job{.spec = spec, .elements = elements, .key = {golden().stream, kFirstBucket}};
  job.source = {.ranks = &rank, .rank_count = 1, .dtype = dtype};
  job.encoded = encoded;
  RangeStats stats;
  encoded.resize(lane.encode(job, stats));
  return encoded;
}

Outcome round_trip_of(const Lane& lane, const GoldenCase& one) {
  const Floats& values = golden().inputs.at(one.inputs[0]);
  Outcome outcome;
  outcome.encoded =
      encode_tensor(lane, one.spec, DType::kF32, as_tensor(values, values.size(), DType::kF32));
  outcome.decoded =
      as_tensor(decode(lane, one.spec, outcome.encoded, values.size()), values.size(), DType::kF32);
  return outcome;
}

Outcome reduction_of(const Lane& lane, const GoldenCase& one) {
  size_t elements = SIZE_MAX;
  for (const std::string& input : one.inputs) {
    elements = std::min(elements, golden().inputs.at(input).size());
  }
  std::vector<Bytes> tensors, streams;
  for (const std::string& input : one.inputs) {
    tensors.push_back(as_tensor(golden().inputs.at(input), elements, one.dtype));
    streams.push_back(encode_tensor(lane, one.spec, one.dtype, tensors.back()));
  }
  std::vector<Contribution> parts(3);
  for (size_t i = 0; i < parts.size(); ++i) {
    parts[i].kind = Contribution::Kind::kEncoded;
    parts[i].encoded = streams[i];
  }
  const void* own = tensors[1].data();
  parts[1] = {.kind = Contribution::Kind::kRaw,
              .raw = {.ranks = &own, .rank_count = 1, .dtype = one.dtype}};
  Outcome outcome{Bytes(encoded_bytes(one.spec, one.dtype, elements)), Bytes(tensors[0].size())};
  void* target = outcome.decoded.data();
  ReduceJob job{.spec = one.spec, .contributions = parts, .elements = elements, .dtype = one.dtype};
  job.key = {golden().stream, kFirstBucket};
  job.encoded = outcome.encoded;
  job.targets = &target;
  job.target_count = 1;
  RangeStats stats;
  const Result<uint64_t> used = lane.reduce(job, stats);
  EXPECT_TRUE(used.ok()) << used.status().to_string();
  outcome.encoded.resize(used.ok() ? *used : 0);
  return outcome;
}

TEST(Golden, EveryLaneGivesTheGoldenBytesAndValues) {
  for (const Lane* lane : viable_lanes()) {
    for (const GoldenFile& file : golden().files) {
      for (const GoldenCase& one : file.cases) {
        SCOPED_TRACE(std::string(lane->name) + " " + one.name());
        const Outcome outcome =
            one.inputs.size() == 1 ? round_trip_of(*lane, one) : reduction_of(*lane, one);
        EXPECT_EQ(as_text(outcome.encoded, one.encoded), one.encoded);
        EXPECT_EQ(fnv1a(outcome.decoded), one.decoded_digest);
      }
    }
  }
}

}  // namespace
}  // namespace cgx::kernels::testing
