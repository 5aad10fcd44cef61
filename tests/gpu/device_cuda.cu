// Device 0 of this machine.
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>

#include "tests/gpu/device.h"

namespace cgx::gpu {
namespace {

void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  std::exit(2);
}

}  // namespace

const bool kDeviceTakesWide = false;

bool device_present() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
}
std::string device_name() {
  cudaDeviceProp properties;
  check(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties");
  return properties.name;
}
void* device_allocate(size_t bytes) {
  void* memory = nullptr;
  check(cudaMalloc(&memory, bytes + 1), "cudaMalloc");
  check(cudaMemset(memory, 0, bytes + 1), "cudaMemset");
  return memory;
}
void device_free(void* memory) {
  check(cudaFree(memory), "cudaFree");
}
void copy_to_device(void* to, const void* from, size_t bytes) {
  if (bytes > 0) check(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice), "copy to the device");
}
void copy_from_device(void* to, const void* from, size_t bytes) {
  check(cudaDeviceSynchronize(), "waiting for the device");
  if (bytes > 0) check(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost), "copy from the device");
}

}  // namespace cgx::gpu
