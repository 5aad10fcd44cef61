// What a driver promises of memory between processes: handles, descriptors, words.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/gpu/driver_case.h"
#include "tests/gpu/roles.h"

namespace cgx::gpu {
namespace {

constexpr size_t kBytes = 3 * 4096 + 100, kOffset = 5000;

// What the child's end of a test says last.
constexpr int kFine = 0, kNoDevice = 77;

#define ROLE_CU(call)                                                                        \
  if (const CUresult result = call; result != CUDA_SUCCESS) {                                \
    return std::fprintf(stderr, "%s: %s\n", #call, ::cgx::gpu::words_of(result).c_str()), 1; \
  }

int finish(const Driver& cu) {
  ROLE_CU(cu.cuCtxSynchronize());
  return accusations().empty() ? kFine : 2;
}

// Opens a handle twice, reads a byte, writes another, says its address.
int opens_handle(Channel& parent) {
  const auto device = Device::open();
  if (device == nullptr) return kNoDevice;
  const Driver& cu = device->driver;
  CUdeviceptr memory = 0, again = 0;
  const auto handle = parent.receive<CUipcMemHandle>();
  ROLE_CU(cu.cuIpcOpenMemHandle(&memory, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
  ROLE_CU(cu.cuIpcOpenMemHandle(&again, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
  uint8_t byte = 0;
  ROLE_CU(cu.cuMemcpyDtoH(&byte, memory + kOffset, 1));
  parent.send(byte);
  parent.send(again == memory);
  ROLE_CU(cu.cuMemcpyHtoD(memory + kOffset + 1, &++byte, 1));
  ROLE_CU(cu.cuStreamSynchronize(nullptr));
  ROLE_CU(cu.cuIpcCloseMemHandle(memory));
  ROLE_CU(cu.cuIpcCloseMemHandle(memory));
  return finish(cu);
}
const bool kOpensHandle = add_role("opens_handle", opens_handle);

class DriverSharing : public DriverTest {
 protected:
  // A handle is 64 bytes that come from outside.
  static CUresult open(const Driver& cu, const CUipcMemHandle& handle) {
    CUdeviceptr memory = 0;
    return cu.cuIpcOpenMemHandle(&memory, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
  }
};

TEST_F(DriverSharing, AHandleShowsTheSameMemoryToAnotherProcess) {
  const CUdeviceptr memory = allocate(kBytes);
  CUipcMemHandle handle;
  if (cu_->cuIpcGetMemHandle(&handle, memory) == CUDA_ERROR_NOT_SUPPORTED) {
    GTEST_SKIP() << "skipped: this driver makes no handles";
  }
  write(memory + kOffset, {41, 0});
  Child child("opens_handle");
  child.channel().send(handle);
  EXPECT_EQ(child.channel().receive<uint8_t>(), 41);
  EXPECT_TRUE(child.channel().receive<bool>());
  EXPECT_EQ(child.wait(), kFine) << child.words();
  EXPECT_EQ(read(memory + kOffset, 2), (std::vector<uint8_t>{41, 42}));
}

TEST_F(DriverSharing, AForgedHandleIsRefused) {
  EXPECT_NE(open(*cu_, {}), CUDA_SUCCESS);
}

// Memory that travels as a descriptor, mapped.
struct Mapped {
  CUmemGenericAllocationHandle handle = 0;
  CUdeviceptr address = 0;
  size_t bytes = 0;

  CUresult map(const Driver& cu, int device) {
    const CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, device},
                                    CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUresult result = cu.cuMemAddressReserve(&address, bytes, 0, 0, 0);
    if (result == CUDA_SUCCESS) result = cu.cuMemMap(address, bytes, 0, handle, 0);
    return result == CUDA_SUCCESS ? cu.cuMemSetAccess(address, bytes, &access, 1) : result;
  }
  CUresult unmap(const Driver& cu) const {
    const CUresult result = cu.cuMemUnmap(address, bytes);
    return result == CUDA_SUCCESS ? cu.cuMemAddressFree(address, bytes) : result;
  }
};
constexpr unsigned kDescriptor = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

void* as_pointer(int fd) {
  return reinterpret_cast<void*>(static_cast<intptr_t>(fd));
}

// Maps a descriptor's memory, waits until its maker has let go of it, reads and writes.
int maps_descriptor(Channel& parent) {
  const auto device = Device::open();
  if (device == nullptr) return kNoDevice;
  const Driver& cu = device->driver;
  Mapped memory;
  memory.bytes = parent.receive<size_t>();
  const int fd = parent.receive_descriptor();
  ROLE_CU(cu.cuMemImportFromShareableHandle(&memory.handle, as_pointer(fd), kDescriptor));
  close(fd);
  ROLE_CU(memory.map(cu, device->device));
  ROLE_CU(cu.cuMemRelease(memory.handle));
  parent.send(true);
  parent.receive<bool>();
  uint8_t byte = 0;
  ROLE_CU(cu.cuMemcpyDtoH(&byte, memory.address + kOffset, 1));
  parent.send(byte);
  ROLE_CU(memory.unmap(cu));
  return finish(cu);
}
const bool kMapsDescriptor = add_role("maps_descriptor", maps_descriptor);

class DriverDescriptors : public DriverTest {
 protected:
  void SetUp() override {
    DriverTest::SetUp();
    if (cu_ == nullptr) return;
    if (!cu_->lacks(Feature::kVmm).ok() ||
        !device_->attribute(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED)) {
      GTEST_SKIP() << "skipped: this device's memory does not travel as a descriptor";
    }
    kind_.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    kind_.requestedHandleTypes = kDescriptor;
    kind_.location = {CU_MEM_LOCATION_TYPE_DEVICE, device_->device};
    ASSERT_CU(cu_->cuMemGetAllocationGranularity(&memory_.bytes, &kind_,
                                                 CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  }
  CUmemAllocationProp kind_ = {};
  Mapped memory_;
};

TEST_F(DriverDescriptors, MappedMemoryIsMemory) {
  ASSERT_CU(cu_->cuMemCreate(&memory_.handle, memory_.bytes, &kind_, 0));
  ASSERT_CU(memory_.map(*cu_, device_->device));
  EXPECT_CU(cu_->cuMemRelease(memory_.handle));  // the mapping keeps it
  write(memory_.address + 7, {1, 2, 3});
  EXPECT_EQ(read(memory_.address + 8, 2), (std::vector<uint8_t>{2, 3}));
  EXPECT_CU(memory_.unmap(*cu_));
}

TEST_F(DriverDescriptors, SizesAreMultiplesOfTheGranularity) {
  EXPECT_NE(cu_->cuMemCreate(&memory_.handle, memory_.bytes - 4096, &kind_, 0), CUDA_SUCCESS);
  EXPECT_NE(cu_->cuMemAddressReserve(&memory_.address, 4096, 0, 0, 0), CUDA_SUCCESS);
}

TEST_F(DriverDescriptors, MemoryOutlivesItsMakersHandle) {
  int fd = -1;
  ASSERT_CU(cu_->cuMemCreate(&memory_.handle, memory_.bytes, &kind_, 0));
  ASSERT_CU(memory_.map(*cu_, device_->device));
  ASSERT_CU(cu_->cuMemExportToShareableHandle(&fd, memory_.handle, kDescriptor, 0));
  write(memory_.address + kOffset, {99});
  Child child("maps_descriptor");
  child.channel().send(memory_.bytes);
  child.channel().send_descriptor(fd);
  close(fd);
  EXPECT_TRUE(child.channel().receive<bool>());
  EXPECT_CU(memory_.unmap(*cu_));
  EXPECT_CU(cu_->cuMemRelease(memory_.handle));
  child.channel().send(true);
  EXPECT_EQ(child.channel().receive<uint8_t>(), 99);
  EXPECT_EQ(child.wait(), kFine) << child.words();
}

TEST_F(DriverDescriptors, AnotherFileIsRefused) {
  const int fd = memfd_create("other", MFD_CLOEXEC);
  ASSERT_EQ(ftruncate(fd, static_cast<off_t>(memory_.bytes)), 0);
  EXPECT_NE(cu_->cuMemImportFromShareableHandle(&memory_.handle, as_pointer(fd), kDescriptor),
            CUDA_SUCCESS);
  close(fd);
}

// A worker as cgxd-gpu will be one: waits for the trainer's word, copies, writes its own.
constexpr uint32_t kRounds = 40;

struct Words {
  alignas(64) uint32_t ready;
  alignas(64) uint32_t done;
};

struct SharedWords {
  explicit SharedWords(const Driver& driver, int fd) : cu(driver) {
    memory = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    EXPECT_CU(cu.cuMemHostRegister(memory, 4096, CU_MEMHOSTREGISTER_PORTABLE));
    CUdeviceptr address = 0;
    EXPECT_CU(cu.cuMemHostGetDevicePointer(&address, memory, 0));
    ready = address + offsetof(Words, ready);
    done = address + offsetof(Words, done);
  }
  ~SharedWords() {
    EXPECT_CU(cu.cuMemHostUnregister(memory));
    munmap(memory, 4096);
  }
  const Driver& cu;
  void* memory;
  CUdeviceptr ready, done;
};

int works_by_words(Channel& parent) {
  const auto device = Device::open();
  if (device == nullptr) return kNoDevice;
  const Driver& cu = device->driver;
  const int fd = parent.receive_descriptor();
  const SharedWords words(cu, fd);
  close(fd);
  CUdeviceptr memory = 0;
  CUstream stream = nullptr;
  ROLE_CU(cu.cuIpcOpenMemHandle(&memory, parent.receive<CUipcMemHandle>(), 1));
  ROLE_CU(cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  for (uint32_t round = 1; round <= kRounds; ++round) {
    parent.receive<uint32_t>();  // its write is enqueued
    ROLE_CU(cu.cuStreamWaitValue32(stream, words.ready, round, CU_STREAM_WAIT_VALUE_GEQ));
    ROLE_CU(cu.cuMemcpyDtoDAsync(memory + 4096, memory, 4096, stream));
    ROLE_CU(cu.cuStreamWriteValue32(stream, words.done, round, 0));
    parent.send(round);
  }
  ROLE_CU(cu.cuStreamSynchronize(stream));
  ROLE_CU(cu.cuStreamDestroy(stream));
  ROLE_CU(cu.cuIpcCloseMemHandle(memory));
  return finish(cu);
}
const bool kWorksByWords = add_role("works_by_words", works_by_words);

TEST_F(DriverSharing, WordsOrderTwoProcesses) {
  const CUdeviceptr memory = allocate(8192);
  CUipcMemHandle handle;
  if (cu_->cuIpcGetMemHandle(&handle, memory) == CUDA_ERROR_NOT_SUPPORTED ||
      !device_->attribute(CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS)) {
    GTEST_SKIP() << "skipped: this driver has no handles or no words";
  }
  const int fd = memfd_create("words", MFD_CLOEXEC);
  ASSERT_EQ(ftruncate(fd, 4096), 0);
  const SharedWords words(*cu_, fd);
  Child child("works_by_words");
  child.channel().send_descriptor(fd);
  close(fd);
  child.channel().send(handle);
  const CUstream stream = make_stream();
  const Pinned results(*cu_, 4096 * kRounds);
  for (uint32_t round = 1; round <= kRounds; ++round) {
    EXPECT_CU(cu_->cuMemsetD32Async(memory, round, 1024, stream));
    EXPECT_CU(cu_->cuStreamWriteValue32(stream, words.ready, round, 0));
    child.channel().send(round);
    ASSERT_EQ(child.channel().receive<uint32_t>(), round);
    EXPECT_CU(cu_->cuStreamWaitValue32(stream, words.done, round, CU_STREAM_WAIT_VALUE_GEQ));
    EXPECT_CU(cu_->cuMemcpyDtoHAsync(results.as<uint8_t>() + 4096 * (round - 1), memory + 4096,
                                     4096, stream));
  }
  EXPECT_CU(cu_->cuStreamSynchronize(stream));
  EXPECT_EQ(child.wait(), kFine) << child.words();
  for (uint32_t i = 0; i < kRounds * 1024; ++i) {
    ASSERT_EQ(results.as<uint32_t>()[i], i / 1024 + 1) << i;
  }
}

}  // namespace
}  // namespace cgx::gpu
