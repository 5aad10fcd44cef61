// The CUDA kernels give the scalar lane's bytes: random tables of segments, run by both, compared
// byte by byte with everything around them.
//
// usage: agree [tables per codec and operation] [seed] [codec]
// Prints one line; ends with 1 on a difference.
#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>

#include "tests/gpu/cases.h"
#include "tests/gpu/device.h"
#include "tests/gpu/image.h"
#include "tests/gpu/operations.h"

namespace cgx::gpu {
namespace {

using namespace kernels;
using cuda::Segment;
using cuda::Table;

template <class Job>
struct Operation;
template <>
struct Operation<EncodeJob> {
  static constexpr const char* kName = "encode";
  static constexpr auto kLaunch = gpu::encode;
  static uint64_t scalar(const EncodeJob& job, RangeStats& stats, uint64_t& used) {
    used = scalar_ops.codec(job.spec, job.source.dtype).encode(job, Tuning(), stats);
    return kNoBucket;
  }
};
template <>
struct Operation<DecodeJob> {
  static constexpr const char* kName = "decode";
  static constexpr auto kLaunch = gpu::decode;
  static uint64_t scalar(const DecodeJob& job, RangeStats& stats, uint64_t&) {
    return scalar_ops.codec(job.spec, job.dtype).decode(job, Tuning(), stats);
  }
};
template <>
struct Operation<DecodeAddJob> {
  static constexpr const char* kName = "decode_add";
  static constexpr auto kLaunch = gpu::decode_add;
  static uint64_t scalar(const DecodeAddJob& job, RangeStats& stats, uint64_t&) {
    return scalar_ops.codec(job.spec, DType::kF32).decode_add(job, Tuning(), stats);
  }
};
template <>
struct Operation<ReduceJob> {
  static constexpr const char* kName = "reduce";
  static constexpr auto kLaunch = gpu::reduce;
  static uint64_t scalar(const ReduceJob& job, RangeStats& stats, uint64_t& used) {
    return scalar_ops.codec(job.spec, job.dtype).reduce(job, Tuning(), stats, &used);
  }
};
template <>
struct Operation<CombineJob> {
  static constexpr const char* kName = "combine";
  static constexpr auto kLaunch = gpu::combine;
  static uint64_t scalar(const CombineJob& job, RangeStats& stats, uint64_t&) {
    return scalar_ops.codec(job.spec, job.dtype).combine(job, Tuning(), stats);
  }
};

bool same(const cuda::Outcome& outcome, const RangeStats& stats) {
  return outcome.nonfinite_buckets == stats.nonfinite_buckets &&
         outcome.saturated == stats.saturated &&
         std::bit_cast<uint64_t>(outcome.intended_sq) ==
             std::bit_cast<uint64_t>(stats.intended_sq) &&
         std::bit_cast<uint64_t>(outcome.sent_sq) == std::bit_cast<uint64_t>(stats.sent_sq);
}

constexpr int kSparseShare = 5;  // their buckets are large: one table where others have so many

class Comparison {
 public:
  Comparison() : device_(device_shape()) {
    tables_ = static_cast<uint8_t*>(device_allocate(Place::kCapacity));
  }
  ~Comparison() { device_free(tables_); }
  Comparison(const Comparison&) = delete;

  // Runs one random table on the device and its segments on the scalar lane.
  template <class Job>
  bool agree(const CodecSpec& spec, uint64_t seed) {
    image_.clear();
    Planner planner(image_, spec, seed);
    std::vector<Planned<Job>> planned(1 + planner.pick(planner.segments_max()));
    for (auto& segment : planned) segment = planner.template plan<Job>();
    image_.upload();

    const std::vector<Segment<Job>> found = launch(planned);
    std::vector<uint8_t> bytes = image_.download();
    bool good = true;
    for (size_t i = 0; i < planned.size(); ++i) {
      Place place(image_.host(), nullptr);
      const Job job = planned[i].job(place);
      RangeStats stats;
      uint64_t used = 0;
      const uint64_t bad_bucket = Operation<Job>::scalar(job, stats, used);
      const cuda::Outcome& outcome = found[i].outcome;
      if (outcome.bad_bucket != bad_bucket) {
        std::printf("segment %zu: bad bucket %" PRIu64 " instead of %" PRIu64 "\n", i,
                    outcome.bad_bucket, bad_bucket);
        good = false;
      } else if (bad_bucket != kNoBucket) {
        forget(planned[i].outputs, bytes.data());
        ++corrupt_;
      } else if (find_codec(spec.codec)->sparse && outcome.encoded_bytes != used) {
        std::printf("segment %zu: %" PRIu64 " bytes instead of %" PRIu64 "\n", i,
                    outcome.encoded_bytes, used);
        good = false;
      } else if (!same(outcome, stats)) {
        std::printf("segment %zu: %" PRIu64 " non-finite, %" PRIu64
                    " saturated, norms %g %g instead "
                    "of %" PRIu64 ", %" PRIu64 ", %g %g\n",
                    i, outcome.nonfinite_buckets, outcome.saturated, outcome.intended_sq,
                    outcome.sent_sq, stats.nonfinite_buckets, stats.saturated, stats.intended_sq,
                    stats.sent_sq);
        good = false;
      }
    }
    segments_ += planned.size();
    const auto [host, device] =
        std::mismatch(image_.host(), image_.host() + image_.used(), bytes.data());
    if (host != image_.host() + image_.used()) {
      std::printf("byte %td of %zu is %02x instead of %02x\n", host - image_.host(), bytes.size(),
                  *device, *host);
      good = false;
    }
    if (!good) {
      std::printf("%s of %s differs, seed %" PRIu64 "\n", Operation<Job>::kName,
                  to_string(spec).c_str(), seed);
    }
    return good;
  }

