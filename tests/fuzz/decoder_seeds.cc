// What the decoders' fuzzers start from: decoder_seeds tests/fuzz/corpus
// Writes decoder_<codec>/<strength>_<kind of values>, encoded, for every codec that is not sparse,
// and values to be encoded for all, as decoder_fuzz.cc reads them. Sparse ranges, with odd forms
// among them, are kept by hand.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <limits>

#include "tests/kernels/codec_cases.h"

namespace cgx::kernels::testing {
namespace {

constexpr uint8_t kEncode = 0xe0;  // of two ranks, with a residual

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

void write(const std::filesystem::path& file, uint8_t wish, const CodecSpec& spec, size_t elements,
           std::span<const std::byte> bytes) {
  const uint8_t header[] = {wish,
                            spec.bits,
                            spec.flags,
                            static_cast<uint8_t>(DType::kF32),
                            static_cast<uint8_t>(elements),
                            static_cast<uint8_t>(elements >> 8)};
  std::filesystem::create_directories(file.parent_path());
  std::ofstream out(file, std::ios::binary);
  out.write(reinterpret_cast<const char*>(header), sizeof(header));
  out.write(reinterpret_cast<const char*>(bytes.data()),
            static_cast<std::streamsize>(bytes.size()));
}

void write_all(const std::filesystem::path& corpus) {
  for (const CodecRow& row : codecs()) {
    const auto directory = corpus / ("decoder_" + std::string(row.name));
    CodecSpec spec{.codec = row.number, .bits = row.bits_max, .flags = row.implied, .bucket = 64};
    for (const Kind& kind : kinds()) {
      write(directory / ("values_" + std::string(kind.name)), kEncode, spec, kind.values.size(),
            std::as_bytes(std::span(kind.values)));
    }
    for (spec.bits = row.bits_min; spec.bits <= row.bits_max && !row.sparse; ++spec.bits) {
      for (const Kind& kind : kinds()) {
        write(directory / (std::to_string(spec.bits) + "_" + kind.name), 0, spec,
              kind.values.size(), encode(scalar_lane(), spec, kind.values).bytes);
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
