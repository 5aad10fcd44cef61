// How fast the codecs are on one core, as shares of what memory allows in the same run.
//
//   bench_codec [--json [FILE]] [--quick] [--size BYTES] [--codec TEXT] [--isa LANE] [--op TEXT]
// CPU time of this thread, medians, every case interleaved with its roofline. GB/s count bytes of
// uncompressed fp32 (performance of decode_add and the rooflines: bytes of the array once).
#include <sys/mman.h>
#include <time.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/codec.h"
#include "tests/bench/rooflines.h"

namespace cgx::bench {
namespace {

using kernels::Lane;

struct Options {
  std::string json, codec, op, isa = "auto";
  size_t bytes = 256u << 20;
  bool quick = false, json_wanted = false;
};

uint64_t thread_ns() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}
double thread_seconds() {
  return 1e-9 * static_cast<double>(thread_ns());
}

// As a daemon tunes it.
Lane tuned(const Lane& lane) {
  return lane.with(kernels::measure_tuning(lane, thread_ns));
}

uint64_t encode(const Lane& lane, const kernels::EncodeJob& job) {
  kernels::RangeStats stats;
  return lane.encode(job, stats);
}

double median(std::vector<double> samples) {
  std::nth_element(samples.begin(), samples.begin() + samples.size() / 2, samples.end());
  return samples[samples.size() / 2];
}

// An array in huge pages, touched.
class Array {
 public:
  explicit Array(size_t bytes) : bytes_((bytes + kHuge - 1) / kHuge * kHuge) {
    void* memory =
        mmap(nullptr, bytes_ + kHuge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CGX_ASSERT(memory != MAP_FAILED);
    const auto address = reinterpret_cast<uintptr_t>(memory);
    mapped_ = memory;
    data_ = reinterpret_cast<std::byte*>((address + kHuge - 1) / kHuge * kHuge);
    madvise(data_, bytes_, MADV_HUGEPAGE);
    std::fill(data_, data_ + bytes_, std::byte{0});
  }
  Array(const Array&) = delete;
  ~Array() { munmap(mapped_, bytes_ + kHuge); }

  float* floats() { return reinterpret_cast<float*>(data_); }
  std::span<std::byte> bytes(size_t count) { return {data_, count}; }

 private:
  static constexpr size_t kHuge = 2u << 20;
  size_t bytes_;
  void* mapped_;
  std::byte* data_;
};

struct Case {
  std::string name, peer_name;
  double bytes;  // of fp32, for GB/s
  std::function<void()> ours, peer;
  double peer_rate = 0;  // instead of a peer: a fixed GB/s
  std::vector<double> ours_s, peer_s;
};

class Bench {
 public:
  Bench(const Options& options, const Lane& lane)
      : options_(options),
        lane_(lane),
        elements_(options.bytes / sizeof(float)),
        source_(options.bytes),
        other_(options.bytes),
        result_(options.bytes),
        encoded_(options.bytes + (4u << 20)) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal(0.0f, 0.01f);
    std::vector<float> period((1u << 20) + 12289);
    for (float& x : period) x = normal(random);
    for (size_t i = 0; i < elements_; ++i) source_.floats()[i] = period[i % period.size()];
  }

  void add_cases() {
    for (const char* codec : {"maxmin:4", "maxmin:2", "maxmin:8", "maxmin:4,stochastic",
                              "maxmin:2,stochastic", "maxmin:8,stochastic"}) {
      add_encode(codec);
    }
    for (const char* codec : {"bf16", "fp16", "fp32", "fp8:e4m3", "fp8:e5m2"}) add_encode(codec);
    for (const char* codec :
         {"efsign", "onebit", "terngrad", "terngrad,clip", "int8", "qsgd:4", "qsgd:4,stochastic",
          "qsgd:4,norm=l2", "natural:4", "natural:4,stochastic"}) {
      add_encode(codec);
    }
    for (const char* codec : {"maxmin:4", "maxmin:2", "maxmin:8", "bf16", "fp16", "fp8:e4m3",
                              "efsign", "onebit", "terngrad", "natural:4", "int8"}) {
      add_decode(codec);
      add_decode_add(codec);
    }
    for (const char* codec : {"maxmin:4", "maxmin:8", "efsign", "onebit"}) {
      add_encode_feedback(codec);
    }
    add_sparse();
    add_encode_scaled("maxmin:4");
    for (const char* codec : {"maxmin:4", "maxmin:4,stochastic"}) add_reduce(codec);
    for (const char* codec : {"maxmin:4", "maxmin:4,stochastic", "maxmin:8", "efsign", "fp32"}) {
      add_reduce_in_place(codec);
    }
    add_local_reduce();
    add_avx2_share();
  }

