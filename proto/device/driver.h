// The CUDA driver of this machine, loaded when it is asked for: nothing links CUDA.
//
// A Driver is a table of functions (driver.def) and may be copied; the library stays loaded.
// Functions that belong to a feature other than Base may be null: ask lacks() first. Any thread may
// call them, as the driver allows.
#pragma once

#include <string>
#include <string_view>

#include "proto/device/driver_types.h"
#include "proto/wire/status.h"

namespace cgx::device {

// What a driver may lack: words that streams write and wait for, memory that travels as a
// descriptor, and as a handle; graphs that streams are captured in.
enum class Feature : uint8_t { kBase, kWords, kVmm, kIpc, kGraphs };

class Driver {
 public:
  static constexpr const char* kLibrary = "libcuda.so.1";
  static constexpr int kOldest = 11070;  // words have their present functions since then

  // `library` as dlopen takes it. NOT_FOUND without a driver or device, UNIMPLEMENTED with one that
  // is too old.
  static Result<Driver> open(const char* library = kLibrary);

#define X(name, symbol, feature, parameters) CUresult(*name) parameters = nullptr;
#include "proto/device/driver.def"
#undef X

  // OK, or UNIMPLEMENTED with the name of the function that is missing. Whether a device has the
  // feature is for cuDeviceGetAttribute to say.
  Status lacks(Feature feature) const;
  int version() const {
    return version_;
  }  // 13000 is CUDA 13.0
  std::string version_text() const;
  // OK, or UNIMPLEMENTED: kernels that this toolkit's nvcc made (13000 is 13.0; 0: none did) run
  // with drivers of its major version or a later one.
  Status takes_kernels_of(int toolkit) const;

  // OK, or `what` with the driver's words for the error.
  Status check(CUresult result, std::string_view what) const;

 private:
  std::string library_;
  int version_ = 0;
};

// Whether NVIDIA's Multi-Process Service listens in its folder of pipes; null: the usual one.
bool mps_serves(const char* pipe_directory);

StatusCode status_of(CUresult result);

}  // namespace cgx::device
