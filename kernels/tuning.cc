#include "kernels/tuning.h"

#include <algorithm>
#include <array>
#include <span>
#include <vector>

#include "kernels/codec.h"
#include "kernels/cold_memory.h"
#include "kernels/ops.h"

namespace cgx::kernels {
namespace {

// Enough to be streamed, little enough for some hundred samples within the budget.
constexpr uint64_t kElements = kStreamBytes / sizeof(float);
constexpr int kRoundsMin = 3, kRoundsMax = 15;
// What a choice has to take off the default's time: streaming costs whoever reads next.
constexpr double kReadGain = 0.04, kStreamGain = 0.10;

// Each operation once, as a daemon asks for it, on memory of its own: a gradient, another rank's or
// a residual, a result, and an encoded part of another machine beside the own slab.
class Trial {
 public:
  Trial()
      : spec_(*parse_codec_spec("maxmin:4")),
        first_(kElements / 16),
        second_(kElements / 16),
        third_(kElements / 16),
        received_(lines_of(encoded_bytes(spec_, DType::kF32, kElements))),
        slab_(received_.size()) {
    uint32_t x = 1;
    for (Line& line : first_) {
      for (float& value : line.values) {
        x = x * 1664525 + 1013904223;
        value = static_cast<float>(static_cast<int32_t>(x)) * 0x1p-38f;
      }
    }
    second_ = first_;
    RangeStats stats;
    best_lane().encode(encode_job(received_), stats);
  }

  // Nothing of it is in any cache, but for the slab.
  void forget() const {
    for (const auto* lines : {&first_, &second_, &third_, &received_}) flush_lines(*lines);
  }

  // What may be streamed reaches memory: plain stores have not paid for that yet. In the long run
  // it happens beside other work, but not for nothing: half of it counts.
  void settle(Access Tuning::*operation) const {
    if (operation == &Tuning::feedback || operation == &Tuning::decode) flush_lines(third_);
  }

  void run(const Lane& lane, Access Tuning::*operation) {
    RangeStats stats;
    if (operation == &Tuning::encode) {
      lane.encode(encode_job(slab_), stats);
    } else if (operation == &Tuning::feedback) {
      EncodeJob job = encode_job(slab_);
      job.source.residual_in = second_.data()->values;
      job.residual_out = third_.data()->values;
      lane.encode(job, stats);
    } else if (operation == &Tuning::decode) {
      (void)lane.decode({.spec = spec_,
                         .encoded = bytes_of(received_),
                         .elements = kElements,
                         .targets = &result_,
                         .target_count = 1},
                        stats);
    } else if (operation == &Tuning::decode_add) {
      (void)lane.decode_add({.spec = spec_,
                             .encoded = bytes_of(received_),
                             .elements = kElements,
                             .sum = third_.data()->values},
                            stats);
    } else if (operation == &Tuning::reduce) {
      reduce(lane, stats);
    } else {
      lane.local_reduce({.source = {.ranks = ranks_.data(), .rank_count = 2, .scale = 0.5},
                         .elements = kElements,
                         .targets = ranks_.data(),
                         .target_count = 2});
    }
  }

 private:
  static size_t lines_of(uint64_t bytes) { return (bytes + sizeof(Line) - 1) / sizeof(Line); }

  std::span<std::byte> bytes_of(std::vector<Line>& lines) const {
    return std::as_writable_bytes(std::span(lines))
        .first(encoded_bytes(spec_, DType::kF32, kElements));
  }
  EncodeJob encode_job(std::vector<Line>& to) const {
    EncodeJob job{.spec = spec_, .elements = kElements};
    job.source = {.ranks = ranks_.data(), .rank_count = 1};
    job.encoded = bytes_of(to);
    return job;
  }
  void reduce(const Lane& lane, RangeStats& stats) {
    const std::array<Contribution, 2> parts = {
        {{.kind = Contribution::Kind::kRaw, .raw = {.ranks = ranks_.data(), .rank_count = 1}},
         {.kind = Contribution::Kind::kEncoded, .encoded = bytes_of(received_)}}};
    (void)lane.reduce({.spec = spec_,
                       .contributions = parts,
                       .elements = kElements,
                       .encoded = bytes_of(slab_),
                       .targets = ranks_.data(),
                       .target_count = 1},
                      stats);
  }

