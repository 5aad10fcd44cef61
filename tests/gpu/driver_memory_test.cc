// What a driver promises of memory of one process.
#include <numeric>
#include <thread>

#include "tests/gpu/driver_case.h"

namespace cgx::gpu {
namespace {

std::vector<uint8_t> numbered(size_t bytes, uint8_t from = 1) {
  std::vector<uint8_t> values(bytes);
  std::iota(values.begin(), values.end(), from);
  return values;
}

class DriverMemory : public DriverTest {};

TEST_F(DriverMemory, ContextsAreAStackOfTheThread) {
  CUcontext found = nullptr;
  EXPECT_CU(cu_->cuCtxPushCurrent(device_->context));
  EXPECT_CU(cu_->cuCtxPopCurrent(&found));
  EXPECT_EQ(found, device_->context);
  EXPECT_CU(cu_->cuCtxGetCurrent(&found));
  EXPECT_EQ(found, device_->context);
  std::thread([&] {
    CUdeviceptr memory = 0;
    EXPECT_CU(cu_->cuCtxGetCurrent(&found));
    EXPECT_EQ(found, nullptr);
    EXPECT_EQ(cu_->cuMemAlloc(&memory, 10), CUDA_ERROR_INVALID_CONTEXT);
  }).join();
}

TEST_F(DriverMemory, CopiesThereAndBack) {
  const CUdeviceptr memory = allocate(10000);
  const std::vector<uint8_t> values = numbered(10000);
  write(memory, values);
  EXPECT_EQ(read(memory, 10000), values);
  EXPECT_EQ(read(memory + 4321, 10), numbered(10, values[4321]));
}

TEST_F(DriverMemory, AllocationsAreApartAndAligned) {
  const CUdeviceptr a = allocate(1), b = allocate(700);
  EXPECT_EQ(a % 256, 0u);
  EXPECT_EQ(b % 256, 0u);
  write(b, numbered(700));
  write(a, {77});
  EXPECT_EQ(read(b, 700), numbered(700));
}

TEST_F(DriverMemory, NothingIsNoAllocation) {
  CUdeviceptr memory = 0;
  EXPECT_EQ(cu_->cuMemAlloc(&memory, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_CU(cu_->cuMemFree(0));
}

TEST_F(DriverMemory, AnInnerAddressKnowsItsAllocation) {
  const CUdeviceptr memory = allocate(5000);
  CUdeviceptr base = 0;
  size_t bytes = 0;
  EXPECT_CU(cu_->cuMemGetAddressRange(&base, &bytes, memory + 4999));
  EXPECT_EQ(base, memory);
  EXPECT_GE(bytes, 5000u);
}

TEST_F(DriverMemory, OnlyWholeAllocationsAreFreed) {
  const CUdeviceptr memory = allocate(5000);
  EXPECT_NE(cu_->cuMemFree(memory + 256), CUDA_SUCCESS);
  EXPECT_EQ(read(memory, 1).size(), 1u);
}

TEST_F(DriverMemory, AddressesTellWhatLiesThere) {
  const CUdeviceptr memory = allocate(64);
  const Pinned pinned(*cu_, 64);
  unsigned type = 0;
  EXPECT_CU(cu_->cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, memory + 8));
  EXPECT_EQ(type, CU_MEMORYTYPE_DEVICE);
  EXPECT_CU(
      cu_->cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, pinned.address() + 8));
  EXPECT_EQ(type, CU_MEMORYTYPE_HOST);
  int plain = 0;
  EXPECT_NE(cu_->cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                       reinterpret_cast<CUdeviceptr>(&plain)),
            CUDA_SUCCESS);
}

TEST_F(DriverMemory, FreeMemoryBecomesLess) {
  size_t before = 0, after = 0, total = 0;
  EXPECT_CU(cu_->cuMemGetInfo(&before, &total));
  EXPECT_LE(before, total);
  allocate(64u << 20);
  EXPECT_CU(cu_->cuMemGetInfo(&after, &total));
  EXPECT_LE(after + (64u << 20), before);
}

TEST_F(DriverMemory, FillsBytesAndWords) {
  const CUdeviceptr memory = allocate(64);
  const CUstream stream = make_stream();
  EXPECT_CU(cu_->cuMemsetD8Async(memory, 7, 64, stream));
  EXPECT_CU(cu_->cuMemsetD32Async(memory + 8, 0x04030201, 2, stream));
  EXPECT_CU(cu_->cuStreamSynchronize(stream));
  std::vector<uint8_t> expected(64, 7);
  for (size_t i = 0; i < 8; ++i) expected[8 + i] = static_cast<uint8_t>(i % 4 + 1);
  EXPECT_EQ(read(memory, 64), expected);
}

TEST_F(DriverMemory, StreamsCopyBetweenHostAndDevice) {
  const CUdeviceptr a = allocate(4096), b = allocate(4096);
  const Pinned from(*cu_, 4096), to(*cu_, 4096);
  const CUstream stream = make_stream();
  std::iota(from.as<uint8_t>(), from.as<uint8_t>() + 4096, 3);
  EXPECT_CU(cu_->cuMemcpyHtoDAsync(a, from.as<void>(), 4096, stream));
  EXPECT_CU(cu_->cuMemcpyDtoDAsync(b, a + 96, 4000, stream));
  EXPECT_CU(cu_->cuMemcpyDtoHAsync(to.as<void>(), b, 2000, stream));
  EXPECT_CU(cu_->cuMemcpyAsync(to.address() + 2000, b + 2000, 2000, stream));
  EXPECT_CU(cu_->cuStreamSynchronize(stream));
  EXPECT_TRUE(std::equal(to.as<uint8_t>(), to.as<uint8_t>() + 4000, from.as<uint8_t>() + 96));
}

TEST_F(DriverMemory, OwnMemoryIsRegisteredOnce) {
  alignas(4096) static uint8_t memory[8192];
  const CUdeviceptr device = allocate(8192);
  const CUstream stream = make_stream();
  EXPECT_EQ(cu_->cuMemHostUnregister(memory), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
  ASSERT_CU(cu_->cuMemHostRegister(memory, 8192, CU_MEMHOSTREGISTER_PORTABLE));
  EXPECT_EQ(cu_->cuMemHostRegister(memory, 4096, 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  EXPECT_CU(cu_->cuMemsetD8Async(device, 9, 8192, stream));
  EXPECT_CU(cu_->cuMemcpyDtoHAsync(memory, device, 8192, stream));
  EXPECT_CU(cu_->cuStreamSynchronize(stream));
  EXPECT_EQ(memory[8191], 9);
  EXPECT_CU(cu_->cuMemHostUnregister(memory));
}

}  // namespace
}  // namespace cgx::gpu
