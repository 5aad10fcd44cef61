#include "daemon/gpu/images.h"

#include "kernels/cuda/kernel_names.h"

namespace cgx::daemon::gpu {

#ifdef CGX_FATBINS  // the folder that nvcc wrote them into
#define CGX_FATBIN(family)                                                                \
  extern "C" const char cgx_fatbin_##family[];                                            \
  asm(".section .rodata\n.balign 64\n.global cgx_fatbin_" #family "\ncgx_fatbin_" #family \
      ":\n.incbin \"" CGX_FATBINS "/" #family ".fatbin\"\n.byte 0\n.previous\n");
CGX_FATBIN(casts)
CGX_FATBIN(fp8)
CGX_FATBIN(maxmin)
CGX_FATBIN(natural)
CGX_FATBIN(sign)
CGX_FATBIN(sparse)
CGX_FATBIN(symmetric)
#undef CGX_FATBIN

const void* kernel_image(const std::string& family) {
  if (family == "casts") return cgx_fatbin_casts;
  if (family == "fp8") return cgx_fatbin_fp8;
  if (family == "maxmin") return cgx_fatbin_maxmin;
  if (family == "natural") return cgx_fatbin_natural;
  if (family == "sign") return cgx_fatbin_sign;
  if (family == "sparse") return cgx_fatbin_sparse;
  if (family == "symmetric") return cgx_fatbin_symmetric;
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