  void add_sparse() {
    for (const char* codec : {"topk:0.01", "threshold:0.03"}) {
      add_encode(codec);
      add_decode(codec);
      add_encode_feedback(codec);
      add_reduce(codec);
    }
    add_encode("randomk:0.01");
    add_decode("randomk:0.01");
    add_encode_feedback("randomk:0.01");
    add_reduce("randomk:0.01");
  }

  void run() {
    const int rounds = options_.quick ? 7 : 11;
    for (Case& c : cases_) c.ours();  // warm up
    for (int round = 0; round < rounds; ++round) {
      for (Case& c : cases_) {
        c.ours_s.push_back(timed(c.ours));
        if (c.peer) c.peer_s.push_back(timed(c.peer));
      }
    }
  }

  void report() const {
    FILE* json = open_json();
    std::printf("lane %s, %.1f MiB of fp32, bucket 512, anonymous huge pages\n", lane_.name,
                static_cast<double>(options_.bytes) / (1 << 20));
    std::printf("tuning: %s\n", to_string(lane_.tuning).c_str());
    std::printf("%-34s %8s  %-26s %8s %7s\n", "case", "GB/s", "against", "GB/s", "ratio");
    for (const Case& c : cases_) {
      const double ours = c.bytes / median(c.ours_s) * 1e-9;
      const double peer = c.peer ? c.bytes / median(c.peer_s) * 1e-9 : c.peer_rate;
      std::printf("%-34s %8.2f  %-26s %8.2f %7.3f\n", c.name.c_str(), ours, c.peer_name.c_str(),
                  peer, ours / peer);
      if (json == nullptr) continue;
      std::fprintf(json,
                   "{\"bench\":\"codec\",\"case\":\"%s\",\"ours\":%.3f,\"peer_name\":\"%s\","
                   "\"peer\":%.3f,\"ratio\":%.4f,\"unit\":\"GB/s\"}\n",
                   c.name.c_str(), ours, c.peer_name.c_str(), peer, ours / peer);
    }
    if (json != nullptr && json != stdout) std::fclose(json);
  }

  bool empty() const { return cases_.empty(); }

 private:
  FILE* open_json() const {
    if (!options_.json_wanted) return nullptr;
    return options_.json.empty() ? stdout : std::fopen(options_.json.c_str(), "w");
  }

  // Small arrays are worked on several times, after once unmeasured, so that caches hold them.
  double timed(const std::function<void()>& call) const {
    const int repeat = static_cast<int>(std::max<size_t>(1, (64u << 20) / options_.bytes / 4));
    if (repeat > 1) call();
    const double start = thread_seconds();
    for (int i = 0; i < repeat; ++i) call();
    return (thread_seconds() - start) / repeat;
  }

  static CodecSpec spec_of(const std::string& text) {
    auto spec = kernels::parse_codec_spec(text);
    CGX_ASSERT(spec.ok());
    return *spec;
  }
  // "maxmin4-nearest" for encoders, "maxmin4" where rounding does not matter.
  static std::string case_name(const CodecSpec& spec, bool rounding) {
    const kernels::CodecRow& row = *kernels::find_codec(spec.codec);
    std::string name = row.name;
    if (row.strength == kernels::Strength::kFormat) return name + (spec.bits == 4 ? "" : "-e5m2");
    if (row.strength == kernels::Strength::kBits) name += std::to_string(spec.bits);
    if (spec.flags & CodecSpec::kL2Norm) name += "-l2";
    if (spec.flags & CodecSpec::kClip) name += "-clip";
    if (!rounding || row.strength != kernels::Strength::kBits) return name;
    return name + (spec.stochastic() ? "-stochastic" : "-nearest");
  }
  bool wanted(const std::string& op, const std::string& codec) const {
    return op.find(options_.op) != std::string::npos &&
           codec.find(options_.codec) != std::string::npos;
  }
  Case* add(const std::string& op, const std::string& codec, double bytes) {
    if (!wanted(op, codec)) return nullptr;
    return &cases_.emplace_back(Case{op + "/" + codec, "", bytes, {}, {}, 0, {}, {}});
  }

  void read_peer(Case& c) {
    c.peer_name = "read roofline";
    c.peer = [this] { sink_ = read_loop(source_.floats(), elements_); };
  }

