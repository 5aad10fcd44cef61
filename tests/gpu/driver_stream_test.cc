// What a driver promises of the order of work: streams, events, words.
#include <atomic>
#include <thread>

#include "tests/gpu/driver_case.h"

namespace cgx::gpu {
namespace {

class DriverStreams : public DriverTest {
 protected:
  // Work that stands on a stream until the test opens it, or ten seconds are over.
  struct Gate {
    std::atomic<bool> open = false;
    static void stand(void* gate) {
      const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
      while (!static_cast<Gate*>(gate)->open && std::chrono::steady_clock::now() < end) {
        std::this_thread::yield();
      }
    }
  };
  void close_with(CUstream stream, Gate& gate) {
    EXPECT_CU(cu_->cuLaunchHostFunc(stream, Gate::stand, &gate));
  }
};

class DriverWords : public DriverStreams {
 protected:
  void SetUp() override {
    DriverStreams::SetUp();
    if (cu_ == nullptr) return;
    if (!cu_->lacks(Feature::kWords).ok() ||
        !device_->attribute(CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS)) {
      GTEST_SKIP() << "skipped: this device's streams neither write nor wait for words";
    }
  }
};

TEST_F(DriverStreams, WorkOfAStreamIsDoneInOrder) {
  const CUdeviceptr memory = allocate(4);
  const Pinned pinned(*cu_, 100);
  const CUstream stream = make_stream();
  for (uint8_t i = 0; i < 100; ++i) {
    EXPECT_CU(cu_->cuMemsetD8Async(memory, i, 1, stream));
    EXPECT_CU(cu_->cuMemcpyDtoHAsync(pinned.as<uint8_t>() + i, memory, 1, stream));
  }
  EXPECT_CU(cu_->cuStreamSynchronize(stream));
  for (uint8_t i = 0; i < 100; ++i) EXPECT_EQ(pinned.as<uint8_t>()[i], i);
}

TEST_F(DriverStreams, AnEventOrdersTwoStreams) {
  const CUdeviceptr memory = allocate(4096), copy = allocate(4096);
  const CUstream first = make_stream(), second = make_stream();
  const CUevent filled = make_event();
  for (uint8_t round = 1; round < 50; ++round) {
    EXPECT_CU(cu_->cuMemsetD8Async(memory, round, 4096, first));
    EXPECT_CU(cu_->cuEventRecord(filled, first));
    EXPECT_CU(cu_->cuStreamWaitEvent(second, filled, 0));
    EXPECT_CU(cu_->cuMemcpyDtoDAsync(copy, memory, 4096, second));
    EXPECT_CU(cu_->cuStreamSynchronize(second));
    ASSERT_EQ(read(copy, 4096), std::vector<uint8_t>(4096, round));
  }
}

TEST_F(DriverStreams, AnEventThatNobodyRecordedIsComplete) {
  const CUevent event = make_event();
  EXPECT_CU(cu_->cuEventQuery(event));
  EXPECT_CU(cu_->cuEventSynchronize(event));
  EXPECT_CU(cu_->cuStreamWaitEvent(make_stream(), event, 0));
}

TEST_F(DriverStreams, AWaitIsForTheRecordBeforeIt) {
  Gate gate;
  const CUstream first = make_stream(), second = make_stream();
  const CUevent event = make_event();
  EXPECT_CU(cu_->cuEventRecord(event, first));
  EXPECT_CU(cu_->cuStreamWaitEvent(second, event, 0));
  close_with(first, gate);
  EXPECT_CU(cu_->cuEventRecord(event, first));
  EXPECT_CU(cu_->cuStreamSynchronize(second));
  EXPECT_EQ(cu_->cuEventQuery(event), CUDA_ERROR_NOT_READY);
  gate.open = true;
  EXPECT_CU(cu_->cuEventSynchronize(event));
}

TEST_F(DriverStreams, QueriesTellWhetherWorkIsLeft) {
  Gate gate;
  const CUstream stream = make_stream();
  close_with(stream, gate);
  EXPECT_EQ(cu_->cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
  gate.open = true;
  EXPECT_CU(cu_->cuStreamSynchronize(stream));
  EXPECT_CU(cu_->cuStreamQuery(stream));
}

TEST_F(DriverStreams, TheDefaultStreamWaitsForStreamsThatAreNotApart) {
  Gate gate;
  const CUdeviceptr memory = allocate(64);
  const CUstream beside = make_stream(CU_STREAM_DEFAULT), apart = make_stream();
  EXPECT_CU(cu_->cuMemsetD8Async(memory, 1, 64, nullptr));
  EXPECT_CU(cu_->cuCtxSynchronize());
  close_with(beside, gate);
  EXPECT_CU(cu_->cuMemsetD8Async(memory, 2, 64, beside));
  EXPECT_CU(cu_->cuMemsetD8Async(memory, 3, 64, nullptr));
  EXPECT_CU(cu_->cuStreamSynchronize(apart));
  EXPECT_EQ(cu_->cuStreamQuery(nullptr), CUDA_ERROR_NOT_READY);
  gate.open = true;
  EXPECT_CU(cu_->cuStreamSynchronize(nullptr));
  EXPECT_EQ(read(memory, 64), std::vector<uint8_t>(64, 3));
}

TEST_F(DriverStreams, EachThreadHasADefaultStreamOfItsOwn) {
  const auto of_thread = reinterpret_cast<CUstream>(2);  // CU_STREAM_PER_THREAD
  Gate gate;
  const CUdeviceptr memory = allocate(64);
  EXPECT_CU(cu_->cuMemsetD8Async(memory, 1, 64, nullptr));
  EXPECT_CU(cu_->cuCtxSynchronize());
  close_with(of_thread, gate);
  EXPECT_CU(cu_->cuMemsetD8Async(memory, 2, 64, of_thread));
  std::thread([&] {
    EXPECT_CU(cu_->cuCtxSetCurrent(device_->context));
    EXPECT_CU(cu_->cuMemsetD8Async(memory, 3, 64, of_thread));
    EXPECT_CU(cu_->cuStreamSynchronize(of_thread));
  }).join();
  EXPECT_EQ(cu_->cuStreamQuery(of_thread), CUDA_ERROR_NOT_READY);
  gate.open = true;
  EXPECT_CU(cu_->cuStreamSynchronize(of_thread));
  EXPECT_EQ(read(memory, 64), std::vector<uint8_t>(64, 2));
}

TEST_F(DriverStreams, EventsMeasureTime) {
  const CUstream stream = make_stream();
  const CUevent start = make_event(CU_EVENT_DEFAULT), end = make_event(CU_EVENT_DEFAULT);
  Gate gate;
  EXPECT_CU(cu_->cuEventRecord(start, stream));
  close_with(stream, gate);
  EXPECT_CU(cu_->cuEventRecord(end, stream));
  float milliseconds = -1;
  EXPECT_EQ(cu_->cuEventElapsedTime(&milliseconds, start, end), CUDA_ERROR_NOT_READY);
  gate.open = true;
  EXPECT_CU(cu_->cuEventSynchronize(end));
  EXPECT_CU(cu_->cuEventElapsedTime(&milliseconds, start, end));
  EXPECT_GE(milliseconds, 0);
}

TEST_F(DriverStreams, AStreamThatIsDestroyedStillFinishes) {
  Gate gate;
  const CUdeviceptr memory = allocate(64);
  CUstream stream = nullptr;
  EXPECT_CU(cu_->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  close_with(stream, gate);
  EXPECT_CU(cu_->cuMemsetD8Async(memory, 5, 64, stream));
  EXPECT_CU(cu_->cuStreamDestroy(stream));
  gate.open = true;
  EXPECT_CU(cu_->cuCtxSynchronize());
  EXPECT_EQ(read(memory, 64), std::vector<uint8_t>(64, 5));
}

TEST_F(DriverWords, AWordOrdersTwoStreams) {
  const CUdeviceptr memory = allocate(4096), copy = allocate(4096);
  const Pinned words(*cu_, 4096);
  const CUstream first = make_stream(), second = make_stream();
  for (uint32_t round = 1; round < 50; ++round) {
    EXPECT_CU(cu_->cuMemsetD32Async(memory, round, 1024, first));
    EXPECT_CU(cu_->cuStreamWriteValue32(first, words.address(), round, 0));
    EXPECT_CU(cu_->cuStreamWaitValue32(second, words.address(), round, CU_STREAM_WAIT_VALUE_GEQ));
    EXPECT_CU(cu_->cuMemcpyDtoDAsync(copy, memory, 4096, second));
    EXPECT_CU(cu_->cuStreamSynchronize(second));
    ASSERT_EQ(read(copy, 4), read(memory, 4)) << round;
  }
  EXPECT_EQ(*words.as<uint32_t>(), 49u);
}

TEST_F(DriverWords, WideWordsLieInDeviceMemoryToo) {
  const CUdeviceptr word = allocate(64);
  const CUstream first = make_stream(), second = make_stream();
  write(word, std::vector<uint8_t>(64, 0));
  const uint64_t value = 0x100000002u;
  EXPECT_CU(cu_->cuStreamWriteValue64(first, word + 8, value, 0));
  EXPECT_CU(cu_->cuStreamWaitValue64(second, word + 8, value, CU_STREAM_WAIT_VALUE_EQ));
  EXPECT_CU(cu_->cuStreamSynchronize(second));
  EXPECT_EQ(read(word + 8, 8), (std::vector<uint8_t>{2, 0, 0, 0, 1, 0, 0, 0}));
}

TEST_F(DriverWords, WaitsAreCyclic) {
  const Pinned words(*cu_, 64);
  *words.as<uint32_t>() = 0xfffffff0u;
  const CUstream first = make_stream(), second = make_stream();
  EXPECT_CU(cu_->cuStreamWriteValue32(first, words.address(), 2, 0));  // 18 after what it was
  EXPECT_CU(cu_->cuStreamWaitValue32(second, words.address(), 0xfffffff8u, 0));
  EXPECT_CU(cu_->cuStreamSynchronize(second));
}

TEST_F(DriverWords, AWaitLooksAtBits) {
  const Pinned words(*cu_, 64);
  const CUstream stream = make_stream();
  *words.as<uint32_t>() = 6;
  EXPECT_CU(cu_->cuStreamWaitValue32(stream, words.address(), 2, CU_STREAM_WAIT_VALUE_AND));
  EXPECT_CU(cu_->cuStreamSynchronize(stream));
}

// Who survives a death does this.
TEST_F(DriverWords, TheProcessorMayStoreTheWord) {
  Gate gate;
  const Pinned words(*cu_, 64);
  *words.as<uint32_t>() = 0;
  const CUstream writer = make_stream(), reader = make_stream();
  close_with(writer, gate);
  EXPECT_CU(cu_->cuStreamWriteValue32(writer, words.address(), 1, 0));
  EXPECT_CU(cu_->cuStreamWaitValue32(reader, words.address(), 1, 0));
  EXPECT_EQ(cu_->cuStreamQuery(reader), CUDA_ERROR_NOT_READY);
  __atomic_store_n(words.as<uint32_t>(), 1u, __ATOMIC_RELEASE);
  EXPECT_CU(cu_->cuStreamSynchronize(reader));
  EXPECT_EQ(cu_->cuStreamQuery(writer), CUDA_ERROR_NOT_READY);
  gate.open = true;
  EXPECT_CU(cu_->cuStreamSynchronize(writer));
}

}  // namespace
}  // namespace cgx::gpu
