// Whatever device the driver has, by launches through it (kernels/cuda/driver_lane.h): the stand-in
// in every run, a GPU by hand. Kernels come from the fatbins in the folder CGX_KERNEL_IMAGES, or
// are names only, which is enough for the stand-in.
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/driver_lane.h"
#include "kernels/cuda/kernel_names.h"
#include "tests/gpu/device.h"
#include "tests/gpu/operations.h"

namespace cgx::gpu {
namespace {

void check(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.to_string().c_str());
  std::exit(2);
}

// Of a folder of fatbins, or the names; null for a family that the folder does not have.
const void* image_of(const std::string& family) {
  static std::map<std::string, std::vector<char>> read;
  const char* const folder = std::getenv("CGX_KERNEL_IMAGES");
  if (folder == nullptr) return kernels::cuda::kKernelNames;
  std::ifstream file(std::string(folder) + "/" + family + ".fatbin", std::ios::binary);
  std::vector<char>& bytes = read[family];
  bytes.assign(std::istreambuf_iterator<char>(file), {});
  return bytes.empty() ? nullptr : bytes.data();
}

// The driver with device 0's context current, until the end of the program.
class Opened {
 public:
  static Opened& get() {
    static Opened opened;
    return opened;
  }
  const device::Driver& driver() const { return driver_; }
  kernels::cuda::DriverLane& lane() { return *lane_; }
  void check(device::CUresult result, const char* what) const {
    gpu::check(driver_.check(result, what));
  }

 private:
  Opened() : driver_(device::Driver::open().value()) {
    device::CUcontext context = nullptr;
    check(driver_.cuDevicePrimaryCtxRetain(&context, 0), "opening device 0");
    check(driver_.cuCtxSetCurrent(context), "opening device 0");
    lane_ = kernels::cuda::DriverLane::create(driver_, 0, image_of).value();
  }
  ~Opened() {
    lane_.reset();
    driver_.cuDevicePrimaryCtxRelease(0);
  }

  device::Driver driver_;
  std::unique_ptr<kernels::cuda::DriverLane> lane_;
};

device::CUdeviceptr address_of(const void* memory) {
  return reinterpret_cast<device::CUdeviceptr>(memory);
}

}  // namespace

const bool kDeviceTakesWide = true;

bool device_present() {
  const Result<device::Driver> driver = device::Driver::open();
  if (!driver.ok()) std::printf("%s\n", driver.status().to_string().c_str());
  return driver.ok();
}

std::string device_name() {
  char name[100] = {};
  Opened::get().check(Opened::get().driver().cuDeviceGetName(name, sizeof(name), 0), "its name");
  return name;
}

void* device_allocate(size_t bytes) {
  Opened& device = Opened::get();
  device::CUdeviceptr memory = 0;
  device.check(device.driver().cuMemAlloc(&memory, bytes + 1), "allocating");
  device.check(device.driver().cuMemsetD8Async(memory, 0, bytes + 1, nullptr), "filling");
  return reinterpret_cast<void*>(memory);
}

void device_free(void* memory) {
  Opened::get().check(Opened::get().driver().cuMemFree(address_of(memory)), "freeing");
}

void copy_to_device(void* to, const void* from, size_t bytes) {
  if (bytes == 0) return;
  Opened::get().check(Opened::get().driver().cuMemcpyHtoD(address_of(to), from, bytes),
                      "copying to the device");
}

void copy_from_device(void* to, const void* from, size_t bytes) {
  Opened::get().check(Opened::get().driver().cuCtxSynchronize(), "waiting for the device");
  if (bytes == 0) return;
  Opened::get().check(Opened::get().driver().cuMemcpyDtoH(to, address_of(from), bytes),
                      "copying from the device");
}

void copy_on_device(void* to, const void* from, size_t bytes) {
  const Opened& device = Opened::get();
  device.check(device.driver().cuMemcpyDtoDAsync(address_of(to), address_of(from), bytes, nullptr),
               "copying on the device");
}

double device_milliseconds(const std::function<void()>& work) {
  const Opened& device = Opened::get();
  device::CUevent start = nullptr, end = nullptr;
  for (device::CUevent* event : {&start, &end}) {
    device.check(device.driver().cuEventCreate(event, 0), "making an event");
  }
  device.check(device.driver().cuEventRecord(start, nullptr), "starting to measure");
  work();
  device.check(device.driver().cuEventRecord(end, nullptr), "measuring");
  device.check(device.driver().cuEventSynchronize(end), "waiting for an event");
  float ms = 0;
  device.check(device.driver().cuEventElapsedTime(&ms, start, end), "measuring");
  for (device::CUevent event : {start, end}) {
    device.check(device.driver().cuEventDestroy(event), "releasing an event");
  }
  return ms;
}

kernels::cuda::Device device_shape() {
  return Opened::get().lane().device();
}
#define X(name, job, words)                                      \
  Status name(const kernels::cuda::Table<kernels::job>& table) { \
    return Opened::get().lane().name(table, nullptr);            \
  }
#include "kernels/cuda/operations.def"
#undef X

}  // namespace cgx::gpu