  kernels::EncodeJob encode_job(const CodecSpec& spec, std::span<std::byte> encoded,
                                size_t elements, const void* const* ranks) {
    kernels::EncodeJob job{.spec = spec, .elements = elements};
    job.source = {.ranks = ranks, .rank_count = 1};
    job.key = {0x1234, 0};
    job.encoded = encoded;
    return job;
  }
  kernels::EncodeJob whole_job(const CodecSpec& spec) {
    source_pointer_ = source_.floats();
    auto job =
        encode_job(spec, encoded_.bytes(bytes_of(spec, elements_)), elements_, &source_pointer_);
    return job;
  }
  static uint64_t bytes_of(const CodecSpec& spec, size_t elements) {
    return kernels::encoded_bytes(spec, DType::kF32, elements);
  }

  // A daemon encodes part after part into frames that it has just sent, so that caches hold them.
  static constexpr size_t kPart = (512u << 10) / sizeof(float), kFrames = 4;
  void encode_parts(const Lane& lane, kernels::EncodeJob job) {
    const kernels::RawView whole = job.source;
    float* const residual_out = job.residual_out;
    for (size_t first = 0, i = 0; first < elements_; first += kPart, ++i) {
      const void* rank = static_cast<const float*>(whole.ranks[0]) + first;
      job.source.ranks = &rank;
      if (whole.residual_in) job.source.residual_in = whole.residual_in + first;
      if (residual_out) job.residual_out = residual_out + first;
      job.elements = std::min(kPart, elements_ - first);
      job.encoded = frame_of(encoded_, job.spec, i, job.elements);
      encode(lane, job);
    }
  }

  void add_encode(const std::string& text) {
    const CodecSpec spec = spec_of(text);
    Case* c = add("encode", case_name(spec, true), static_cast<double>(options_.bytes));
    if (c == nullptr) return;
    const auto job = whole_job(spec);
    c->ours = [this, job] { encode_parts(lane_, job); };
    read_peer(*c);
    if (kernels::find_codec(spec.codec)->shared_draws) {
      c->peer_name = "20 GB/s";
      c->peer = nullptr;
      c->peer_rate = 20;
    }
  }

  void add_encode_scaled(const std::string& text) {
    const CodecSpec spec = spec_of(text);
    Case* c = add("encode_avg", case_name(spec, true), static_cast<double>(options_.bytes));
    if (c == nullptr) return;
    auto job = whole_job(spec);
    job.source.scale = 1.0 / 3;
    c->ours = [this, job] { encode_parts(lane_, job); };
    read_peer(*c);
  }

  void add_encode_feedback(const std::string& text) {
    const CodecSpec spec = spec_of(text);
    Case* c = add("encode_ef", case_name(spec, false), static_cast<double>(options_.bytes));
    if (c == nullptr) return;
    auto job = whole_job(spec);
    job.source.residual_in = other_.floats();
    job.residual_out = result_.floats();
    c->ours = [this, job] { encode_parts(lane_, job); };
    c->peer_name = "2 reads, 1 stream-write";
    c->peer = [this] {
      two_read_one_write_loop(source_.floats(), other_.floats(), result_.floats(), elements_);
    };
  }

  // Streams to decode are encoded once, on demand, each in its own array.
  struct Stream {
    explicit Stream(size_t bytes) : array(bytes) {}
    std::span<std::byte> bytes() { return array.bytes(used); }
    Array array;
    uint64_t used = 0;
  };
  std::shared_ptr<Stream> stream_of(const CodecSpec& spec, size_t elements) {
    const uint64_t bytes = bytes_of(spec, elements);
    auto stream = std::make_shared<Stream>(bytes);
    source_pointer_ = source_.floats();
    stream->used =
        encode(lane_, encode_job(spec, stream->array.bytes(bytes), elements, &source_pointer_));
    return stream;
  }

  void decode_stream(const CodecSpec& spec, std::span<std::byte> encoded, size_t elements,
                     float* target) {
    void* targets = target;
    kernels::DecodeJob job{.spec = spec, .encoded = encoded, .elements = elements};
    job.targets = &targets;
    job.target_count = 1;
    kernels::RangeStats stats;
    CGX_ASSERT(lane_.decode(job, stats).ok());
  }

  void add_stream(const CodecSpec& spec, std::span<std::byte> encoded, size_t elements,
                  float* sum) {
    kernels::DecodeAddJob job{.spec = spec, .encoded = encoded, .elements = elements, .sum = sum};
    kernels::RangeStats stats;
    CGX_ASSERT(lane_.decode_add(job, stats).ok());
  }

