// The types of the CUDA driver's interface as far as driver.def needs them, so that building takes
// no toolkit.
//
// Names and layouts are cuda.h's; tests/gpu/cuda_header_test.cc compares them where there is one.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cgx::device {

enum CUresult : unsigned {
#define X(name, number, status, text) name = number,
#include "proto/device/errors.def"
#undef X
};

enum Constant : unsigned {
#define X(name, value) name = value,
#include "proto/device/constants.def"
#undef X
};

using CUdevice = int;
using CUdeviceptr = unsigned long long;
using CUdevice_attribute = unsigned;
using CUpointer_attribute = unsigned;
using CUfunction_attribute = unsigned;
using CUmemAllocationHandleType = unsigned;
using CUmemAllocationGranularity_flags = unsigned;
using CUmemGenericAllocationHandle = unsigned long long;

using CUcontext = struct CUctx_st*;
using CUstream = struct CUstream_st*;
using CUevent = struct CUevent_st*;
using CUmodule = struct CUmod_st*;
using CUfunction = struct CUfunc_st*;
using CUhostFn = void (*)(void* with);

struct CUuuid {
  char bytes[16];
};
struct CUipcMemHandle {
  char reserved[64];
};
struct CUmemLocation {
  unsigned type;
  int id;
};
struct CUmemAllocationProp {
  unsigned type, requestedHandleTypes;
  CUmemLocation location;
  void* win32HandleMetaData;
  struct {
    unsigned char compressionType, gpuDirectRDMACapable;
    unsigned short usage;
    unsigned char reserved[4];
  } allocFlags;
};
struct CUmemAccessDesc {
  CUmemLocation location;
  unsigned flags;
};

}  // namespace cgx::device
