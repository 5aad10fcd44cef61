// The lanes as codec.h shows them: which exist, which run here, and the checks that they share.
#ifdef CGX_LANES_X86
#include <cpuid.h>
#endif

#include <string>

#include "kernels/codec.h"
#include "kernels/ops.h"

namespace cgx::kernels {
namespace {

Status corrupt(std::string message) {
  return {StatusCode::kCORRUPT, std::move(message)};
}

Status check_size(const CodecSpec& spec, DType dtype, uint64_t elements, size_t bytes) {
  const uint64_t expected = encoded_bytes(spec, dtype, elements);
  if (bytes == expected) return {};
  return corrupt(std::to_string(bytes) + " encoded bytes where " + to_string(spec) + " has " +
                 std::to_string(expected) + " for " + std::to_string(elements) + " values of " +
                 std::string(dtype_name(dtype)));
}

Status check_buckets(const CodecSpec& spec, uint64_t bad_bucket) {
  if (bad_bucket == kNoBucket) return {};
  return corrupt("bucket " + std::to_string(bad_bucket) + " of the range has metadata that no " +
                 to_string(spec) + " encoder writes");
}

#ifdef CGX_LANES_X86
// AMD's family number, as cpuid spells it; 0 on other vendors.
uint32_t amd_family() {
  uint32_t eax, ebx, ecx, edx;
  if (!__builtin_cpu_is("amd") || !__get_cpuid(1, &eax, &ebx, &ecx, &edx)) return 0;
  return (eax >> 8 & 15) + (eax >> 20 & 255);
}
#endif

template <const LaneOps* ops>
RangeStats encode(const EncodeJob& job) {
  CGX_ASSERT(job.encoded.size() == encoded_bytes(job.spec, job.source.dtype, job.elements));
  RangeStats stats;
  ops->codec(job.spec, job.source.dtype).encode(job, stats);
  return stats;
}

template <const LaneOps* ops>
Status decode(const DecodeJob& job, RangeStats& stats) {
  CGX_RETURN_IF_ERROR(check_size(job.spec, job.dtype, job.elements, job.encoded.size()));
  return check_buckets(job.spec, ops->codec(job.spec, job.dtype).decode(job, stats));
}

template <const LaneOps* ops>
Status reduce(const ReduceJob& job, RangeStats& stats) {
  CGX_ASSERT(job.encoded.size() == encoded_bytes(job.spec, job.dtype, job.elements));
  for (const Contribution& part : job.contributions) {
    CGX_ASSERT(part.kind != Contribution::Kind::kRaw || part.raw.dtype == job.dtype);
    if (part.kind != Contribution::Kind::kEncoded) continue;
    CGX_RETURN_IF_ERROR(check_size(job.spec, job.dtype, job.elements, part.encoded.size()));
  }
  return check_buckets(job.spec, ops->codec(job.spec, job.dtype).reduce(job, stats));
}

template <const LaneOps* ops>
Status decode_add(const DecodeAddJob& job, RangeStats& stats) {
  CGX_RETURN_IF_ERROR(check_size(job.spec, DType::kF32, job.elements, job.encoded.size()));
  return check_buckets(job.spec, ops->codec(job.spec, DType::kF32).decode_add(job, stats));
}

template <const LaneOps* ops>
void local_reduce(const LocalReduceJob& job) {
  ops->local_reduce(job);
}

template <const LaneOps* ops>
constexpr Lane make_lane(const char* name, bool (*viable)()) {
  return {name, viable, encode<ops>, decode<ops>, reduce<ops>, local_reduce<ops>, decode_add<ops>};
}

bool always() {
  return true;
}
constexpr Lane kScalar = make_lane<&kScalarOps>("scalar", always);

#ifdef CGX_LANES_X86
bool avx512_viable() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
// Asked of cpuid: clang 14 does not know the name "f16c". avx2 says that the system keeps the
// registers.
bool f16c() {
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx & bit_F16C) != 0;
}
bool avx2_viable() {
  return __builtin_cpu_supports("avx2") && f16c();
}
constexpr Lane kAvx512 = make_lane<&kAvx512Ops>("avx512", avx512_viable);
constexpr Lane kAvx2 = make_lane<&kAvx2Ops>("avx2", avx2_viable);
const Lane* const kLanes[] = {&kAvx512, &kAvx2, &kScalar};
#else
const Lane* const kLanes[] = {&kScalar};
#endif

}  // namespace

// Measured (README.md "Speed"): Zen 5 gains a quarter from 10 KiB, Zen 4 loses as much.
uint32_t read_ahead_bytes() {
#ifdef CGX_LANES_X86
  static const uint32_t bytes = amd_family() >= 0x1a ? 10240 : 0;
  return bytes;
#else
  return 0;
#endif
}

std::span<const Lane* const> lanes() {
  return kLanes;
}

const Lane& best_lane() {
  for (const Lane* lane : kLanes) {
    if (lane->viable()) return *lane;
  }
  return kScalar;
}

Result<const Lane*> find_lane(std::string_view name) {
  if (name == "auto") return &best_lane();
  std::string names = "auto";
  for (const Lane* lane : kLanes) {
    if (lane->name == name && lane->viable()) return lane;
    names.append(", ").append(lane->name).append(lane->viable() ? "" : " (not on this machine)");
  }
  return invalid_argument("lane \"" + std::string(name) + "\" cannot run here; known are " + names);
}

}  // namespace cgx::kernels
