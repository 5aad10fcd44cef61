#include "daemon/gpu/images.h"

#include "kernels/cuda/kernel_names.h"

namespace cgx::daemon::gpu {

#ifdef CGX_FATBINS  // the folder that nvcc wrote them into
#define X(family)                                                                         \
  extern "C" const char cgx_fatbin_##family[];                                            \
  asm(".section .rodata\n.balign 64\n.global cgx_fatbin_" #family "\ncgx_fatbin_" #family \
      ":\n.incbin \"" CGX_FATBINS "/" #family ".fatbin\"\n.byte 0\n.previous\n");
#include "kernels/cuda/families.def"
#undef X

const void* kernel_image(const std::string& family) {
#define X(name) \
  if (family == #name) return cgx_fatbin_##name;
#include "kernels/cuda/families.def"
#undef X
  return nullptr;
}
bool has_kernel_code() {
  return true;
}

#else

const void* kernel_image(const std::string&) {
  return kernels::cuda::kKernelNames;
}
bool has_kernel_code() {
  return false;
}
#endif

}  // namespace cgx::daemon::gpu
