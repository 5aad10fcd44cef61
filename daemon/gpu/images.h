// The kernels that are built into cgxd-gpu.
#pragma once

#include <string>

namespace cgx::daemon::gpu {

// As cuModuleLoadData takes it; null for a family that does not exist. Built without nvcc there are
// the kernels' names only, which no GPU takes (the stand-in driver of the tests does).
const void* kernel_image(const std::string& family);
bool has_kernel_code();  // for error messages

}  // namespace cgx::daemon::gpu
