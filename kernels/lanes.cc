// The lanes as codec.h shows them: which exist, which run here, and the checks that they share.
#ifdef CGX_HAS_AVX2
#include <cpuid.h>
#endif
#ifdef __SSE__
#include <xmmintrin.h>
#endif

#include <string>

#include "kernels/codec.h"
#include "kernels/ops.h"

namespace cgx::kernels {
namespace {

Status corrupt(std::string message) {
  return {StatusCode::kCORRUPT, std::move(message)};
}

Status check_size(const CodecSpec& spec, DType dtype, uint64_t elements,
                  std::span<const std::byte> encoded) {
  CGX_ASSIGN_OR_RETURN(const uint64_t expected, encoded_length(spec, dtype, elements, encoded));
  if (encoded.size() == expected) return {};
  return corrupt(std::to_string(encoded.size()) + " encoded bytes where " + to_string(spec) +
                 " has " + std::to_string(expected) + " for " + std::to_string(elements) +
                 " values of " + std::string(dtype_name(dtype)));
}

Status check_buckets(const CodecSpec& spec, uint64_t bad_bucket) {
  if (bad_bucket == kNoBucket) return {};
  return corrupt("bucket " + std::to_string(bad_bucket) + " of the range has metadata that no " +
                 to_string(spec) + " encoder writes");
}

Status check_parts(std::span<const Contribution> parts, const CodecSpec& spec, DType dtype,
                   uint64_t elements) {
  for (const Contribution& part : parts) {
    // Small floats are all added in fp32.
    const bool fits = part.raw.dtype == dtype ||
                      (dtype_is_small_float(part.raw.dtype) && dtype_is_small_float(dtype));
    CGX_ASSERT(part.kind != Contribution::Kind::kRaw || fits);
    if (part.kind != Contribution::Kind::kEncoded) continue;
    CGX_RETURN_IF_ERROR(check_size(spec, dtype, elements, part.encoded));
  }
  return {};
}

bool always() {
  return true;
}
constexpr Lane kScalar = {"scalar", always, &scalar_ops};

#ifdef CGX_HAS_AVX512
bool avx512_viable() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
constexpr Lane kAvx512 = {"avx512", avx512_viable, &avx512_ops};
#endif

#ifdef CGX_HAS_AVX2
// Asked of cpuid: clang 14 does not know the name "f16c". avx2 says that the system keeps the
// registers.
bool f16c() {
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx & bit_F16C) != 0;
}
bool avx2_viable() {
  return __builtin_cpu_supports("avx2") && f16c();
}
constexpr Lane kAvx2 = {"avx2", avx2_viable, &avx2_ops};
#endif

const Lane* const kLanes[] = {
#ifdef CGX_HAS_AVX512
    &kAvx512,
#endif
#ifdef CGX_HAS_AVX2
    &kAvx2,
#endif
    &kScalar};

}  // namespace

uint64_t Lane::encode(const EncodeJob& job, RangeStats& stats) const {
  CGX_ASSERT(job.encoded.size() == encoded_bytes(job.spec, job.source.dtype, job.elements));
  return ops->codec(job.spec, job.source.dtype).encode(job, tuning, stats);
}

Status Lane::decode(const DecodeJob& job, RangeStats& stats) const {
  CGX_RETURN_IF_ERROR(check_size(job.spec, job.dtype, job.elements, job.encoded));
  return check_buckets(job.spec, ops->codec(job.spec, job.dtype).decode(job, tuning, stats));
}

Result<uint64_t> Lane::reduce(const ReduceJob& job, RangeStats& stats) const {
  CGX_ASSERT(job.encoded.size() == encoded_bytes(job.spec, job.dtype, job.elements));
  CGX_RETURN_IF_ERROR(check_parts(job.contributions, job.spec, job.dtype, job.elements));
  uint64_t used = 0;
  const uint64_t bad_bucket = ops->codec(job.spec, job.dtype).reduce(job, tuning, stats, &used);
  CGX_RETURN_IF_ERROR(check_buckets(job.spec, bad_bucket));
  return used;
}

Status Lane::combine(const CombineJob& job, RangeStats& stats) const {
  CGX_RETURN_IF_ERROR(check_parts(job.contributions, job.spec, job.dtype, job.elements));
  return check_buckets(job.spec, ops->codec(job.spec, job.dtype).combine(job, tuning, stats));
}

Status Lane::decode_add(const DecodeAddJob& job, RangeStats& stats) const {
  CGX_RETURN_IF_ERROR(check_size(job.spec, DType::kF32, job.elements, job.encoded));
  return check_buckets(job.spec, ops->codec(job.spec, DType::kF32).decode_add(job, tuning, stats));
}

void Lane::local_reduce(const LocalReduceJob& job) const {
  ops->local_reduce(job, tuning);
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

void restore_float_mode() {
#ifdef __SSE__
  constexpr unsigned kAsStarted = 0x1f80, kExceptionsSeen = 0x3f;
  if ((_mm_getcsr() & ~kExceptionsSeen) != kAsStarted) _mm_setcsr(kAsStarted);
#endif
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