  size_t segments() const { return segments_; }
  size_t corrupt() const { return corrupt_; }

 private:
  template <class Job>
  std::vector<Segment<Job>> launch(const std::vector<Planned<Job>>& planned) {
    Place place(image_.device(), tables_);
    std::vector<Segment<Job>> segments;
    for (const auto& segment : planned) segments.push_back({.job = segment.job(place)});
    const size_t bytes = segments.size() * sizeof(Segment<Job>);
    auto* at = static_cast<Segment<Job>*>(device_allocate(bytes));
    Table<Job> table = cuda::describe_table<Job>(device_, segments, at);
    if (table.work.bytes > 0) {
      const std::vector<uint8_t> garbage(table.work.bytes, 0x5a);
      table.work.memory = static_cast<uint8_t*>(device_allocate(garbage.size()));
      copy_to_device(table.work.memory, garbage.data(), garbage.size());
    }
    table.norms = static_cast<cuda::Norms*>(device_allocate(table.buckets * sizeof(cuda::Norms)));
    copy_to_device(tables_, place.tables().data(), place.tables().size());
    copy_to_device(at, segments.data(), bytes);
    const Status status = Operation<Job>::kLaunch(table);
    if (!status.ok()) std::printf("%s\n", status.to_string().c_str());
    copy_from_device(segments.data(), at, bytes);
    device_free(at);
    device_free(table.norms);
    device_free(table.work.memory);
    return segments;
  }

  // What an operation leaves where it found damage is nobody's business.
  void forget(const std::vector<Region>& regions, uint8_t* bytes) {
    for (const Region& region : regions) {
      std::memset(image_.host() + region.offset, 0, region.bytes);
      std::memset(bytes + region.offset, 0, region.bytes);
    }
  }

  cuda::Device device_;
  Image image_;
  uint8_t* tables_;
  size_t segments_ = 0, corrupt_ = 0;
};

int run(int tables, uint64_t seed, std::string_view codec) {
  Comparison comparison;
  std::vector<CodecSpec> specs = all_specs();
  std::erase_if(specs, [&](const CodecSpec& spec) {
    const CodecRow& row = *find_codec(spec.codec);
    return !codec.empty() && codec != row.name;
  });
  int passed = 0, failed = 0;
  for (const CodecSpec& spec : specs) {
    const int enough =
        find_codec(spec.codec)->sparse ? (tables + kSparseShare - 1) / kSparseShare : tables;
    for (int i = 0; i < enough && failed < 10; ++i, ++seed) {
      for (const bool good :
           {comparison.agree<EncodeJob>(spec, seed), comparison.agree<DecodeJob>(spec, seed),
            comparison.agree<DecodeAddJob>(spec, seed), comparison.agree<ReduceJob>(spec, seed),
            comparison.agree<CombineJob>(spec, seed)}) {
        ++(good ? passed : failed);
      }
    }
  }
  std::printf(
      "%d passed, %d failed: tables of %zu codecs and strengths, %zu segments, %zu of them "
      "damaged, %s\n",
      passed, failed, specs.size(), comparison.segments(), comparison.corrupt(),
      device_name().c_str());
  return failed == 0 && passed > 0 ? 0 : 1;
}

}  // namespace
}  // namespace cgx::gpu

int main(int count, char** arguments) {
  if (!cgx::gpu::device_present()) {
    std::printf("skipped: no CUDA device\n");
    return 0;
  }
  return cgx::gpu::run(count > 1 ? std::atoi(arguments[1]) : 20,
                       count > 2 ? std::strtoull(arguments[2], nullptr, 0) : 1,
                       count > 3 ? arguments[3] : "");
}
