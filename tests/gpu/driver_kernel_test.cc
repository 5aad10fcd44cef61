// What a driver promises of modules and launches. The kernel is PTX for a real driver and a host
// function for the stand-in.
#include "tests/gpu/driver/twin.h"
#include "tests/gpu/driver_case.h"

namespace cgx::gpu {
namespace {

// *(u32*)(memory + 4 * i) += more, for every thread i below count.
constexpr char kImage[] = R"(
.version 7.0
.target sm_80
.address_size 64
.visible .entry cgx_test_add(.param .u64 memory, .param .u32 count, .param .u32 more)
{
  .reg .pred %p; .reg .b32 %r<7>; .reg .b64 %rd<4>;
  ld.param.u64 %rd1, [memory];
  ld.param.u32 %r1, [count];
  ld.param.u32 %r2, [more];
  mov.u32 %r3, %ctaid.x; mov.u32 %r4, %ntid.x; mov.u32 %r5, %tid.x;
  mad.lo.s32 %r3, %r3, %r4, %r5;
  setp.ge.u32 %p, %r3, %r1;
  @%p bra DONE;
  cvta.to.global.u64 %rd2, %rd1;
  mul.wide.u32 %rd3, %r3, 4;
  add.s64 %rd2, %rd2, %rd3;
  ld.global.u32 %r6, [%rd2];
  add.u32 %r6, %r6, %r2;
  st.global.u32 [%rd2], %r6;
DONE:
  ret;
}
)";

void add_twin(const standin::Launch& launch) {
  uint32_t* const memory = *static_cast<uint32_t* const*>(launch.parameters[0]);
  const uint32_t count = *static_cast<const uint32_t*>(launch.parameters[1]);
  const uint32_t more = *static_cast<const uint32_t*>(launch.parameters[2]);
  for (uint32_t i = 0; i < launch.grid[0] * launch.block[0] && i < count; ++i) memory[i] += more;
}
constexpr uint32_t kParameterBytes[] = {8, 4, 4};
constexpr standin::Twin kTwin = {"cgx_test_add", add_twin, kParameterBytes, 3};

class DriverKernels : public DriverTest {
 protected:
  void SetUp() override {
    DriverTest::SetUp();
    if (cu_ == nullptr) return;
    if (void* const add = standin_function("cgx_standin_add_twins")) {
      reinterpret_cast<void (*)(const void*, size_t)>(add)(&kTwin, 1);
    }
    ASSERT_CU(cu_->cuModuleLoadData(&module_, kImage));
    ASSERT_CU(cu_->cuModuleGetFunction(&function_, module_, "cgx_test_add"));
  }
  void TearDown() override {
    if (module_ != nullptr) {
      EXPECT_CU(cu_->cuModuleUnload(module_));
    }
    DriverTest::TearDown();
  }
  CUresult launch(CUdeviceptr memory, uint32_t count, uint32_t more, CUstream stream,
                  unsigned threads = 32, unsigned shared_bytes = 0) {
    void* parameters[] = {&memory, &count, &more};
    return cu_->cuLaunchKernel(function_, (count + threads - 1) / threads, 1, 1, threads, 1, 1,
                               shared_bytes, stream, parameters, nullptr);
  }

  CUmodule module_ = nullptr;
  CUfunction function_ = nullptr;
};

TEST_F(DriverKernels, RunOnDeviceMemoryInOrder) {
  const CUdeviceptr memory = allocate(400);
  const CUstream stream = make_stream();
  EXPECT_CU(cu_->cuMemsetD32Async(memory, 5, 100, stream));
  EXPECT_CU(launch(memory, 100, 2, stream));
  EXPECT_CU(launch(memory, 99, 3, stream));  // parameters as they were at each launch
  EXPECT_CU(cu_->cuStreamSynchronize(stream));
  EXPECT_EQ(read(memory + 98 * 4, 8), (std::vector<uint8_t>{10, 0, 0, 0, 7, 0, 0, 0}));
}

TEST_F(DriverKernels, RunOnRegisteredHostMemory) {
  const Pinned pinned(*cu_, 64);
  *pinned.as<uint32_t>() = 40;
  const CUstream stream = make_stream();
  EXPECT_CU(launch(pinned.address(), 1, 2, stream));
  EXPECT_CU(cu_->cuStreamSynchronize(stream));
  EXPECT_EQ(*pinned.as<uint32_t>(), 42u);
}

TEST_F(DriverKernels, RefuseShapesThatNoDeviceHas) {
  const CUdeviceptr memory = allocate(4);
  EXPECT_EQ(launch(memory, 1, 0, nullptr, 2048), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(launch(memory, 0, 0, nullptr), CUDA_ERROR_INVALID_VALUE);  // a grid of no blocks
  EXPECT_EQ(launch(memory, 1, 0, nullptr, 32, 64u << 10), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(DriverKernels, MoreSharedMemoryIsForTheAsking) {
  int most = 0, now = 0;
  EXPECT_CU(cu_->cuDeviceGetAttribute(&most, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
                                      device_->device));
  if (most < 64 << 10) GTEST_SKIP() << "skipped: blocks of this device have at most " << most;
  const CUfunction_attribute limit = CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
  EXPECT_NE(cu_->cuFuncSetAttribute(function_, limit, most + 1), CUDA_SUCCESS);
  EXPECT_CU(cu_->cuFuncSetAttribute(function_, limit, 64 << 10));
  EXPECT_CU(cu_->cuFuncGetAttribute(&now, limit, function_));
  EXPECT_EQ(now, 64 << 10);
  EXPECT_CU(launch(allocate(4), 1, 0, nullptr, 32, 64u << 10));
  EXPECT_CU(cu_->cuCtxSynchronize());
}

TEST_F(DriverKernels, OccupancyFallsWithSharedMemory) {
  int small = 0, large = 0;
  EXPECT_CU(cu_->cuOccupancyMaxActiveBlocksPerMultiprocessor(&small, function_, 256, 0));
  EXPECT_CU(cu_->cuOccupancyMaxActiveBlocksPerMultiprocessor(&large, function_, 256, 40u << 10));
  EXPECT_GE(small, 1);
  EXPECT_LT(large, small);
}

TEST_F(DriverKernels, AreKnownByName) {
  CUfunction other = nullptr;
  EXPECT_EQ(cu_->cuModuleGetFunction(&other, module_, "cgx_test_ad"), CUDA_ERROR_NOT_FOUND);
  CUmodule none = nullptr;
  EXPECT_NE(cu_->cuModuleLoadData(&none, "neither code nor text of a kernel"), CUDA_SUCCESS);
}

}  // namespace
}  // namespace cgx::gpu
