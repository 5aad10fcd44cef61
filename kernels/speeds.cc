#include "kernels/speeds.h"

#include <algorithm>

#include "kernels/cold_memory.h"

namespace cgx::kernels {
namespace {

constexpr uint64_t kElements = 32 << 10;  // 128 KiB: a part of a group
constexpr int kRounds = 3;

class Measurement {
 public:
  explicit Measurement(uint64_t (*now_ns)())
      : now_ns_(now_ns), values_(kElements / 16), results_(values_.size()) {
    uint32_t x = 1;
    for (Line& line : values_) {
      for (float& value : line.values) value = bell_shaped(x);
    }
  }

  CodecSpeed of(const Lane& lane, const CodecSpec& spec) {
    const uint64_t bytes = encoded_bytes(spec, DType::kF32, kElements);
    encoded_.resize(std::max(encoded_.size(), (bytes + sizeof(Line) - 1) / sizeof(Line)));
    const auto encoded = std::as_writable_bytes(std::span(encoded_)).first(bytes);
    const void* rank = values_.data();
    EncodeJob encode{.spec = spec, .elements = kElements};
    encode.source = {.ranks = &rank, .rank_count = 1};
    encode.encoded = encoded;
    void* target = results_.data();
    DecodeJob decode{.spec = spec, .elements = kElements, .targets = &target, .target_count = 1};
    RangeStats stats;
    CodecSpeed speed{spec};
    speed.encode_ns_per_byte = ns_per_byte([&] {
      flush_lines(values_);
      return [&] { decode.encoded = encoded.first(lane.encode(encode, stats)); };
    });
    speed.decode_ns_per_byte = ns_per_byte([&] {
      flush_lines(results_);
      flush_lines(encoded_);
      return [&] { (void)lane.decode(decode, stats); };
    });
    return speed;
  }

 private:
  // The sum of four random numbers: most are small, as gradients are.
  static float bell_shaped(uint32_t& x) {
    float sum = 0;
    for (int i = 0; i < 4; ++i) {
      x = x * 1664525 + 1013904223;
      sum += static_cast<float>(static_cast<int32_t>(x)) * 0x1p-38f;
    }
    return sum;
  }

  // `prepare` makes what is timed. The first time it meets code that nobody has run yet.
  template <class Prepare>
  double ns_per_byte(Prepare prepare) {
    prepare()();
    uint64_t least_ns = UINT64_MAX;
    for (int round = 0; round < kRounds; ++round) {
      const auto run = prepare();
      const uint64_t began_ns = now_ns_();
      run();
      least_ns = std::min(least_ns, now_ns_() - began_ns);
    }
    return static_cast<double>(std::max<uint64_t>(least_ns, 1)) / (4.0 * kElements);
  }

  uint64_t (*const now_ns_)();
  std::vector<Line> values_, results_, encoded_;
};

}  // namespace

std::vector<CodecSpeed> measure_speeds(const Lane& lane, std::span<const CodecSpec> specs,
                                       uint64_t (*now_ns)()) {
  if (!flushes()) return {};
  const uint64_t end_ns = now_ns() + kSpeedsBudgetNs;
  Measurement measurement(now_ns);
  std::vector<CodecSpeed> speeds;
  for (const CodecSpec& spec : specs) {
    if (now_ns() >= end_ns) break;
    speeds.push_back(measurement.of(lane, spec));
  }
  return speeds;
}

}  // namespace cgx::kernels
