// What the decoders' fuzzers start from: decoder_seeds tests/fuzz/corpus
// Writes decoder_<codec>/<strength>_<kind of values> for every codec that is not sparse, as
// decoder_fuzz.cc reads it. Sparse seeds, with odd forms among them, are kept by hand.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <limits>

#include "tests/kernels/codec_cases.h"

namespace cgx::kernels::testing {
namespace {

struct Kind {
  const char* name;
  Floats values;
};

std::vector<Kind> kinds() {
  std::mt19937_64 random(1);
  Floats huge = gradient(random, 130, 1e37f), broken = gradient(random, 130);
  broken[3] = std::numeric_limits<float>::infinity();
  broken[100] = std::numeric_limits<float>::quiet_NaN();
  return {{"normal", gradient(random, 71)},
          {"zeros", gradient(random, 130, 1.0f, 0.7)},
          {"huge", huge},
          {"nonfinite", broken}};
}

void write(const std::filesystem::path& file, const CodecSpec& spec, const Floats& values) {
  const auto encoded = encode(scalar_lane(), spec, values).bytes;
  const auto elements = static_cast<uint32_t>(values.size());
  const char header[] = {static_cast<char>(spec.codec), static_cast<char>(spec.bits),
                         static_cast<char>(spec.flags), static_cast<char>(DType::kF32),
                         static_cast<char>(elements),   static_cast<char>(elements >> 8)};
  std::filesystem::create_directories(file.parent_path());
  std::ofstream out(file, std::ios::binary);
  out.write(header, sizeof(header));
  out.write(reinterpret_cast<const char*>(encoded.data()),
            static_cast<std::streamsize>(encoded.size()));
}

void write_all(const std::filesystem::path& corpus) {
  for (const CodecRow& row : codecs()) {
    const auto directory = corpus / ("decoder_" + std::string(row.name));
    for (uint8_t bits = row.bits_min; bits <= row.bits_max && !row.sparse; ++bits) {
      const CodecSpec spec{.codec = row.number, .bits = bits, .flags = row.implied, .bucket = 64};
      for (const Kind& kind : kinds()) {
        write(directory / (std::to_string(bits) + "_" + kind.name), spec, kind.values);
      }
    }
  }
}

}  // namespace
}  // namespace cgx::kernels::testing

int main(int argc, char** argv) {
  if (argc == 2) {
    cgx::kernels::testing::write_all(argv[1]);
    return 0;
  }
  std::fprintf(stderr, "usage: decoder_seeds DIRECTORY (tests/fuzz/corpus)\n");
  return 2;
}
