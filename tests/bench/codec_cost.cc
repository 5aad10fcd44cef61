// What each codec costs on one core, lane by lane: the figures of kernels/CODECS.md.
//
//   bench_codec_cost > tests/bench/codec_cost.json
// GB/s of fp32, CPU time of this thread, the best of some rounds over 64 MiB of gradient-like
// values. Not a comparison: that is bench_codec's, which has rooflines.
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "kernels/codecs/codec_reference.h"

namespace cgx::bench {
namespace {

using kernels::Lane;

constexpr size_t kElements = 16u << 20;
constexpr int kRounds = 5;

uint64_t thread_ns() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}
double thread_seconds() {
  return 1e-9 * static_cast<double>(thread_ns());
}

template <class Call>
double best_rate(Call call) {
  call();
  double best = 1e9;
  for (int round = 0; round < kRounds; ++round) {
    const double start = thread_seconds();
    call();
    best = std::min(best, thread_seconds() - start);
  }
  return 4e-9 * static_cast<double>(kElements) / best;
}

class Costs {
 public:
  Costs() : values_(kElements), result_(kElements) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal(0.0f, 0.01f);
    std::vector<float> period((1u << 20) + 12289);
    for (float& x : period) x = normal(random);
    for (size_t i = 0; i < kElements; ++i) values_[i] = period[i % period.size()];
  }

  double copy_rate() {
    return best_rate([&] { std::memcpy(result_.data(), values_.data(), 4 * kElements); });
  }

  kernels::CodecCost measure(const Lane& lane, const CodecSpec& spec) {
    const void* rank = values_.data();
    encoded_.resize(kernels::encoded_bytes(spec, DType::kF32, kElements));
    kernels::EncodeJob encode{.spec = spec, .elements = kElements, .key = {0x1234, 0}};
    encode.source = {.ranks = &rank, .rank_count = 1};
    encode.encoded = encoded_;
    kernels::RangeStats stats;
    uint64_t used = 0;
    kernels::CodecCost cost{kernels::to_string(spec), lane.name};
    cost.encode = best_rate([&] { used = lane.encode(encode, stats); });
    void* target = result_.data();
    kernels::DecodeJob decode{.spec = spec, .elements = kElements};
    decode.encoded = std::span<const std::byte>(encoded_).first(used);
    decode.targets = &target;
    decode.target_count = 1;
    cost.decode = best_rate([&] { CGX_ASSERT(lane.decode(decode, stats).ok()); });
    return cost;
  }

 private:
  std::vector<float> values_, result_;
  std::vector<std::byte> encoded_;
};

// As /proc/cpuinfo has it: the model's name alone can stand for several generations.
std::string machine_name() {
  std::string name = "an unknown processor", family, model;
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line) && !line.empty();) {  // the first core's
    const size_t colon = line.find(':');
    if (colon == std::string::npos || colon + 2 > line.size()) continue;
    const std::string value = line.substr(colon + 2);
    if (line.starts_with("model name")) name = value;
    if (line.starts_with("cpu family")) family = ", family " + value;
    if (line.starts_with("model\t")) model = " model " + value;
  }
  return name + family + model;
}

void print_all() {
  Costs costs;
  std::vector<Lane> lanes;  // as a daemon tunes them
  for (const Lane* lane : kernels::lanes()) {
    if (lane->viable()) lanes.push_back(lane->with(kernels::measure_tuning(*lane, thread_ns)));
  }
  std::printf("[{\"machine\": \"%s\", \"copy\": %.1f}", machine_name().c_str(), costs.copy_rate());
  for (const kernels::CodecRow& row : kernels::codecs()) {
    for (const CodecSpec& spec : kernels::usage_of(row).examples) {
      if (spec.feedback()) continue;  // feedback costs a residual's traffic, whatever the codec
      for (const Lane& lane : lanes) {
        const kernels::CodecCost cost = costs.measure(lane, spec);
        std::printf(",\n{\"codec\": \"%s\", \"lane\": \"%s\", \"encode\": %.1f, \"decode\": %.1f}",
                    cost.codec.c_str(), cost.lane.c_str(), cost.encode, cost.decode);
        std::fflush(stdout);
      }
    }
  }
  std::printf("]\n");
}

}  // namespace
}  // namespace cgx::bench

int main() {
  cgx::bench::print_all();
}
