#include "kernels/cold_memory.h"

#include <cstdint>

#ifdef CGX_LANES_X86
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace cgx::kernels {

#ifdef CGX_LANES_X86
namespace {
__attribute__((target("clflushopt"))) void flush_all(std::span<const Line> lines) {
  for (const Line& line : lines) _mm_clflushopt(const_cast<Line*>(&line));
  _mm_mfence();
}
}  // namespace

bool flushes() {
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) && (ebx & bit_CLFLUSHOPT) != 0;
}

void flush_lines(std::span<const Line> lines) {
  static const bool can = flushes();
  if (can) flush_all(lines);
}
#else
bool flushes() {
  return false;
}

void flush_lines(std::span<const Line>) {}
#endif

}  // namespace cgx::kernels
