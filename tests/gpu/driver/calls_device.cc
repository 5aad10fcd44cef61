// Starting, devices and contexts; and the look-up of functions by name and version.
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "tests/gpu/driver/functions.h"

using namespace cgx::standin;

namespace {

// "cgx stand-in" and the device's number; other folders are other machines.
CUuuid uuid_of(int device) {
  CUuuid uuid = {};
  const size_t machine = std::hash<std::string>{}(process().settings.folder);
  std::snprintf(uuid.bytes, sizeof(uuid.bytes), "cgx%02d", device);
  std::memcpy(uuid.bytes + 8, &machine, sizeof(machine));
  return uuid;
}

int attribute_of(CUdevice_attribute attribute) {
  const Settings& settings = process().settings;
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
      return 1024;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK:
      return 48 << 10;
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE:
      return 32;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
      return 5;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR:
      return 2048;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
      return 9;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR:
      return 228 << 10;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
      return 227 << 10;
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM:
    case CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED:
      return 1;
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
      return !settings.without_vmm;
    case CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR:
      return !settings.without_words;
    default:
      return 0;
  }
}

struct Export {
  const char* name;
  int since;  // the version of the interface that has these parameters
  void* function;
};
#define ROW(name, symbol) \
  { #name, since_of(#name, #symbol), reinterpret_cast < void*>(&symbol) }

// Functions whose parameters changed are asked for with the version of the change.
int since_of(const char* name, const char* symbol) {
  if (std::strcmp(name, symbol) == 0) return 0;
  static constexpr struct {
    const char* begin;
    int since;
  } kChanges[] = {{"cuStreamW", 11070},   {"cuDeviceGetUuid", 11040}, {"cuIpcOpen", 11000},
                  {"cuDevicePri", 11000}, {"cuMemHostReg", 6050},     {"cuCtxP", 4000},
                  {"cuStreamD", 4000},    {"cuEventD", 4000}};
  for (const auto& change : kChanges) {
    if (std::strncmp(name, change.begin, std::strlen(change.begin)) == 0) return change.since;
  }
  return 3020;
}

}  // namespace

CUresult cuInit(unsigned flags) {
  CGX_ENTER(Call::cuInit, Need::kNothing);
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  Process& p = process();
  const std::lock_guard lock(p.mutex);
  if (p.started) return getpid() == p.pid ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
  if (p.settings.devices == 0) return CUDA_ERROR_NO_DEVICE;
  p.ledger = Ledger::open(p.settings.folder);
  p.space.choose(p.settings.protection);
  std::vector<int> seen = p.settings.visible;
  for (int i = 0; p.settings.visible.empty() && i < p.settings.devices; ++i) seen.push_back(i);
  for (size_t i = 0; i < seen.size(); ++i) {
    p.contexts.push_back(std::make_unique<Context>());
    p.contexts[i]->device = seen[i];
    p.contexts[i]->ordinal = static_cast<int>(i);
  }
  p.started = true;
  return CUDA_SUCCESS;
}

CUresult cuDriverGetVersion(int* version) {
  CGX_ENTER(Call::cuDriverGetVersion, Need::kNothing);
  *version = process().settings.version;
  return CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult error, const char** name) {
  CGX_ENTER(Call::cuGetErrorName, Need::kNothing);
  *name = nullptr;
  switch (error) {
#define X(known, number, status, text) \
  case known:                          \
    *name = #known;                    \
    break;
#include "proto/device/errors.def"
#undef X
  }
  return *name == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult error, const char** text) {
  CGX_ENTER(Call::cuGetErrorString, Need::kNothing);
  *text = nullptr;
  switch (error) {
#define X(known, number, status, words) \
  case known:                           \
    *text = words;                      \
    break;
#include "proto/device/errors.def"
#undef X
  }
  return *text == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int* count) {
  CGX_ENTER(Call::cuDeviceGetCount, Need::kStart);
  *count = static_cast<int>(process().contexts.size());
  return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  CGX_ENTER(Call::cuDeviceGet, Need::kStart);
  if (context_of(ordinal) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char* name, int bytes, CUdevice device) {
  CGX_ENTER(Call::cuDeviceGetName, Need::kStart);
  const Context* const context = context_of(device);
  if (context == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  std::snprintf(name, static_cast<size_t>(bytes), "stand-in %d", context->device);
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device) {
  CGX_ENTER(Call::cuDeviceGetUuid, Need::kStart);
  const Context* const context = context_of(device);
  if (context == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  *uuid = uuid_of(context->device);
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  CGX_ENTER(Call::cuDeviceGetAttribute, Need::kStart);
  if (context_of(device) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  *value = attribute_of(attribute);
  return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice device) {
  CGX_ENTER(Call::cuDeviceTotalMem, Need::kStart);
  if (context_of(device) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  *bytes = process().settings.memory;
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  CGX_ENTER(Call::cuDevicePrimaryCtxRetain, Need::kStart);
  Context* const found = context_of(device);
  if (found == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  Process& p = process();
  const std::lock_guard lock(p.mutex);
  if (p.ledger->lost(found->device)) return CUDA_ERROR_DEVICE_UNAVAILABLE;
  if (found->legacy == nullptr) found->legacy = p.make_stream(false);
  ++found->references;
  *context = reinterpret_cast<CUcontext>(found);
  return CUDA_SUCCESS;
}

// What lives in a context goes with the process only: whoever leaves it behind is accused there.
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  CGX_ENTER(Call::cuDevicePrimaryCtxRelease, Need::kStart);
  Context* const found = context_of(device);
  if (found == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  const std::lock_guard lock(process().mutex);
  if (found->references == 0) return CUDA_ERROR_INVALID_CONTEXT;
  --found->references;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext* context) {
  CGX_ENTER(Call::cuCtxGetCurrent, Need::kStart);
  *context = reinterpret_cast<CUcontext>(current_context());
  return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context) {
  CGX_ENTER(Call::cuCtxSetCurrent, Need::kStart);
  context_stack().pop();
  if (context != nullptr) context_stack().push(reinterpret_cast<Context*>(context));
  return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent_v2(CUcontext context) {
  CGX_ENTER(Call::cuCtxPushCurrent, Need::kStart);
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  const bool room = context_stack().push(reinterpret_cast<Context*>(context));
  return room ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuCtxPopCurrent_v2(CUcontext* context) {
  CGX_ENTER(Call::cuCtxPopCurrent, Need::kStart);
  Context* const popped = context_stack().pop();
  if (popped != nullptr && context != nullptr) *context = reinterpret_cast<CUcontext>(popped);
  return popped == nullptr ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice* device) {
  CGX_ENTER(Call::cuCtxGetDevice);
  *device = current_context()->ordinal;
  return CUDA_SUCCESS;
}

// The list does not have it because nothing of this project calls it; NVIDIA's bindings for Python
// do.
extern "C" __attribute__((visibility("default"))) CUresult cuGetProcAddress_v2(
    const char* name, void** function, int version, uint64_t, int* found) {
  static const Export kExports[] = {
#define X(name, symbol, feature, parameters) ROW(name, symbol),
#include "proto/device/driver.def"
#undef X
  };
  *function = nullptr;
  if (std::strcmp(name, "cuGetProcAddress") == 0) {
    *function = reinterpret_cast<void*>(&cuGetProcAddress_v2);
  }
  for (const Export& row : kExports) {
    if (std::strcmp(row.name, name) == 0 && version >= row.since) *function = row.function;
  }
  if (found != nullptr) *found = *function == nullptr ? 1 : 0;
  return *function == nullptr ? CUDA_ERROR_NOT_FOUND : CUDA_SUCCESS;
}
