// What encode, decode_add (of sparse codecs decode) and reduce_requantize move per second, as a
// share of what a copy on the same device moves in the same run. Times are events around several
// launches through the driver, the best of five.
//
// usage: bench [--json FILE] [--short] [--codec TEXT]
// --codec: only those whose text contains it; where none does, that one.
// With --short one launch of each on a small tensor, which shows only that it runs.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "tests/gpu/device.h"
#include "tests/gpu/operations.h"

namespace cgx::gpu {
namespace {

using namespace kernels;
using cuda::Segment;

constexpr double kTarget = 0.85;
struct Runs {
  int rounds, launches;
};
constexpr uint32_t kStreams = 4;

void expect_ok(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.to_string().c_str());
  std::exit(2);
}

// Milliseconds of one launch.
double time_of(const Runs& runs, const std::function<void()>& launch) {
  launch();
  double best = 1e30;
  for (int round = 0; round < runs.rounds; ++round) {
    const double ms = device_milliseconds([&] {
      for (int i = 0; i < runs.launches; ++i) launch();
    });
    best = std::min(best, ms / runs.launches);
  }
  return best;
}

// Values of both signs, evenly spread, to device memory.
void fill(float* x, uint64_t n) {
  std::vector<float> values(std::min<uint64_t>(n, 4 << 20));
  for (uint64_t first = 0; first < n; first += values.size()) {
    for (uint64_t i = 0; i < values.size(); ++i) {
      uint32_t word = static_cast<uint32_t>(first + i) * 0x9e3779b9u;
      word = (word ^ (word >> 16)) * 0x7feb352du;
      word ^= word >> 15;
      values[i] = static_cast<float>(static_cast<int32_t>(word)) * 1e-9f;
    }
    const uint64_t count = std::min<uint64_t>(values.size(), n - first);
    copy_to_device(x + first, values.data(), count * sizeof(float));
  }
}

// A tensor of `bytes` fp32 in two parts, as a group of tensors would lie, and all that goes with
// it.
class Bench {
 public:
  Bench(size_t bytes, const Runs& runs) : elements_(bytes / sizeof(float)), runs_(runs) {
    values_ = static_cast<float*>(device_allocate(bytes));
    sum_ = static_cast<float*>(device_allocate(bytes));
    for (std::byte*& stream : streams_)
      stream = static_cast<std::byte*>(device_allocate(bytes / 2));
    fill(values_, elements_);
  }
  ~Bench() {
    for (void* memory : kept_) device_free(memory);
    device_free(values_);
    device_free(sum_);
    for (std::byte* stream : streams_) device_free(stream);
  }
  Bench(const Bench&) = delete;

  double copy_ms() {
    return time_of(runs_, [&] { copy_on_device(sum_, values_, elements_ * sizeof(float)); });
  }
  double encode_ms(const CodecSpec& spec) {
    EncodeJob job{.spec = spec, .elements = elements_};
    job.source = {.ranks = keep<const void*>({values_}), .rank_count = 1};
    job.encoded = room(spec, 0);
    const auto table = table_of(job);
    const double ms = time_of(runs_, [&] { expect_ok(gpu::encode(table)); });
    encoded_ =
        static_cast<double>(find_codec(spec.codec)->sparse ? used_bytes(job) : job.encoded.size());
    for (uint32_t s = 1; s < kStreams; ++s) {
      copy_on_device(streams_[s], streams_[0], job.encoded.size());
    }
    return ms;
  }
  // After encode_ms of the same spec, as the next.
  double decode_add_ms(const CodecSpec& spec) {
    DecodeAddJob job{.spec = spec, .encoded = room(spec, 0), .elements = elements_, .sum = sum_};
    const auto table = table_of(job);
    return time_of(runs_, [&] { expect_ok(gpu::decode_add(table)); });
  }
  double decode_ms(const CodecSpec& spec) {
    DecodeJob job{.spec = spec, .encoded = room(spec, 0), .elements = elements_};
    job.targets = keep<void*>({sum_});
    job.target_count = 1;
    const auto table = table_of(job);
    return time_of(runs_, [&] { expect_ok(gpu::decode(table)); });
  }
  double reduce_ms(const CodecSpec& spec) {
    std::vector<Contribution> parts(kStreams - 1);
    for (uint32_t s = 0; s + 1 < kStreams; ++s) {
      parts[s].kind = Contribution::Kind::kEncoded;
      parts[s].encoded = room(spec, s);
    }
    parts.push_back({.kind = Contribution::Kind::kRaw});
    parts.back().raw = {.ranks = keep<const void*>({values_}), .rank_count = 1};
    ReduceJob job{
        .spec = spec, .contributions = {keep(parts), parts.size()}, .elements = elements_};
    job.encoded = room(spec, kStreams - 1);
    job.targets = keep<void*>({sum_});
    job.target_count = 1;
    const auto table = table_of(job);
    return time_of(runs_, [&] { expect_ok(gpu::reduce(table)); });
  }
  double encoded() const { return encoded_; }  // bytes of the last encoding

