#include "tests/gpu/driver_case.h"

#include <dlfcn.h>

#include "tests/gpu/roles.h"

namespace cgx::gpu {
namespace {

Result<Driver> open_driver() {
  return Driver::open();
}

}  // namespace

std::string why_no_driver() {
  return "skipped: " + open_driver().status().to_string();
}

std::unique_ptr<Device> Device::open() {
  Result<Driver> driver = open_driver();
  if (!driver.ok()) return nullptr;
  std::unique_ptr<Device> made(new Device(std::move(driver).value()));
  const Driver& cu = made->driver;
  if (cu.cuDeviceGet(&made->device, 0) != CUDA_SUCCESS) return nullptr;
  if (cu.cuDevicePrimaryCtxRetain(&made->context, made->device) != CUDA_SUCCESS) return nullptr;
  return cu.cuCtxSetCurrent(made->context) == CUDA_SUCCESS ? std::move(made) : nullptr;
}

Device::~Device() {
  driver.cuCtxSetCurrent(nullptr);
  if (context != nullptr) driver.cuDevicePrimaryCtxRelease(device);
}

bool Device::attribute(CUdevice_attribute attribute) const {
  int value = 0;
  return driver.cuDeviceGetAttribute(&value, attribute, device) == CUDA_SUCCESS && value != 0;
}

void* standin_function(const char* name) {
  void* const library = dlopen(Driver::kLibrary, RTLD_NOW | RTLD_NOLOAD);
  return library == nullptr ? nullptr : dlsym(library, name);
}

std::string accusations() {
  void* const ask = standin_function("cgx_standin_violations");
  return ask == nullptr ? "" : reinterpret_cast<const char* (*)()>(ask)();
}

Pinned::Pinned(const Driver& driver, size_t bytes) : driver_(driver) {
  EXPECT_CU(driver.cuMemHostAlloc(&memory_, bytes, CU_MEMHOSTALLOC_PORTABLE));
}
Pinned::~Pinned() {
  EXPECT_CU(driver_.cuMemFreeHost(memory_));
}
CUdeviceptr Pinned::address() const {
  CUdeviceptr address = 0;
  EXPECT_CU(driver_.cuMemHostGetDevicePointer(&address, memory_, 0));
  return address;
}

void DriverTest::SetUp() {
  device_ = Device::open();
  if (device_ == nullptr) GTEST_SKIP() << why_no_driver();
  cu_ = &device_->driver;
}

void DriverTest::TearDown() {
  if (cu_ == nullptr) return;
  for (const CUstream stream : streams_) EXPECT_CU(cu_->cuStreamDestroy(stream));
  for (const CUevent event : events_) EXPECT_CU(cu_->cuEventDestroy(event));
  for (const CUdeviceptr memory : memory_) EXPECT_CU(cu_->cuMemFree(memory));
  EXPECT_EQ(accusations(), "");
}

CUdeviceptr DriverTest::allocate(size_t bytes) {
  CUdeviceptr memory = 0;
  EXPECT_CU(cu_->cuMemAlloc(&memory, bytes));
  memory_.push_back(memory);
  return memory;
}

CUstream DriverTest::make_stream(unsigned flags) {
  CUstream stream = nullptr;
  EXPECT_CU(cu_->cuStreamCreate(&stream, flags));
  streams_.push_back(stream);
  return stream;
}

CUevent DriverTest::make_event(unsigned flags) {
  CUevent event = nullptr;
  EXPECT_CU(cu_->cuEventCreate(&event, flags));
  events_.push_back(event);
  return event;
}

std::vector<uint8_t> DriverTest::read(CUdeviceptr from, size_t bytes) {
  std::vector<uint8_t> values(bytes);
  EXPECT_CU(cu_->cuMemcpyDtoH(values.data(), from, bytes));
  return values;
}

void DriverTest::write(CUdeviceptr to, const std::vector<uint8_t>& bytes) {
  EXPECT_CU(cu_->cuMemcpyHtoD(to, bytes.data(), bytes.size()));
  EXPECT_CU(cu_->cuStreamSynchronize(nullptr));  // until then it has been read, not written
}

std::string words_of(CUresult result) {
  switch (result) {
#define X(name, number, status, text) \
  case name:                          \
    return #name;
#include "proto/device/errors.def"
#undef X
  }
  return std::to_string(result);
}

}  // namespace cgx::gpu

int main(int argc, char** argv) {
  const int played = cgx::gpu::play_role(argc, argv);
  if (played >= 0) return played;
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
