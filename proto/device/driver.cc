#include "proto/device/driver.h"

#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>

namespace cgx::device {
namespace {

std::string dotted(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

}  // namespace

Result<Driver> Driver::open(const char* library) {
  void* const handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    return Status(StatusCode::kNOT_FOUND, std::string("no CUDA driver: ") + dlerror());
  }
  Driver driver;
  driver.library_ = library;
#define X(name, symbol, feature, parameters) \
  driver.name = reinterpret_cast<CUresult(*) parameters>(dlsym(handle, #symbol));
#include "proto/device/driver.def"
#undef X
  if (driver.cuDriverGetVersion != nullptr) driver.cuDriverGetVersion(&driver.version_);
  CGX_RETURN_IF_ERROR(driver.lacks(Feature::kBase));
  if (driver.version_ < kOldest) {
    return Status(StatusCode::kUNIMPLEMENTED, std::string(library) + " is a driver for CUDA " +
                                                  driver.version_text() + "; " + dotted(kOldest) +
                                                  " or newer is needed");
  }
  CGX_RETURN_IF_ERROR(driver.check(driver.cuInit(0), "starting the CUDA driver"));
  return driver;
}

Status Driver::lacks(Feature wanted) const {
  const char* missing = nullptr;
#define X(name, symbol, feature, parameters)                                    \
  if (missing == nullptr && name == nullptr && Feature::k##feature == wanted) { \
    missing = #symbol;                                                          \
  }
#include "proto/device/driver.def"
#undef X
  if (missing == nullptr) return {};
  const std::string version = version_ > 0 ? "driver for CUDA " + version_text() : "unknown driver";
  return {StatusCode::kUNIMPLEMENTED, library_ + " (" + version + ") has no function " + missing};
}

std::string Driver::version_text() const {
  return dotted(version_);
}

Status Driver::takes_kernels_of(int toolkit) const {
  const int oldest = toolkit / 1000 * 1000;
  if (version_ >= oldest) return {};
  return {StatusCode::kUNIMPLEMENTED, library_ + " is a driver for CUDA " + version_text() +
                                          "; the kernels, made with CUDA " + dotted(toolkit) +
                                          ", need " + dotted(oldest) + " or newer"};
}

Status Driver::check(CUresult result, std::string_view what) const {
  if (result == CUDA_SUCCESS) return {};
  const char *name = nullptr, *text = nullptr;
  if (cuGetErrorName(result, &name) != CUDA_SUCCESS || name == nullptr) name = "unknown error";
  if (cuGetErrorString(result, &text) != CUDA_SUCCESS || text == nullptr) text = "no description";
  return {status_of(result),
          std::string(what) + ": " + name + " (" + std::to_string(result) + "), " + text};
}

StatusCode status_of(CUresult result) {
  switch (result) {
#define X(name, number, status, text) \
  case name:                          \
    return StatusCode::k##status;
#include "proto/device/errors.def"
#undef X
  }
  return StatusCode::kINTERNAL;
}

bool mps_serves(const char* pipe_directory) {
  const std::string folder = pipe_directory != nullptr ? pipe_directory : "/tmp/nvidia-mps";
  return ::access((folder + "/control").c_str(), F_OK) == 0;
}

}  // namespace cgx::device
