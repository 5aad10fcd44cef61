// A driver with the first device's context current: what the conformance suite runs on. Only the
// driver's own interface, so that a real one and the stand-in are asked the same; the latter is
// asked at the end whether it accuses.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "proto/device/driver.h"

namespace cgx::gpu {

using namespace cgx::device;

// "skipped" says this.
std::string why_no_driver();

// The library that the environment chooses, and what lives in the context of its first device.
class Device {
 public:
  static std::unique_ptr<Device> open();  // null without a driver
  ~Device();
  Device(const Device&) = delete;

  Driver driver;
  CUdevice device = 0;
  CUcontext context = nullptr;
  bool attribute(CUdevice_attribute attribute) const;

 private:
  explicit Device(Driver found) : driver(std::move(found)) {}
};

// A function that only the stand-in has, or null.
void* standin_function(const char* name);
std::string accusations();

// Bytes in host memory that the device may use.
class Pinned {
 public:
  Pinned(const Driver& driver, size_t bytes);
  ~Pinned();
  Pinned(const Pinned&) = delete;
  template <class T>
  T* as() const {
    return static_cast<T*>(memory_);
  }
  CUdeviceptr address() const;

 private:
  const Driver& driver_;
  void* memory_ = nullptr;
};

class DriverTest : public testing::Test {
 protected:
  void SetUp() override;
  void TearDown() override;

  CUdeviceptr allocate(size_t bytes);  // until the end of the test
  CUstream make_stream(unsigned flags = CU_STREAM_NON_BLOCKING);
  CUevent make_event(unsigned flags = CU_EVENT_DISABLE_TIMING);
  std::vector<uint8_t> read(CUdeviceptr from, size_t bytes);
  void write(CUdeviceptr to, const std::vector<uint8_t>& bytes);

  std::unique_ptr<Device> device_;
  const Driver* cu_ = nullptr;

 private:
  std::vector<CUdeviceptr> memory_;
  std::vector<CUstream> streams_;
  std::vector<CUevent> events_;
};

// EXPECT_CU(cu_->cuMemFree(p)) names the error; ASSERT_CU ends the test.
std::string words_of(CUresult result);
#define EXPECT_CU(call) EXPECT_EQ(::cgx::gpu::words_of(call), "CUDA_SUCCESS")
#define ASSERT_CU(call) ASSERT_EQ(::cgx::gpu::words_of(call), "CUDA_SUCCESS")

}  // namespace cgx::gpu
