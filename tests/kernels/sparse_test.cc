// What topk, threshold and randomk select, in which form indices travel, and what a decoder
// refuses.
#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "tests/kernels/codec_cases.h"

namespace cgx::kernels::testing {
namespace {

constexpr size_t kSizes[] = {0, 1, 63, 64, 65, 8192, 65535, 65536, 65537, 3 * 65536 + 17};

CodecSpec spec_of(const char* text) {
  return parse_codec_spec(text).value();
}

uint32_t magnitude(float x) {
  return std::bit_cast<uint32_t>(x) & 0x7fffffffu;
}

// The definition, by sorting: of each bucket the `most(n)` largest from `floor` on, the first of
// equals.
template <class Most>
Floats largest_of(const Floats& values, uint32_t floor, Most most) {
  Floats selected(values.size(), 0.0f);
  for (size_t first = 0; first < values.size(); first += kSparseBucket) {
    const size_t n = std::min<size_t>(kSparseBucket, values.size() - first);
    std::vector<size_t> order(n);
    std::iota(order.begin(), order.end(), first);
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
      return magnitude(values[a]) > magnitude(values[b]);
    });
    for (size_t i = 0; i < std::min<size_t>(n, most(n)); ++i) {
      if (magnitude(values[order[i]]) >= floor) selected[order[i]] = values[order[i]];
    }
  }
  return selected;
}

Floats topk_of(const Floats& values, float share) {
  return largest_of(values, 1, [share](size_t n) {
    return std::max(1.0, std::ceil(static_cast<double>(n) * share));  // exact in fp64
  });
}

using Maker = std::function<float(std::mt19937_64&, size_t)>;
struct Kind {
  const char* name;
  Maker make;
};

// Values that mislead a sample, tie at the cut, or lie where comparisons go wrong.
const std::vector<Kind>& kinds() {
  static const auto normal = [](std::mt19937_64& random) {
    return std::normal_distribution<float>()(random);
  };
  static const std::vector<Kind> all = {
      {"normal", [](auto& random, size_t) { return normal(random); }},
      {"few levels", [](auto& random, size_t) { return std::round(2 * normal(random)); }},
      {"mostly zeros",
       [](auto& random, size_t i) { return i % 997 == 3 ? normal(random)
                                           : i % 2      ? 0.0f
                                                        : -0.0f; }},
      {"all equal", [](auto&, size_t i) { return i % 3 ? 0.5f : -0.5f; }},
      {"all zero", [](auto&, size_t) { return 0.0f; }},
      {"rising", [](auto&, size_t i) { return static_cast<float>(i); }},
      {"one hot place",
       [](auto& random, size_t i) { return normal(random) * (i % 65536 < 3000 ? 100.0f : 1.0f); }},
      {"hot columns",
       [](auto& random, size_t i) { return normal(random) * (i % 1024 ? 1 : 1e6f); }},
      {"denormal", [](auto& random, size_t) { return from_bits(random() % 0x00800000); }},
      {"huge",
       [](auto& random, size_t) {
         return from_bits(0x7f000000 + random() % 0x00800000) * (random() % 2 ? 1.0f : -1.0f);
       }},
      {"any finite", [](auto& random, size_t) {
         const uint32_t bits = static_cast<uint32_t>(random());
         return (bits & 0x7f800000u) == 0x7f800000u ? 1.0f : from_bits(bits);
       }}};
  return all;
}

Floats make(const Kind& kind, size_t n, uint64_t seed) {
  std::mt19937_64 random(seed);
  Floats values(n);
  for (size_t i = 0; i < n; ++i) values[i] = kind.make(random, i);
  return values;
}

class SparseOnLane : public ::testing::TestWithParam<const Lane*> {
 protected:
  const Lane& lane() const { return *GetParam(); }

  // Zeros decode to +0, whatever their sign was.
  void expect_decodes_to(const CodecSpec& spec, const Floats& values, const Floats& expected) {
    const Encoded encoded = encode(lane(), spec, values);
    ASSERT_LE(encoded.bytes.size(), encoded_bytes(spec, DType::kF32, values.size()));
    ASSERT_EQ(encoded_length(spec, DType::kF32, values.size(), encoded.bytes).value(),
              encoded.bytes.size());
    ASSERT_TRUE(same_bits(decode(lane(), spec, encoded.bytes, values.size()), expected));
  }
};