  void add_decode(const std::string& text) {
    const CodecSpec spec = spec_of(text);
    Case* c = add("decode", case_name(spec, false), static_cast<double>(options_.bytes));
    if (c == nullptr) return;
    const auto stream = stream_of(spec, elements_);
    c->ours = [=, this] { decode_stream(spec, stream->bytes(), elements_, result_.floats()); };
    c->peer_name = "stream-write roofline";
    c->peer = [this] { stream_write_loop(result_.floats(), elements_, 1.0f); };
    if (kernels::find_codec(spec.codec)->quantizer) return;
    c->peer_name = "read half, stream-write";
    c->peer = [this] { widen_loop(other_.floats(), result_.floats(), elements_); };
  }

  void add_decode_add(const std::string& text) {
    const CodecSpec spec = spec_of(text);
    Case* c = add("decode_add", case_name(spec, false), static_cast<double>(options_.bytes));
    if (c == nullptr) return;
    const auto stream = stream_of(spec, elements_);
    c->ours = [=, this] { add_stream(spec, stream->bytes(), elements_, result_.floats()); };
    c->peer_name = "read+write in place";
    c->peer = [this] { in_place_loop(result_.floats(), elements_, 1.0f); };
  }

  // Four machines' streams of 6 MiB, fused, against decode, add and encode one after the other.
  void add_reduce(const std::string& text) {
    const size_t bytes = std::min<size_t>(6u << 20, options_.bytes);
    const size_t elements = bytes / sizeof(float);
    constexpr int kRepeat = 16;
    const CodecSpec spec = spec_of(text);
    const std::string name = case_name(spec, spec.stochastic());
    Case* fused = add("reduce_requantize", name, static_cast<double>(bytes * kRepeat));
    if (fused == nullptr) return;
    auto streams = std::make_shared<std::vector<std::shared_ptr<Stream>>>();
    auto parts = std::make_shared<std::vector<kernels::Contribution>>();
    for (int i = 0; i < 4; ++i) {
      streams->push_back(stream_of(spec, elements));
      kernels::Contribution part;
      part.kind = kernels::Contribution::Kind::kEncoded;
      part.encoded = streams->back()->bytes();
      parts->push_back(part);
    }
    fused->ours = [=, this] {
      kernels::ReduceJob job{.spec = spec, .contributions = *parts, .elements = elements};
      job.key = {0x1234, 0};  // as the streams': shared draws ask for it
      job.encoded = encoded_.bytes(bytes_of(spec, elements));
      kernels::RangeStats stats;
      for (int i = 0; i < kRepeat; ++i) CGX_ASSERT(lane_.reduce(job, stats).ok());
      (void)streams;
    };
    fused->peer_name = "decode, add, encode in turn";
    fused->peer = [=, this] {
      for (int i = 0; i < kRepeat; ++i) reduce_in_turn(spec, *parts, elements);
    };
    Case rate{"reduce_requantize_rate/" + name,
              "14 GB/s of output",
              fused->bytes,
              fused->ours,
              {},
              14.0,
              {},
              {}};
    cases_.push_back(rate);
  }

  void reduce_in_turn(const CodecSpec& spec, const std::vector<kernels::Contribution>& parts,
                      size_t elements) {
    float* sum = result_.floats();
    float* one = other_.floats();
    std::fill(sum, sum + elements, 0.0f);
    for (const kernels::Contribution& part : parts) {
      auto* bytes = const_cast<std::byte*>(part.encoded.data());
      decode_stream(spec, {bytes, part.encoded.size()}, elements, one);
      two_read_one_write_plain(sum, one, sum, elements);
    }
    const void* rank = sum;
    encode(lane_, encode_job(spec, encoded_.bytes(bytes_of(spec, elements)), elements, &rank));
  }

  // What the owner of a part does on two machines: the own gradient and one received frame to the
  // encoded sum, and to the result in place of the gradient. The frames have just come and go.
  void add_reduce_in_place(const std::string& text) {
    const CodecSpec spec = spec_of(text);
    Case* c = add("reduce_in_place", case_name(spec, spec.stochastic()),
                  static_cast<double>(options_.bytes));
    if (c == nullptr) return;
    const auto received = std::make_shared<Array>(kFrames * bytes_of(spec, kPart));
    source_pointer_ = source_.floats();
    for (size_t i = 0; i < kFrames; ++i) {
      encode(lane_, encode_job(spec, frame_of(*received, spec, i, kPart), kPart, &source_pointer_));
    }
    c->ours = [=, this] { reduce_parts(spec, *received); };
    c->peer_name = "read+write in place";
    c->peer = [this] { in_place_loop(other_.floats(), elements_, 0.0f); };
  }

