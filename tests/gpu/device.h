// Memory and time on the device that the kernels run on: a GPU (device_cuda.cu), or this processor
// playing one (device_emulated.cc). Failures end the program with a message.
#pragma once

#include <cstddef>
#include <string>

namespace cgx::gpu {

bool device_present();
std::string device_name();
extern const bool kDeviceTakesWide;   // it has kernels for fp64 and integers
void* device_allocate(size_t bytes);  // zeroed
void device_free(void* memory);
void copy_to_device(void* to, const void* from, size_t bytes);
void copy_from_device(void* to, const void* from, size_t bytes);  // waits for the device

}  // namespace cgx::gpu