  const CodecSpec spec_;
  std::vector<Line> first_, second_, third_, received_, slab_;
  const std::array<void*, 2> ranks_ = {first_.data(), second_.data()};
  void* const result_ = third_.data();
};

class Measurement {
 public:
  // Runs everything once: pages are there, and code.
  Measurement(const Lane& lane, uint64_t (*now_ns)()) : lane_(lane), now_ns_(now_ns) {
    for (const TunedOperation& one : kTunedOperations) trial_.run(lane, one.access);
  }

  // The choice among `tried`, whose first is the default. Its share of the time left may be more
  // than that for the fewest rounds, but `end_ns` is the end.
  Access choose(Access Tuning::*operation, std::span<const Access> tried, double gain,
                uint64_t choices_left, uint64_t end_ns) {
    std::array<std::vector<uint64_t>, std::size(kReadsTried)> samples;
    const uint64_t now_ns = now_ns_();
    if (now_ns >= end_ns) return tried[0];
    const uint64_t share_ns = now_ns + (end_ns - now_ns) / choices_left;
    for (int round = 0; round < kRoundsMax; ++round) {
      if (now_ns_() >= (round < kRoundsMin ? end_ns : share_ns)) break;
      for (size_t i = 0; i < tried.size(); ++i) {
        Tuning tuning;
        tuning.*operation = tried[i];
        samples[i].push_back(time(lane_.with(tuning), operation));
      }
    }
    if (samples[0].size() < kRoundsMin) return tried[0];
    size_t best = 0;
    for (size_t i = 1; i < tried.size(); ++i) {
      if (median(samples[i]) < median(samples[best])) best = i;
    }
    const double least = (1 - gain) * static_cast<double>(median(samples[0]));
    return static_cast<double>(median(samples[best])) < least ? tried[best] : tried[0];
  }

 private:
  uint64_t time(const Lane& lane, Access Tuning::*operation) {
    trial_.forget();
    const uint64_t began_ns = now_ns_();
    trial_.run(lane, operation);
    const uint64_t ran_ns = now_ns_();
    trial_.settle(operation);
    return (ran_ns - began_ns) + (now_ns_() - ran_ns) / 2;
  }
  static uint64_t median(std::vector<uint64_t>& samples) {
    const auto middle = samples.begin() + static_cast<ptrdiff_t>(samples.size() / 2);
    std::nth_element(samples.begin(), middle, samples.end());
    return *middle;
  }

  const Lane& lane_;
  uint64_t (*const now_ns_)();
  Trial trial_;
};

}  // namespace

Tuning measure_tuning(const Lane& lane, uint64_t (*now_ns)()) {
  Tuning tuning;
  if (!lane.ops->tunes || !flushes()) return tuning;
  const uint64_t end_ns = now_ns() + kTuningBudgetNs;
  Measurement measurement(lane, now_ns);
  uint64_t choices_left = 0;
  for (const TunedOperation& one : kTunedOperations) choices_left += one.streams ? 2 : 1;
  for (const TunedOperation& one : kTunedOperations) {
    Access& access = tuning.*one.access;
    if (one.streams) {
      constexpr Access kStores[] = {{}, {.stream = true}};
      access = measurement.choose(one.access, kStores, kStreamGain, choices_left--, end_ns);
    }
    std::array<Access, std::size(kReadsTried)> tried;
    std::copy(std::begin(kReadsTried), std::end(kReadsTried), tried.begin());
    for (Access& other : tried) other.stream = access.stream;
    access = measurement.choose(one.access, tried, kReadGain, choices_left--, end_ns);
  }
  return tuning;
}

std::string to_string(const Tuning& tuning) {
  std::string text;
  for (const TunedOperation& one : kTunedOperations) {
    const Access& access = tuning.*one.access;
    if (access == Access()) continue;
    text.append(text.empty() ? "" : "; ").append(one.name);
    if (access.ahead_bytes > 0) text += " " + std::to_string(access.ahead_bytes) + " B ahead";
    if (access.second_level) text += " into L2";
    if (access.stream) text += " streamed";
  }
  return text.empty() ? "default" : text;
}

}  // namespace cgx::kernels