  // The first `elements` values of one of the frames that a daemon has in hand.
  static std::span<std::byte> frame_of(Array& frames, const CodecSpec& spec, size_t i,
                                       size_t elements) {
    const size_t frame = bytes_of(spec, kPart);
    return frames.bytes(kFrames * frame).subspan(i % kFrames * frame, bytes_of(spec, elements));
  }

  void reduce_parts(const CodecSpec& spec, Array& received) {
    for (size_t first = 0, i = 0; first < elements_; first += kPart, ++i) {
      void* const own = other_.floats() + first;
      const size_t elements = std::min(kPart, elements_ - first);
      kernels::Contribution parts[2];
      parts[0].kind = kernels::Contribution::Kind::kRaw;
      parts[0].raw = {.ranks = &own, .rank_count = 1, .scale = 0.5};
      parts[1].kind = kernels::Contribution::Kind::kEncoded;
      parts[1].encoded = frame_of(received, spec, i, elements);
      kernels::ReduceJob job{.spec = spec, .contributions = parts, .elements = elements};
      job.encoded = frame_of(encoded_, spec, i, elements);
      job.targets = &own;
      job.target_count = 1;
      kernels::RangeStats stats;
      CGX_ASSERT(lane_.reduce(job, stats).ok());
    }
  }

  // Two ranks on one machine, in place.
  void add_local_reduce() {
    Case* c = add("local_reduce", "fp32", static_cast<double>(options_.bytes));
    if (c == nullptr) return;
    c->ours = [this] {
      const void* ranks[] = {other_.floats(), result_.floats()};
      void* targets[] = {other_.floats(), result_.floats()};
      kernels::LocalReduceJob job{.elements = elements_, .targets = targets, .target_count = 2};
      job.source = {.ranks = ranks, .rank_count = 2, .scale = 0.5};
      lane_.local_reduce(job);
    };
    c->peer_name = "two arrays in place";
    c->peer = [this] {
      in_place_loop(other_.floats(), elements_, 0.0f);
      in_place_loop(result_.floats(), elements_, 0.0f);
    };
  }

  void add_avx2_share() {
    const auto avx2 = kernels::find_lane("avx2"), avx512 = kernels::find_lane("avx512");
    if (!avx2.ok() || !avx512.ok()) return;
    Case* c = add("avx2", "maxmin4-nearest", static_cast<double>(options_.bytes));
    if (c == nullptr) return;
    const auto job = whole_job(spec_of("maxmin:4"));
    const Lane narrow = tuned(**avx2), wide = tuned(**avx512);
    c->ours = [=, this] { encode_parts(narrow, job); };
    c->peer_name = "AVX-512 lane";
    c->peer = [=, this] { encode_parts(wide, job); };
  }

  Options options_;
  const Lane& lane_;
  size_t elements_;
  Array source_, other_, result_, encoded_;
  const void* source_pointer_ = nullptr;
  volatile float sink_ = 0;
  std::vector<Case> cases_;
};

int run_bench(int argc, char** argv) {
  Options options;
  CLI::App app("Speed of the codecs on one core, as shares of what memory allows");
  CLI::Option* json =
      app.add_option("--json", options.json, "write JSON lines to this file, or to standard output")
          ->expected(0, 1);
  app.add_flag("--quick", options.quick, "64 MiB and 7 rounds");
  app.add_option("--size", options.bytes, "bytes of fp32")->transform(CLI::AsSizeValue(false));
  app.add_option("--codec", options.codec, "only codecs that contain this text, e.g. maxmin4");
  app.add_option("--isa", options.isa, "lane: auto, avx512, avx2, scalar");
  app.add_option("--op", options.op, "only operations that contain this text, e.g. decode");
  CLI11_PARSE(app, argc, argv);
  options.json_wanted = json->count() != 0;
  if (options.quick && app.count("--size") == 0) options.bytes = 64u << 20;
  options.bytes = (options.bytes + 65535) / 65536 * 65536;
  const auto lane = kernels::find_lane(options.isa);
  if (!lane.ok()) {
    std::fprintf(stderr, "%s\n", lane.status().message().c_str());
    return 2;
  }
  if (!__builtin_cpu_supports("avx512f")) {
    std::printf("skipped: the rooflines need AVX-512\n");
    return 0;
  }
  const Lane as_daemon = tuned(**lane);
  Bench bench(options, as_daemon);
  bench.add_cases();
  if (bench.empty()) {
    std::fprintf(stderr, "no case matches --op %s --codec %s\n", options.op.c_str(),
                 options.codec.c_str());
    return 2;
  }
  bench.run();
  bench.report();
  return 0;
}

}  // namespace
}  // namespace cgx::bench

int main(int argc, char** argv) {
  return cgx::bench::run_bench(argc, argv);
}