TEST_P(SparseOnLane, TopKSendsExactlyTheLargest) {
  for (const Kind& kind : kinds()) {
    for (const size_t n : kSizes) {
      const Floats values = make(kind, n, 1);
      for (const char* text : {"topk:0.01", "topk:0.0001", "topk:0.25"}) {
        SCOPED_TRACE(std::string(kind.name) + " " + text + " x" + std::to_string(n));
        const CodecSpec spec = spec_of(text);
        expect_decodes_to(spec, values, topk_of(values, spec.amount));
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_P(SparseOnLane, ThresholdSendsAllFromItOnButAQuarterAtMost) {
  for (const Kind& kind : kinds()) {
    for (const size_t n : kSizes) {
      const Floats values = make(kind, n, 2);
      for (const char* text : {"threshold:2", "threshold:0.5", "threshold:1e-40"}) {
        SCOPED_TRACE(std::string(kind.name) + " " + text + " x" + std::to_string(n));
        const CodecSpec spec = spec_of(text);
        const auto quarter = [](size_t bucket) { return (bucket + 3) / 4; };
        expect_decodes_to(spec, values, largest_of(values, magnitude(spec.amount), quarter));
        if (HasFatalFailure()) return;
      }
    }
  }
}

// The forms of the header, and what each would take up.
struct Entry {
  uint32_t bytes;
  uint16_t count;
  uint8_t form, flags;
};

Entry entry_of(const Bytes& bytes) {
  Entry entry;
  std::memcpy(&entry, bytes.data(), sizeof(entry));
  return entry;
}

TEST_P(SparseOnLane, IndicesTakeTheShortestForm) {
  const auto words = [](size_t bytes) { return (bytes + 7) / 8 * 8; };
  std::vector<bool> seen(4);
  for (const float amount : {0.0001f, 0.001f, 0.01f, 0.05f, 0.1f, 0.25f}) {
    for (const size_t n : {size_t{40}, size_t{700}, size_t{65536}}) {
      for (const bool together : {false, true}) {
        std::mt19937_64 random(n);
        Floats values = gradient(random, n);
        if (together) std::sort(values.begin(), values.end());
        CodecSpec spec = spec_of("topk:0.01");
        spec.amount = amount;
        const Floats selected = topk_of(values, amount);
        size_t count = 0, gaps = 0, next = 0;
        for (size_t i = 0; i < n; ++i) {
          if (selected[i] == 0) continue;
          ++count;
          gaps += 1 + (i - next) / 255;
          next = i + 1;
        }
        const size_t lengths[] = {words(2 * count), words(gaps), words((n + 7) / 8)};
        const size_t shortest = *std::min_element(lengths, lengths + 3);
        const Entry entry = entry_of(encode(lane(), spec, values).bytes);
        EXPECT_EQ(entry.count, count);
        EXPECT_EQ(entry.bytes, 8 + shortest + words(4 * count));
        EXPECT_EQ(entry.form, std::find(lengths, lengths + 3, shortest) - lengths + 1);
        seen[entry.form] = true;
      }
    }
  }
  EXPECT_EQ(seen, std::vector<bool>({false, true, true, true}));
}

TEST_P(SparseOnLane, ANonFiniteValueMakesItsBucketNaNAndKeepsTheResidual) {
  for (const char* text : {"topk:0.01", "threshold:1", "randomk:0.01", "randomk:0.01,feedback"}) {
    SCOPED_TRACE(text);
    const CodecSpec spec = spec_of(text);
    const size_t n = 2 * kSparseBucket + 100, bad = kSparseBucket + 12345;
    std::mt19937_64 random(3);
    Floats values = gradient(random, n), before = gradient(random, n), after(n);
    values[bad] = from_bits(0xff800000);
    const Encoded encoded = encode(lane(), spec, values, {}, before.data(), after.data());
    EXPECT_EQ(encoded.stats.nonfinite_buckets, 1u);
    const Floats decoded = decode(lane(), spec, encoded.bytes, n);
    for (size_t i = 0; i < n; ++i) {
      if (i / kSparseBucket == 1) {
        ASSERT_EQ(std::bit_cast<uint32_t>(decoded[i]), 0x7fc00000u);
        ASSERT_EQ(after[i], before[i]);
      } else {
        ASSERT_EQ(after[i], values[i] + before[i] - decoded[i]);
      }
    }
  }
}

TEST_P(SparseOnLane, NormsAreThoseOfTheDenseBucket) {
  for (const char* text :
       {"topk:0.02", "threshold:1.2,values=fp16", "randomk:0.02", "topk:0.01,values=maxmin4"}) {
    SCOPED_TRACE(text);
    const CodecSpec spec = spec_of(text);
    const size_t n = kSparseBucket + 777;
    std::mt19937_64 random(4);
    const Floats values = gradient(random, n);
    Bytes bytes(encoded_bytes(spec, DType::kF32, n));
    const void* rank = values.data();
    EncodeJob job{.spec = spec, .elements = n};
    job.source = {.ranks = &rank, .rank_count = 1};
    job.encoded = bytes;
    job.norms = true;
    RangeStats stats;
    bytes.resize(lane().encode(job, stats));
    // sums.h, written out once more.
    const auto squares = [&](const Floats& x) {
      double total = 0;
      for (size_t first = 0; first < n; first += kSparseBucket) {
        float p[64] = {};
        for (size_t i = first; i < std::min(n, first + kSparseBucket); ++i) {
          p[(i - first) % 64] += x[i] * x[i];
        }
        for (size_t half = 32; half > 0; half /= 2) {
          for (size_t i = 0; i < half; ++i) p[i] += p[i + half];
        }
        total += double{p[0]};
      }
      return total;
    };
    EXPECT_EQ(stats.intended_sq, squares(values));
    EXPECT_EQ(stats.sent_sq, squares(decode(lane(), spec, bytes, n)));
  }
}

TEST_P(SparseOnLane, RandomKSumsOnSharedPlacesWithoutLoss) {
  const CodecSpec spec = spec_of("randomk:0.01");
  const size_t n = kSparseBucket + 1234;
  const DrawKey key{77, 5};
  std::mt19937_64 random(5);
  const Floats first = gradient(random, n), second = gradient(random, n);
  const Bytes part = encode(lane(), spec, first, key).bytes;
  const void* own = second.data();
  Contribution parts[2];
  parts[0] = {.kind = Contribution::Kind::kEncoded, .encoded = part};
  parts[1] = {.kind = Contribution::Kind::kRaw, .raw = {.ranks = &own, .rank_count = 1}};
  Bytes encoded(encoded_bytes(spec, DType::kF32, n));
  ReduceJob job{.spec = spec, .contributions = parts, .elements = n, .key = key};
  job.encoded = encoded;
  RangeStats stats;
  ASSERT_TRUE(lane().reduce(job, stats).ok());
  Floats sum(n);
  for (size_t i = 0; i < n; ++i) sum[i] = first[i] + second[i];
  EXPECT_TRUE(same_bits(encoded, encode(lane(), spec, sum, key).bytes));
  job.key.stream += 1;
  EXPECT_EQ(lane().reduce(job, stats).status().code(), StatusCode::kCORRUPT);
}

// Each value of a stratum is as likely as any other, and counts as often as it is left out.
TEST_P(SparseOnLane, RandomKIsUnbiased) {
  const CodecSpec spec = spec_of("randomk:0.1");
  constexpr size_t kValues = 1003, kRounds = 4000;  // the last stratum has three values
  std::vector<double> sent(kValues, 0.0);
  for (size_t round = 0; round < kRounds; ++round) {
    const Floats decoded = round_trip(lane(), spec, Floats(kValues, 1.0f), {round, 9});
    for (size_t i = 0; i < kValues; ++i) sent[i] += double{decoded[i]};
  }
  double chi_square = 0;
  for (size_t i = 0; i < kValues; ++i) {
    const double length = i < 1000 ? 10 : 3, mean = sent[i] / kRounds;
    const double deviation = std::sqrt((length - 1) / kRounds);
    EXPECT_NEAR(mean, 1.0, 5 * deviation) << i;
    chi_square += (mean - 1) * (mean - 1) / (deviation * deviation);
  }
  EXPECT_NEAR(chi_square, kValues, 5 * std::sqrt(2.0 * kValues));
}

TEST_P(SparseOnLane, WeighedValuesNeverOverflow) {
  const CodecSpec spec = spec_of("randomk:0.01");
  const Floats values(1000, 0x1.fffffep127f);
  for (const float x : round_trip(lane(), spec, values)) ASSERT_TRUE(std::isfinite(x));
}

TEST_P(SparseOnLane, OtherBytesAreCorrupt) {
  const CodecSpec spec = spec_of("topk:0.01");
  constexpr size_t kValues = 1000;  // ten are sent
  const auto entry = [](uint32_t bytes, uint16_t count, uint8_t form, uint8_t flags,
                        std::vector<uint8_t> indices, float value = 1.0f) {
    const Entry header{bytes, count, form, flags};
    Bytes encoded(bytes < 8 || bytes > 4096 ? 8 : bytes);
    std::memcpy(encoded.data(), &header, 8);
    for (size_t i = 0; i < indices.size() && 8 + i < encoded.size(); ++i) {
      encoded[8 + i] = static_cast<std::byte>(indices[i]);
    }
    const size_t values = (4 * count + 7) / 8 * 8;
    for (size_t i = 0; i < count && values + 8 <= encoded.size(); ++i) {
      std::memcpy(encoded.data() + encoded.size() - values + 4 * i, &value, 4);
    }
    return encoded;
  };
  const auto refused = [&](const Bytes& bytes) {
    Floats out(kValues);
    void* target = out.data();
    DecodeJob job{.spec = spec, .encoded = bytes, .elements = kValues};
    job.targets = &target;
    job.target_count = 1;
    RangeStats stats;
    return lane().decode(job, stats).code() == StatusCode::kCORRUPT;
  };
  EXPECT_FALSE(refused(entry(24, 2, 1, 0, {5, 0, 6, 0})));
  EXPECT_FALSE(refused(entry(24, 2, 2, 0, {5, 0})));
  EXPECT_FALSE(refused(entry(24, 2, 2, 0, {255, 255, 255, 5, 228})));  // 770 and 999
  EXPECT_FALSE(refused(entry(8, 0, 0, 0, {})));
  EXPECT_FALSE(refused(entry(8, 0, 0, 1, {})));
  const struct {
    const char* what;
    Bytes bytes;
  } kCases[] = {
      {"nothing", {}},
      {"longer than there is", entry(8192, 0, 0, 0, {})},
      {"shorter than a header", entry(4, 0, 0, 0, {})},
      {"no whole words", entry(28, 2, 1, 0, {5, 0, 6, 0})},
      {"unknown flag", entry(8, 0, 0, 2, {})},
      {"unknown form", entry(24, 2, 9, 0, {5, 0})},
      {"drawn", entry(24, 2, 4, 0, {5, 0})},
      {"a form without values", entry(8, 0, 1, 0, {})},
      {"none with values", entry(24, 2, 0, 0, {})},
      {"non-finite with values", entry(24, 2, 1, 1, {5, 0, 6, 0})},
      {"more than asked for", entry(80, 11, 2, 0, {5})},
      {"falling", entry(24, 2, 1, 0, {6, 0, 5, 0})},
      {"twice", entry(24, 2, 1, 0, {5, 0, 5, 0})},
      {"list beyond the bucket", entry(24, 2, 1, 0, {5, 0, 232, 3})},
      {"list too long", entry(32, 2, 1, 0, {5, 0, 6, 0})},
      {"gaps beyond the bucket", entry(24, 2, 2, 0, {255, 255, 255, 5, 229})},
      {"gaps without an end", entry(24, 2, 2, 0, {1, 255, 255, 255, 255, 255, 255, 255})},
      {"gaps too long", entry(32, 2, 2, 0, {5, 0})},
      {"infinite value", entry(24, 2, 1, 0, {5, 0, 6, 0}, from_bits(0x7f800000))},
      {"NaN value", entry(24, 2, 1, 0, {5, 0, 6, 0}, from_bits(0x7fc00000))},
  };
  for (const auto& [what, bytes] : kCases) EXPECT_TRUE(refused(bytes)) << what;
  // A bitmap is only ever shorter where much is sent.
  Floats ones(kValues, 1.0f);
  const CodecSpec quarter = spec_of("topk:0.25");
  Bytes bitmap = encode(lane(), quarter, Floats(ones.begin(), ones.begin() + 5)).bytes;
  ASSERT_EQ(entry_of(bitmap).form, 1u);  // equally long: the list
  for (const uint8_t form : {uint8_t{3}}) {
    bitmap[6] = static_cast<std::byte>(form);
    bitmap[8] = std::byte{3};  // values 0 and 1
    bitmap[10] = std::byte{0};
    EXPECT_TRUE(encoded_length(quarter, DType::kF32, 5, bitmap).ok());
    EXPECT_TRUE(same_bits(decode(lane(), quarter, bitmap, 5), Floats{1, 1, 0, 0, 0}));
    for (const uint8_t bits : {1, 7, 0x21}) {  // too few, too many, beyond the bucket
      bitmap[8] = static_cast<std::byte>(bits);
      Floats sum(5, 0.0f);
      DecodeAddJob job{.spec = quarter, .encoded = bitmap, .elements = 5, .sum = sum.data()};
      RangeStats stats;
      EXPECT_EQ(lane().decode_add(job, stats).code(), StatusCode::kCORRUPT) << int{bits};
    }
  }
}

TEST_P(SparseOnLane, LengthsOfRangesAreFoundAmongFollowingBytes) {
  const CodecSpec spec = spec_of("threshold:1.5");
  std::mt19937_64 random(6);
  const size_t n = 2 * kSparseBucket + 9;
  Bytes bytes = encode(lane(), spec, gradient(random, n)).bytes;
  const size_t used = bytes.size();
  bytes.resize(used + 100, std::byte{0xff});
  EXPECT_EQ(encoded_length(spec, DType::kF32, n, bytes).value(), used);
  bytes.resize(used - 8);
  EXPECT_EQ(encoded_length(spec, DType::kF32, n, bytes).status().code(), StatusCode::kCORRUPT);
}

// Whole buckets, where samples and candidates are used: every lane gives the scalar lane's bytes,
// residuals, norms.
TEST_P(SparseOnLane, WholeBucketsAgreeWithTheScalarLane) {
  SCOPED_TRACE("CGX_TEST_SEED=" + std::to_string(test_seed()));
  std::mt19937_64 random(test_seed());
  const std::vector<CodecSpec> specs = all_specs(64);
  for (int round = 0; round < 40; ++round) {
    CodecSpec spec = specs[random() % specs.size()];
    while (!is_sparse(spec)) spec = specs[random() % specs.size()];
    const Kind& kind = kinds()[random() % kinds().size()];
    const size_t n = kSparseBucket * (random() % 3) + random() % 40000;
    SCOPED_TRACE(std::string(kind.name) + " " + to_string(spec) + " x" + std::to_string(n));
    const Floats values = make(kind, n, random()), before = gradient(random, n, 0.1f);
    const bool feedback = random() % 2;
    Bytes bytes[2];
    RangeStats stats[2];
    Floats after[2];
    for (const int i : {0, 1}) {
      const void* rank = values.data();
      bytes[i].resize(encoded_bytes(spec, DType::kF32, n));
      after[i].resize(n);
      EncodeJob job{.spec = spec, .elements = n, .key = {round + 1u, 3}};
      job.source = {.ranks = &rank, .rank_count = 1};
      job.source.residual_in = feedback ? before.data() : nullptr;
      job.residual_out = feedback ? after[i].data() : nullptr;
      job.encoded = bytes[i];
      job.norms = round % 4 == 0;
      bytes[i].resize((i == 0 ? scalar_lane() : lane()).encode(job, stats[i]));
    }
    ASSERT_TRUE(same_bits(bytes[0], bytes[1]));
    ASSERT_TRUE(same_bits(after[0], after[1]));
    ASSERT_EQ(stats[0].nonfinite_buckets, stats[1].nonfinite_buckets);
    ASSERT_EQ(stats[0].saturated, stats[1].saturated);
    ASSERT_EQ(std::bit_cast<uint64_t>(stats[0].intended_sq),
              std::bit_cast<uint64_t>(stats[1].intended_sq));
    ASSERT_EQ(std::bit_cast<uint64_t>(stats[0].sent_sq), std::bit_cast<uint64_t>(stats[1].sent_sq));
  }
}

INSTANTIATE_TEST_SUITE_P(Lanes, SparseOnLane, ::testing::ValuesIn(viable_lanes()),
                         [](const auto& info) { return std::string(info.param->name); });

}  // namespace
}  // namespace cgx::kernels::testing
