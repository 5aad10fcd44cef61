// Memory and time on the device that the kernels run on: what the driver has (device_driver.cc), or
// this processor playing one (device_emulated.cc). Failures end the program with a message.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

namespace cgx::gpu {

bool device_present();
std::string device_name();
extern const bool kDeviceTakesWide;   // it has kernels for fp64 and integers
void* device_allocate(size_t bytes);  // zeroed
void device_free(void* memory);
void copy_to_device(void* to, const void* from, size_t bytes);
void copy_from_device(void* to, const void* from, size_t bytes);  // waits for the device

// Only of a driver: a copy from there to there, in the order of launches, and the time between
// events around work.
void copy_on_device(void* to, const void* from, size_t bytes);
double device_milliseconds(const std::function<void()>& work);

}  // namespace cgx::gpu
