// The codec table: texts, checks and sizes.
#include <filesystem>

#include "tests/kernels/codec_cases.h"

namespace cgx::kernels::testing {
namespace {

TEST(CodecTable, FindsRowsByNumberAndName) {
  for (const CodecRow& row : codecs()) {
    EXPECT_EQ(find_codec(row.number), &row);
    EXPECT_EQ(find_codec(row.name), &row);
  }
  EXPECT_EQ(find_codec(uint8_t{200}), nullptr);
  EXPECT_EQ(find_codec("zip"), nullptr);
}

TEST(CodecTable, TextsRoundTrip) {
  for (const uint32_t bucket : {64u, 512u, 4096u}) {
    for (const CodecSpec& spec : all_specs(bucket)) {
      const Result<CodecSpec> parsed = parse_codec_spec(to_string(spec));
      ASSERT_TRUE(parsed.ok()) << parsed.status().to_string();
      EXPECT_EQ(*parsed, spec) << to_string(spec);
    }
  }
}

TEST(CodecTable, WritesTheDocumentedText) {
  EXPECT_EQ(to_string({.codec = 3, .bits = 4, .flags = CodecSpec::kStochastic}),
            "maxmin:4,bucket=512,stochastic");
  EXPECT_EQ(to_string(CodecSpec{}), "fp32");
}

TEST(CodecTable, ErrorsNameCodecParameterValueAndRange) {
  const std::string kUnknown = "codec \"zip\" is unknown; known are " + codec_names();
  const struct {
    const char* text;
    const char* says;
  } kCases[] = {
      {"zip", kUnknown.c_str()},
      {"topk", "codec topk: share is missing; write topk:0.01"},
      {"topk:0.5", "codec topk: share must be 0.0001 to 0.25, not 0.5"},
      {"topk:0.01,bucket=512", "codec topk: bucket is always 65536, not 512"},
      {"topk:0.01,values=int",
       "codec topk: values must be fp32, fp16, maxmin8 or maxmin4, not \"int\""},
      {"topk:0.01,stochastic", "codec topk: stochastic is not available"},
      {"threshold:0", "codec threshold: threshold must be more than 0 and less than 1e30, not 0"},
      {"maxmin:4,values=fp16", "codec maxmin: values are not available: it is not sparse"},
      {"maxmin", "codec maxmin: bits are missing; write maxmin:4"},
      {"maxmin:9", "codec maxmin: bits must be 1 to 8, not 9"},
      {"maxmin:0", "codec maxmin: bits must be 1 to 8, not 0"},
      {"maxmin:x", "codec maxmin: \"x\" is not a number of bits"},
      {"fp16:4", "codec fp16: bits must not be given, not 4"},
      {"maxmin:4,bucket=100",
       "codec maxmin: bucket must be a multiple of 64 from 64 to 4096, not 100"},
      {"maxmin:4,bucket=8192",
       "codec maxmin: bucket must be a multiple of 64 from 64 to 4096, not 8192"},
      {"maxmin:4,bucket=", "codec maxmin: \"bucket=\" is not a number of elements"},
      {"maxmin:4,fast",
       "codec maxmin: \"fast\" is no parameter; known are bucket=N, stochastic, feedback"},
      {"fp16,stochastic", "codec fp16: stochastic is not available"},
      {"fp32,feedback", "codec fp32: feedback is not available: it is exact"},
      {"qsgd:1", "codec qsgd: bits must be 2 to 8, not 1"},
      {"natural:5", "codec natural: bits must be 2 to 4, not 5"},
      {"fp8", "codec fp8: format is missing; write fp8:e4m3"},
      {"fp8:e3m4", "codec fp8: \"e3m4\" is no format; known are e4m3, e5m2"},
      {"maxmin:4,norm=l2", "codec maxmin: norm=l2 is not available"},
      {"efsign,clip", "codec efsign: clip is not available"},
      {"terngrad,feedback", "codec terngrad: feedback is not available"},
      {"signsgd,feedback", "codec signsgd: feedback is not available"},
      {"int8,values=fp16", "codec int8: values are not available: it is not sparse"},
  };
  for (const auto& [text, says] : kCases) {
    const Result<CodecSpec> parsed = parse_codec_spec(text);
    ASSERT_FALSE(parsed.ok()) << text;
    EXPECT_EQ(parsed.status().code(), StatusCode::kINVALID_ARGUMENT);
    EXPECT_EQ(parsed.status().message(), says);
  }
}

TEST(CodecTable, RefusesWhatOnlyAWireCanHold) {
  EXPECT_FALSE(validate({.codec = 99}, DType::kF32).ok());
  EXPECT_FALSE(validate({.codec = 3, .bits = 4, .flags = 0x80}, DType::kF32).ok());
  EXPECT_FALSE(validate({.codec = 3, .bits = 4, .reserved = 1}, DType::kF32).ok());
  EXPECT_FALSE(validate({.codec = 0, .bucket = 0}, DType::kF32).ok());
}

TEST(CodecTable, OnlyRawTakesOtherTypes) {
  for (const DType dtype : {DType::kF64, DType::kI8, DType::kU8, DType::kI32, DType::kI64}) {
    EXPECT_TRUE(validate({}, dtype).ok());
    const Status status = validate({.codec = 3, .bits = 4}, dtype);
    EXPECT_EQ(status.message(), "codec maxmin: tensor type " + std::string(dtype_name(dtype)) +
                                    " is not supported; it takes fp32, fp16 and bf16");
  }
}

TEST(CodecTable, PolicyRefusesDivergenceAndWarnsOfDoubt) {
  const auto check = [](const char* text) {
    std::string warning;
    const Status status = check_policy(parse_codec_spec(text).value(), &warning);
    return status.ok() ? warning : "refused";
  };
  EXPECT_EQ(check("maxmin:1,feedback"), "refused");
  EXPECT_EQ(check("maxmin:1,stochastic,feedback"), "refused");
  EXPECT_EQ(check("maxmin:2,stochastic,feedback"), "refused");
  EXPECT_EQ(check("natural:2,feedback"), "refused");
  EXPECT_EQ(check("qsgd:4,norm=l2,feedback"), "refused");
  EXPECT_EQ(check("qsgd:8,norm=l2,feedback"), "");
  for (const char* doubtful : {"efsign", "onebit", "signsgd", "qsgd:2,feedback"}) {
    EXPECT_NE(check(doubtful), "") << doubtful;
  }
  EXPECT_NE(check("maxmin:2,feedback"), "");
  EXPECT_NE(check("maxmin:2,stochastic"), "");
  EXPECT_NE(check("maxmin:3"), "");
  EXPECT_NE(check("topk:0.01"), "");
  EXPECT_NE(check("threshold:0.001"), "");
  EXPECT_NE(check("randomk:0.01"), "");
  for (const char* sound :
       {"fp32", "fp16", "bf16,feedback", "maxmin:4,stochastic", "maxmin:3,stochastic",
        "maxmin:4,feedback", "maxmin:8", "efsign,feedback", "onebit,feedback", "fp8:e4m3", "int8",
        "terngrad,clip", "topk:0.01,feedback", "threshold:0.001,values=maxmin4,feedback",
        "randomk:0.01,feedback", "randomk:0.25"}) {
    EXPECT_EQ(check(sound), "") << sound;
  }
}

TEST(CodecTable, EveryCodecsFuzzerHasSeeds) {
  for (const CodecRow& row : codecs()) {
    const std::string seeds = CGX_SOURCE_DIR "/tests/fuzz/corpus/decoder_" + std::string(row.name);
    EXPECT_TRUE(std::filesystem::is_directory(seeds)) << seeds << "; ADDING.md says how";
  }
}

TEST(CodecTable, SizesAreMetadataAndWholeBlocks) {
  const CodecSpec four{.codec = 3, .bits = 4, .bucket = 512};
  EXPECT_EQ(encoded_bytes(four, DType::kF32, 0), 0u);
  EXPECT_EQ(encoded_bytes(four, DType::kF32, 1), 8u + 32u);
  EXPECT_EQ(encoded_bytes(four, DType::kF32, 512), 8u + 256u);
  EXPECT_EQ(encoded_bytes(four, DType::kBF16, 513), 16u + 256u + 32u);
  EXPECT_EQ(encoded_bytes({.codec = 1}, DType::kF32, 5), 16u);
  EXPECT_EQ(encoded_bytes({}, DType::kF16, 3), 16u);
  EXPECT_EQ(encoded_bytes({}, DType::kF64, 3), 24u);
  EXPECT_EQ(encoded_bytes({}, DType::kI8, 9), 16u);
  EXPECT_EQ(encoded_bytes(four, DType::kF32, 1ull << 33), (1ull << 33) / 512 * (8 + 256));
}

TEST(Lanes, AreFoundByNameAndBestComesFirst) {
  EXPECT_EQ(find_lane("auto").value(), &best_lane());
  EXPECT_STREQ(find_lane("scalar").value()->name, "scalar");
  const Result<const Lane*> unknown = find_lane("neon");
  ASSERT_FALSE(unknown.ok());
  EXPECT_NE(unknown.status().message().find("scalar"), std::string::npos);
}

TEST(Draws, StreamDependsOnEveryField) {
  const DrawSource base{1, 2, 3, 4, 5, 6};
  const DrawSource others[] = {{9, 2, 3, 4, 5, 6}, {1, 9, 3, 4, 5, 6}, {1, 2, 9, 4, 5, 6},
                               {1, 2, 3, 9, 5, 6}, {1, 2, 3, 4, 9, 6}, {1, 2, 3, 4, 5, 9}};
  for (const DrawSource& other : others) EXPECT_NE(draw_stream(base), draw_stream(other));
}

}  // namespace
}  // namespace cgx::kernels::testing
