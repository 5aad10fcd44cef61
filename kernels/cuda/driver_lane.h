// The codecs on a GPU by launches through the driver: cuda_lane.h's operations without CUDA's
// runtime, in plain C++.
//
// One lane belongs to one context and one thread, which has the context current. Kernels come from
// images, one for each family of codecs, loaded when the first table asks for it; a launch neither
// allocates nor waits afterwards.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "kernels/cuda/cuda_lane.h"
#include "proto/device/driver.h"

namespace cgx::kernels::cuda {

class DriverLane {
 public:
  // The image of a family of kernels.def as cuModuleLoadData takes it; null where there is none.
  using ImageOf = std::function<const void*(const std::string& family)>;

  // Told before and after an image is loaded; a driver compiles it first where it has no machine
  // code for this device.
  using Loading = std::function<void(bool begins)>;

  static Result<std::unique_ptr<DriverLane>> create(
      const device::Driver& driver, device::CUdevice device, ImageOf image_of,
      Loading loading = [](bool) {});
  ~DriverLane();
  DriverLane(const DriverLane&) = delete;

  static bool has_kernels(const CodecSpec& spec);
  // Loads a family's image now, if it has not been: whether this device takes it.
  Status load(const std::string& family) { return module_of(family).status(); }
  // That of a table's kernels.
  Status load(const CodecSpec& spec, DType dtype);
  const Device& device() const { return device_; }

#define X(name, job, words) Status name(const Table<job>& table, device::CUstream stream);
#include "kernels/cuda/operations.def"
#undef X

 private:
  DriverLane(const device::Driver& driver, ImageOf image_of, Loading loading)
      : driver_(driver), image_of_(std::move(image_of)), loading_(std::move(loading)) {}
  struct Shape {
    uint32_t blocks, threads, shared_bytes;
  };

  Status describe(device::CUdevice device);
  Result<device::CUmodule> module_of(const std::string& family);
  Result<device::CUfunction> function_of(const std::string& family, const std::string& name);
  Result<Shape> shape_of(device::CUfunction function, uint32_t lanes, uint32_t team_bytes,
                         uint64_t buckets);
  Status launch(const std::string& family, const std::string& name, const Shape& shape,
                std::span<void*> parameters, device::CUstream stream, const std::string& what);
  template <class Job>
  Status run_sparse(const std::string& family, const std::string& stem, bool finds,
                    const char* operation, const char* words, const Table<Job>& table,
                    device::CUstream stream);
  template <class Job>
  Status run(const char* operation, const char* words, const Table<Job>& table,
             device::CUstream stream);
  template <class Job>
  Status add_norms(const char* operation, const Table<Job>& table, device::CUstream stream);

  const device::Driver& driver_;
  const ImageOf image_of_;
  const Loading loading_;
  Device device_;
  std::map<std::string, device::CUmodule> modules_;
  // Blocks that fit on a multiprocessor at once, by kernel and bytes of a team; asked once.
  std::map<std::pair<device::CUfunction, uint32_t>, int> resident_;
  std::map<std::string, device::CUfunction> functions_;  // "maxmin/cgx_norms_encode"
};

}  // namespace cgx::kernels::cuda