 private:
  uint64_t used_bytes(const EncodeJob& job) {
    const auto table = table_of(job);
    expect_ok(gpu::encode(table));
    Segment<EncodeJob> segment;
    copy_from_device(&segment, table.segments, sizeof(segment));
    return segment.outcome.encoded_bytes;
  }
  std::span<std::byte> room(const CodecSpec& spec, uint32_t stream) const {
    return {streams_[stream], encoded_bytes(spec, DType::kF32, elements_)};
  }
  template <class T>
  T* keep(const std::vector<T>& values) {
    kept_.push_back(device_allocate(values.size() * sizeof(T)));
    copy_to_device(kept_.back(), values.data(), values.size() * sizeof(T));
    return static_cast<T*>(kept_.back());
  }
  template <class Job>
  cuda::Table<Job> table_of(const Job& job) {
    std::vector<Segment<Job>> segments = {{.job = job}};
    auto table = cuda::describe_table<Job>(device_shape(), segments, nullptr);
    table.segments = keep(segments);
    if (table.work.bytes > 0) {
      kept_.push_back(device_allocate(table.work.bytes));
      table.work.memory = static_cast<uint8_t*>(kept_.back());
    }
    return table;
  }

  uint64_t elements_;
  const Runs runs_;
  float *values_, *sum_;
  std::byte* streams_[kStreams];
  double encoded_ = 0;
  std::vector<void*> kept_;
};

class Report {
 public:
  void add(const char* operation, const CodecSpec& spec, size_t bytes, double moved, double ms,
           double copy_rate) {
    const double rate = moved / ms / 1e6, share = rate / copy_rate;
    std::printf("%-18s %-28s %5zu MiB %9.3f ms %8.1f GB/s  %.2f of copy%s\n", operation,
                to_string(spec).c_str(), bytes >> 20, ms, rate, share,
                share < kTarget ? "  (target 0.85)" : "");
    json_ += json_.empty() ? "[" : ",\n ";
    json_ += "{\"bench\": \"gpu\", \"case\": \"" + std::string(operation) + "/" + to_string(spec) +
             "/" + std::to_string(bytes >> 20) + "\", \"ms\": " + std::to_string(ms) +
             ", \"gb_per_s\": " + std::to_string(rate) +
             ", \"share_of_copy\": " + std::to_string(share) +
             ", \"target\": " + std::to_string(kTarget) + ", \"device\": \"" + device_name() +
             "\"}";
  }
  void write(const char* path) const {
    FILE* file = std::fopen(path, "w");
    if (file == nullptr) return;
    std::fprintf(file, "%s]\n", json_.c_str());
    std::fclose(file);
  }

 private:
  std::string json_;
};

std::vector<std::string> texts(const std::string& wanted) {
  std::vector<std::string> found = {
      "maxmin:4",  "maxmin:4,stochastic",   "maxmin:8",        "maxmin:2",    "bf16",
      "topk:0.01", "topk:0.01,values=fp16", "threshold:2.126", "randomk:0.01"};
  std::erase_if(found, [&](const std::string& each) { return each.find(wanted) == each.npos; });
  return found.empty() ? std::vector<std::string>{wanted} : found;
}

void measure(size_t bytes, const Runs& runs, const std::string& wanted, Report& report) {
  Bench bench(bytes, runs);
  const double values = static_cast<double>(bytes);
  const double copy_ms = bench.copy_ms(), copy_rate = 2 * values / copy_ms / 1e6;
  std::printf("copy of %zu MiB: %.3f ms, %.1f GB/s read and written\n", bytes >> 20, copy_ms,
              copy_rate);
  for (const std::string& text : texts(wanted)) {
    const CodecSpec spec = parse_codec_spec(text).value();
    const double encode_ms = bench.encode_ms(spec), encoded = bench.encoded();
    report.add("encode", spec, bytes, values + encoded, encode_ms, copy_rate);
    if (find_codec(spec.codec)->sparse) {
      report.add("decode", spec, bytes, values + encoded, bench.decode_ms(spec), copy_rate);
    } else {
      report.add("decode_add", spec, bytes, 2 * values + encoded, bench.decode_add_ms(spec),
                 copy_rate);
    }
    report.add("reduce_requantize", spec, bytes, 2 * values + kStreams * encoded,
               bench.reduce_ms(spec), copy_rate);
  }
}

}  // namespace
}  // namespace cgx::gpu

int main(int count, char** arguments) {
  using namespace cgx::gpu;
  const char *json = nullptr, *codec = "";
  bool brief = false;
  for (int i = 1; i < count; ++i) {
    if (std::strcmp(arguments[i], "--short") == 0) {
      brief = true;
    } else if (std::strcmp(arguments[i], "--json") == 0 && i + 1 < count) {
      json = arguments[++i];
    } else if (std::strcmp(arguments[i], "--codec") == 0 && i + 1 < count) {
      codec = arguments[++i];
    } else {
      std::fprintf(stderr, "usage: bench [--json FILE] [--short] [--codec TEXT]\n");
      return 2;
    }
  }
  if (!device_present()) {
    std::printf("skipped: no CUDA device\n");
    return 0;
  }
  std::printf("%s\n", device_name().c_str());
  Report report;
  if (brief) {
    measure(1 << 20, {1, 1}, codec, report);
  } else {
    for (const size_t mebibytes : {256, 1024}) measure(mebibytes << 20, {5, 4}, codec, report);
  }
  if (json) report.write(json);
  return 0;
}
