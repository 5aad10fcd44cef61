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

#ifdef CGX_LANES_X86
// AMD's family number, as cpuid spells it; 0 on other vendors.
uint32_t amd_family() {
  uint32_t eax, ebx, ecx, edx;
  if (!__builtin_cpu_is("amd") || !__get_cpuid(1, &eax, &ebx, &ecx, &edx)) return 0;
  return (eax >> 8 & 15) + (eax >> 20 & 255);
}
#endif

Status check_parts(std::span<const Contribution> parts, const CodecSpec& spec, DType dtype,
                   uint64_t elements) {
  for (const Contribution& part : parts) {
    CGX_ASSERT(part.kind != Contribution::Kind::kRaw || part.raw.dtype == dtype);
    if (part.kind != Contribution::Kind::kEncoded) continue;
    CGX_RETURN_IF_ERROR(check_size(spec, dtype, elements, part.encoded));
  }
  return {};
}

template <const LaneOps* ops>
uint64_t encode(const EncodeJob& job, RangeStats& stats) {
  CGX_ASSERT(job.encoded.size() == encoded_bytes(job.spec, job.source.dtype, job.elements));
  return ops->codec(job.spec, job.source.dtype).encode(job, stats);
}

template <const LaneOps* ops>
Status decode(const DecodeJob& job, RangeStats& stats) {
  CGX_RETURN_IF_ERROR(check_size(job.spec, job.dtype, job.elements, job.encoded));
  return check_buckets(job.spec, ops->codec(job.spec, job.dtype).decode(job, stats));
}

template <const LaneOps* ops>
Result<uint64_t> reduce(const ReduceJob& job, RangeStats& stats) {
  CGX_ASSERT(job.encoded.size() == encoded_bytes(job.spec, job.dtype, job.elements));
  CGX_RETURN_IF_ERROR(check_parts(job.contributions, job.spec, job.dtype, job.elements));
  uint64_t used = 0;
  const uint64_t bad_bucket = ops->codec(job.spec, job.dtype).reduce(job, stats, &used);
  CGX_RETURN_IF_ERROR(check_buckets(job.spec, bad_bucket));
  return used;
}

template <const LaneOps* ops>
Status combine(const CombineJob& job, RangeStats& stats) {
  CGX_RETURN_IF_ERROR(check_parts(job.contributions, job.spec, job.dtype, job.elements));
  return check_buckets(job.spec, ops->codec(job.spec, job.dtype).combine(job, stats));
}

template <const LaneOps* ops>
Status decode_add(const DecodeAddJob& job, RangeStats& stats) {
  CGX_RETURN_IF_ERROR(check_size(job.spec, DType::kF32, job.elements, job.encoded));
  return check_buckets(job.spec, ops->codec(job.spec, DType::kF32).decode_add(job, stats));
}

template <const LaneOps* ops>
void local_reduce(const LocalReduceJob& job) {
  ops->local_reduce(job);
}

template <const LaneOps* ops>
constexpr Lane make_lane(const char* name, bool (*viable)()) {
  return {.name = name,
          .viable = viable,
          .encode = encode<ops>,
          .decode = decode<ops>,
          .reduce = reduce<ops>,
          .combine = combine<ops>,
          .local_reduce = local_reduce<ops>,
          .decode_add = decode_add<ops>};
}

bool always() {
  return true;
}
constexpr Lane kScalar = make_lane<&scalar_ops>("scalar", always);

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
constexpr Lane kAvx512 = make_lane<&avx512_ops>("avx512", avx512_viable);
constexpr Lane kAvx2 = make_lane<&avx2_ops>("avx2", avx2_viable);
const Lane* const kLanes[] = {&kAvx512, &kAvx2, &kScalar};
#else
const Lane* const kLanes[] = {&kScalar};
#endif

}  // namespace

// Measured (README.md "Speed"): Zen 5 gains a quarter from 10 KiB, Zen 4 loses as much. Beside
// streaming stores 10 KiB cost Zen 5 a tenth; the next block gains a little. Codes and sums further
// on gain 3 and 8 %.
ReadAhead read_ahead() {
#ifdef CGX_LANES_X86
  static const ReadAhead ahead =
      amd_family() >= 0x1a ? ReadAhead{10240, 6144, 4096, 256} : ReadAhead{};
  return ahead;
#else
  return {};
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
