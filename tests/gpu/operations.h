// The operations of the device that the kernels run on, in the order of their calls: a GPU's
// through the driver (device_driver.cc), or this processor playing one (device_emulated.cc).
#pragma once

#include "kernels/cuda/cuda_lane.h"

namespace cgx::gpu {

kernels::cuda::Device device_shape();  // what tables are described for

#define X(name, job, words) Status name(const kernels::cuda::Table<kernels::job>& table);
#include "kernels/cuda/operations.def"
#undef X

}  // namespace cgx::gpu
