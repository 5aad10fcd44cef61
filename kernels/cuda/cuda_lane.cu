// cuda_lane.h's functions: the choice of a codec's launches, and what went wrong in words.
#include <cuda_runtime_api.h>

#include <string>

#include "kernels/cuda/cuda_lane.h"
#include "kernels/cuda/launches.h"

namespace cgx::kernels::cuda {
namespace {

const Launches* launches_of(const CodecSpec& spec) {
  switch (spec.codec) {
#define X(stem, number, ...) \
  case number:               \
    return &launches_of_##stem(spec);
#include "kernels/codecs.def"
#undef X
  }
  return nullptr;
}

Status failed(const char* what, int error) {
  if (error == cudaSuccess) return {};
  return internal_error(std::string(what) +
                        " failed: " + cudaGetErrorString(static_cast<cudaError_t>(error)));
}

template <class Job>
Status launch(int (*Launches::*operation)(const Device&, const Table<Job>&, Stream),
              const char* name, const Device& device, const Table<Job>& table, Stream stream) {
  if (table.count == 0) return {};
  const bool small = dtype_is_small_float(table.dtype);
  const Launches* launches = small ? launches_of(table.spec) : nullptr;  // others: driver_lane.h
  if (launches == nullptr) {
    return {StatusCode::kUNIMPLEMENTED, to_string(table.spec) + " has no kernels for CUDA"};
  }
  const int error = (launches->*operation)(device, table, stream);
  if (error == cudaSuccess) return {};
  return failed((std::string(name) + " of " + std::to_string(table.count) + " segments with " +
                 to_string(table.spec))
                    .c_str(),
                error);
}

}  // namespace

bool has_kernels(const CodecSpec& spec) {
  return launches_of(spec) != nullptr;
}

Result<Device> describe_device(int ordinal) {
  cudaDeviceProp properties;
  CGX_RETURN_IF_ERROR(failed("asking for the properties of the device",
                             cudaGetDeviceProperties(&properties, ordinal)));
  return Device{ordinal, static_cast<uint32_t>(properties.multiProcessorCount),
                static_cast<uint32_t>(properties.maxThreadsPerMultiProcessor),
                static_cast<uint32_t>(properties.sharedMemPerMultiprocessor)};
}

Status encode(const Device& device, const Table<EncodeJob>& table, Stream stream) {
  return launch(&Launches::encode, "encoding", device, table, stream);
}
Status decode(const Device& device, const Table<DecodeJob>& table, Stream stream) {
  return launch(&Launches::decode, "decoding", device, table, stream);
}
Status decode_add(const Device& device, const Table<DecodeAddJob>& table, Stream stream) {
  return launch(&Launches::decode_add, "adding", device, table, stream);
}
Status reduce(const Device& device, const Table<ReduceJob>& table, Stream stream) {
  return launch(&Launches::reduce, "reducing", device, table, stream);
}
Status combine(const Device& device, const Table<CombineJob>& table, Stream stream) {
  return launch(&Launches::combine, "combining", device, table, stream);
}

}  // namespace cgx::kernels::cuda
