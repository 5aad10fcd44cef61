// What only the stand-in does: faults on demand, accusations, host code that may not touch device
// memory.
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <thread>

#include "tests/gpu/driver/control.h"
#include "tests/gpu/driver/twin.h"
#include "tests/gpu/driver_case.h"
#include "tests/gpu/roles.h"

namespace cgx::gpu {
namespace {

constexpr int kAccused = 66;  // how a strict process ends that was accused
constexpr char kImage[] =
    ".version 7.0\n.visible .entry cgx_test_wild()\n.entry cgx_test_twinless()";

template <class F>
F* control(const char* name) {
  return reinterpret_cast<F*>(standin_function(name));
}
#define CONTROL(name) control<decltype(name)>(#name)

void set(const char* words) {
  const char* const wrong = CONTROL(cgx_standin_set)(words);
  ASSERT_EQ(wrong, nullptr) << wrong;
}

class Standin : public DriverTest {
 protected:
  void SetUp() override {
    DriverTest::SetUp();
    ASSERT_NE(cu_, nullptr) << why_no_driver();
    ASSERT_NE(standin_function("cgx_standin_set"), nullptr) << "this is another driver";
    CONTROL(cgx_standin_forget)();
  }
  void TearDown() override {
    set("recover with=words with=vmm with=ipc");
    DriverTest::TearDown();
  }
  // Ends the accusations that the test wanted; they contain `words`.
  void expect_accused(const std::string& words) {
    EXPECT_NE(accusations().find(words), std::string::npos) << accusations();
    CONTROL(cgx_standin_forget)();
  }
};

template <class... Arguments>
CUresult call_with_nothing(CUresult (*function)(Arguments...)) {
  return function(Arguments{}...);
}

TEST_F(Standin, EachFunctionFailsOnDemandAndIsCounted) {
#define X(name, symbol, feature, parameters)                 \
  set("fail=" #name ":*=999");                               \
  EXPECT_EQ(call_with_nothing(cu_->name), 999u) << #name;    \
  EXPECT_GE(CONTROL(cgx_standin_calls)(#name), 1u) << #name; \
  set("recover");
#include "proto/device/driver.def"
#undef X
}

TEST_F(Standin, TheNthCallFails) {
  set("fail=cuMemAlloc:2=2");
  allocate(10);
  CUdeviceptr memory = 0;
  EXPECT_EQ(cu_->cuMemAlloc(&memory, 10), CUDA_ERROR_OUT_OF_MEMORY);
  allocate(10);
}

TEST_F(Standin, UnknownOrdersAreRefused) {
  EXPECT_NE(CONTROL(cgx_standin_set)("fail=cuNothing:1=2"), nullptr);
  EXPECT_NE(CONTROL(cgx_standin_set)("memroy=1"), nullptr);
}

TEST_F(Standin, AQuotaIsKept) {
  set("memory=1M");
  CUdeviceptr memory = 0;
  EXPECT_EQ(cu_->cuMemAlloc(&memory, 2u << 20), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_CU(cu_->cuMemAlloc(&memory, 1u << 20));
  EXPECT_CU(cu_->cuMemFree(memory));
  set("memory=1G");
}

TEST_F(Standin, FeaturesAreMissingOnDemand) {
  const CUdeviceptr memory = allocate(64);
  const CUstream stream = make_stream();
  CUipcMemHandle handle;
  size_t bytes = 0;
  const CUmemAllocationProp kind = {};
  set("without=words without=vmm without=ipc");
  EXPECT_FALSE(device_->attribute(CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS));
  EXPECT_FALSE(device_->attribute(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED));
  EXPECT_EQ(cu_->cuStreamWriteValue32(stream, memory, 1, 0), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(cu_->cuMemGetAllocationGranularity(&bytes, &kind, 0), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(cu_->cuIpcGetMemHandle(&handle, memory), CUDA_ERROR_NOT_SUPPORTED);
}

// Both by their own instructions and by the kernel in their name.
TEST_F(Standin, HostCodeCannotTouchDeviceMemory) {
  if (std::string(CONTROL(cgx_standin_protection)()) == "none") GTEST_SKIP() << "skipped: open";
  const CUdeviceptr memory = allocate(64);
  int pipes[2];
  ASSERT_EQ(pipe(pipes), 0);
  errno = 0;
  EXPECT_EQ(::write(pipes[1], reinterpret_cast<void*>(memory), 4), -1);
  EXPECT_EQ(errno, EFAULT);
  close(pipes[0]);
  close(pipes[1]);
}

TEST_F(Standin, DevicesOverrunIsNoticedByCopies) {
  const CUdeviceptr memory = allocate(1000);
  uint8_t byte = 0;
  EXPECT_EQ(cu_->cuMemcpyDtoH(&byte, memory + 1000, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu_->cuMemcpyHtoD(memory + 999, "ab", 2), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(Standin, AMissingWaitShows) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "skipped: ThreadSanitizer calls it a race, as it should";
#endif
  const CUdeviceptr memory = allocate(4096), copy = allocate(4096);
  set("seed=11");
  const CUstream first = make_stream(), second = make_stream();
  int wrong = 0;
  for (uint8_t round = 1; round <= 100; ++round) {
    EXPECT_CU(cu_->cuMemsetD8Async(memory, round, 4096, first));
    EXPECT_CU(cu_->cuMemcpyDtoDAsync(copy, memory, 4096, second));
    EXPECT_CU(cu_->cuCtxSynchronize());
    wrong += read(copy, 1)[0] != round;
  }
  EXPECT_GT(wrong, 3);
}

TEST_F(Standin, AccusesAWaitBeforeItsWrite) {
  const Pinned words(*cu_, 64);
  *words.as<uint32_t>() = 0;
  const CUstream stream = make_stream();
  EXPECT_CU(cu_->cuStreamWaitValue32(stream, words.address(), 1, 0));
  __atomic_store_n(words.as<uint32_t>(), 1u, __ATOMIC_RELEASE);
  EXPECT_CU(cu_->cuStreamSynchronize(stream));
  expect_accused("before its write is enqueued anywhere");
}

TEST_F(Standin, AccusesCopiesOfMemoryThatIsNotRegistered) {
  const CUdeviceptr memory = allocate(4);
  uint32_t number = 5;
  const CUstream stream = make_stream();
  EXPECT_CU(cu_->cuMemcpyHtoDAsync(memory, &number, 4, stream));
  number = 6;  // it was read before the call returned
  EXPECT_CU(cu_->cuStreamSynchronize(stream));
  EXPECT_EQ(read(memory, 1)[0], 5);
  expect_accused("are not registered");
}

TEST_F(Standin, AccusesWordsInMemoryThatIsNotRegistered) {
  static uint32_t word = 0;
  EXPECT_EQ(cu_->cuStreamWriteValue32(make_stream(), reinterpret_cast<CUdeviceptr>(&word), 1, 0),
            CUDA_ERROR_INVALID_VALUE);
  expect_accused("not registered");
}

TEST_F(Standin, AccusesWhoOpensItsOwnHandle) {
  CUipcMemHandle handle;
  EXPECT_CU(cu_->cuIpcGetMemHandle(&handle, allocate(64)));
  CUdeviceptr memory = 0;
  EXPECT_NE(cu_->cuIpcOpenMemHandle(&memory, handle, 1), CUDA_SUCCESS);
  expect_accused("opened by the process that made it");
}

TEST_F(Standin, AccusesWhoImportsItsOwnDescriptor) {
  CUmemAllocationProp kind = {};
  kind.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  kind.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  kind.location = {CU_MEM_LOCATION_TYPE_DEVICE, device_->device};
  CUmemGenericAllocationHandle handle = 0, again = 0;
  int fd = -1;
  ASSERT_CU(cu_->cuMemCreate(&handle, 2u << 20, &kind, 0));
  ASSERT_CU(cu_->cuMemExportToShareableHandle(&fd, handle, kind.requestedHandleTypes, 0));
  ASSERT_CU(cu_->cuMemImportFromShareableHandle(
      &again, reinterpret_cast<void*>(static_cast<intptr_t>(fd)), kind.requestedHandleTypes));
  expect_accused("imported by the process that made it");
  EXPECT_CU(cu_->cuMemRelease(again));
  EXPECT_CU(cu_->cuMemRelease(handle));
  close(fd);
}

void wait_until_true(void* flag) {
  while (!static_cast<std::atomic<bool>*>(flag)->load()) std::this_thread::yield();
}

TEST_F(Standin, AccusesWhoUnmapsWhatWorkUses) {
  CUmemAllocationProp kind = {};
  kind.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  kind.location = {CU_MEM_LOCATION_TYPE_DEVICE, device_->device};
  const CUmemAccessDesc access = {kind.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  constexpr size_t kBytes = 2u << 20;
  const CUstream stream = make_stream();
  for (const bool used : {false, true}) {
    std::atomic<bool> go = !used;
    CUmemGenericAllocationHandle handle = 0;
    CUdeviceptr memory = 0;
    ASSERT_CU(cu_->cuMemCreate(&handle, kBytes, &kind, 0));
    ASSERT_CU(cu_->cuMemAddressReserve(&memory, kBytes, 0, 0, 0));
    ASSERT_CU(cu_->cuMemMap(memory, kBytes, 0, handle, 0));
    ASSERT_CU(cu_->cuMemSetAccess(memory, kBytes, &access, 1));
    EXPECT_CU(cu_->cuLaunchHostFunc(stream, wait_until_true, &go));
    EXPECT_CU(cu_->cuMemsetD8Async(memory, 1, 64, stream));
    const CUresult before = used ? CUDA_SUCCESS : cu_->cuStreamSynchronize(stream);
    EXPECT_CU(before);
    EXPECT_CU(cu_->cuMemUnmap(memory, kBytes));
    go = true;
    EXPECT_CU(cu_->cuStreamSynchronize(stream));
    EXPECT_CU(cu_->cuMemAddressFree(memory, kBytes));
    EXPECT_CU(cu_->cuMemRelease(handle));
    EXPECT_EQ(accusations().empty(), !used);
  }
  expect_accused("cuMemUnmap: 2097152 bytes are taken away while work that is enqueued uses them");
}

TEST_F(Standin, AccusesWhoUnregistersWhatWorkUses) {
  alignas(4096) static uint32_t words[1024];
  const CUstream stream = make_stream();
  std::atomic<bool> go = false;
  ASSERT_CU(cu_->cuMemHostRegister(words, sizeof(words), 0));
  EXPECT_CU(cu_->cuLaunchHostFunc(stream, wait_until_true, &go));
  const auto address = reinterpret_cast<CUdeviceptr>(&words[0]);
  EXPECT_CU(cu_->cuStreamWriteValue32(stream, address, 1, 0));
  std::thread opens([&] {
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (accusations().empty() && std::chrono::steady_clock::now() < limit) {
      std::this_thread::yield();
    }
    go = true;
  });
  EXPECT_CU(cu_->cuMemHostUnregister(words));
  opens.join();
  EXPECT_EQ(words[0], 1u);
  expect_accused("cuMemHostUnregister: 4096 bytes are taken away");
}

TEST_F(Standin, AccusesHostFunctionsThatCallTheDriver) {
  const CUstream stream = make_stream();
  struct Call {
    const Driver* cu;
    CUresult result;
  } call = {cu_, CUDA_SUCCESS};
  const CUhostFn function = [](void* with) {
    auto* const inner = static_cast<Call*>(with);
    size_t free = 0, total = 0;
    inner->result = inner->cu->cuMemGetInfo(&free, &total);
  };
  EXPECT_CU(cu_->cuLaunchHostFunc(stream, function, &call));
  EXPECT_CU(cu_->cuStreamSynchronize(stream));
  EXPECT_EQ(call.result, CUDA_ERROR_NOT_PERMITTED);
  expect_accused("cuMemGetInfo is called by a host function");
}

TEST_F(Standin, AccusesAKernelWithoutATwin) {
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  ASSERT_CU(cu_->cuModuleLoadData(&module, kImage));
  EXPECT_EQ(cu_->cuModuleGetFunction(&function, module, "cgx_test_twinless"), CUDA_ERROR_NOT_FOUND);
  EXPECT_CU(cu_->cuModuleUnload(module));
  expect_accused("cgx_test_twinless has no twin");
}

// Opens a handle, says where, and keeps it until it is told to go.
int keeps_handle(Channel& parent) {
  const auto device = Device::open();
  CUdeviceptr memory = 0;
  const CUresult result =
      device->driver.cuIpcOpenMemHandle(&memory, parent.receive<CUipcMemHandle>(), 1);
  parent.send(result == CUDA_SUCCESS ? memory : 0);
  parent.receive<bool>();
  return device->driver.cuIpcCloseMemHandle(memory) == CUDA_SUCCESS ? 0 : 1;
}
const bool kKeepsHandle = add_role("keeps_handle", keeps_handle);

TEST_F(Standin, AddressesDifferAndWhatIsImportedMayNotBeFreed) {
  CUdeviceptr memory = 0;
  CUipcMemHandle handle;
  ASSERT_CU(cu_->cuMemAlloc(&memory, 8192));
  ASSERT_CU(cu_->cuIpcGetMemHandle(&handle, memory));
  Child child("keeps_handle");
  child.channel().send(handle);
  const auto address = child.channel().receive<CUdeviceptr>();
  EXPECT_NE(address, 0u);
  EXPECT_NE(address, memory);
  EXPECT_CU(cu_->cuMemFree(memory));
  expect_accused("freed while another process has them open");
  child.channel().send(true);
  EXPECT_EQ(child.wait(), 0) << child.words();
}

TEST_F(Standin, AnImporterThatDiedHoldsNothing) {
  CUipcMemHandle handle;
  CUdeviceptr memory = 0;
  ASSERT_CU(cu_->cuMemAlloc(&memory, 8192));
  ASSERT_CU(cu_->cuIpcGetMemHandle(&handle, memory));
  {
    Child child("keeps_handle");
    child.channel().send(handle);
    EXPECT_NE(child.channel().receive<CUdeviceptr>(), 0u);
  }
  EXPECT_CU(cu_->cuMemFree(memory));  // TearDown requires silence
}

int leaks(Channel&) {
  const auto device = Device::open();
  CUdeviceptr memory = 0;
  return device->driver.cuMemAlloc(&memory, 12345) == CUDA_SUCCESS ? 0 : 1;
}
const bool kLeaks = add_role("leaks", leaks);

TEST_F(Standin, AccusesWhatIsLeftAtTheEnd) {
  Child child("leaks", "strict");
  EXPECT_EQ(child.wait(), kAccused);
  EXPECT_EQ(child.words(), "VIOLATION leaked: 12345 bytes of device memory, allocated\n");
}

// Launches a kernel that writes past its memory.
void wild_twin(const standin::Launch& launch) {
  uint8_t* const memory = *static_cast<uint8_t* const*>(launch.parameters[0]);
  *const_cast<volatile uint8_t*>(memory) = 1;
}
constexpr uint32_t kPointerBytes[] = {8};
constexpr standin::Twin kWild = {"cgx_test_wild", wild_twin, kPointerBytes, 1};

int goes_wild(Channel& parent) {
  const auto device = Device::open();
  const Driver& cu = device->driver;
  CONTROL(cgx_standin_add_twins)(&kWild, 1);
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  CUdeviceptr memory = 0;
  if (cu.cuModuleLoadData(&module, kImage) != CUDA_SUCCESS) return 1;
  if (cu.cuModuleGetFunction(&function, module, "cgx_test_wild") != CUDA_SUCCESS) return 2;
  if (cu.cuMemAlloc(&memory, 512) != CUDA_SUCCESS) return 3;
  const auto launch = [&](CUdeviceptr at) {
    void* parameters[] = {&at};
    return cu.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, nullptr, parameters, nullptr);
  };
  if (launch(memory + 511) != CUDA_SUCCESS) return 4;
  parent.send(cu.cuCtxSynchronize());
  if (launch(memory + 512) != CUDA_SUCCESS) return 5;
  parent.send(cu.cuCtxSynchronize());
  parent.send(cu.cuMemFree(memory));
  parent.send(cu.cuCtxSynchronize());
  return 0;
}
const bool kGoesWild = add_role("goes_wild", goes_wild);

TEST_F(Standin, AKernelThatLeavesItsMemoryBreaksTheContextForGood) {
  Child child("goes_wild", "");
  EXPECT_EQ(child.channel().receive<CUresult>(), CUDA_SUCCESS);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(child.channel().receive<CUresult>(), CUDA_ERROR_ILLEGAL_ADDRESS);
  }
  EXPECT_EQ(child.wait(), 0) << child.words();
}

// Waits on a stream for a word whose write never runs, until the device is lost.
int loses_device(Channel& parent) {
  const auto device = Device::open();
  const Driver& cu = device->driver;
  CUstream stream = nullptr;
  void* word = nullptr;
  if (cu.cuStreamCreate(&stream, 0) != CUDA_SUCCESS) return 1;
  if (cu.cuMemHostAlloc(&word, 64, 0) != CUDA_SUCCESS) return 2;
  std::memset(word, 0, 64);
  const auto address = reinterpret_cast<CUdeviceptr>(word);
  if (cu.cuStreamWaitValue32(stream, address, 1, 0) != CUDA_SUCCESS) return 3;
  parent.send(true);
  parent.send(cu.cuStreamSynchronize(stream));
  size_t free = 0, total = 0;
  parent.send(cu.cuMemGetInfo(&free, &total));
  return 0;
}
const bool kLosesDevice = add_role("loses_device", loses_device);

int takes_device(Channel& parent) {
  const auto device = Device::open();
  parent.receive<bool>();
  CONTROL(cgx_standin_lose)(0);
  return 0;
}
const bool kTakesDevice = add_role("takes_device", takes_device);

TEST_F(Standin, ALostDeviceIsLostInEveryProcessAndNoStreamHangs) {
  char folder[] = "/tmp/cgx-standin-XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  const std::string words = std::string("folder=") + folder;
  {
    Child one("loses_device", words.c_str()), other("takes_device", words.c_str());
    EXPECT_TRUE(one.channel().receive<bool>());
    other.channel().send(true);
    EXPECT_EQ(one.channel().receive<CUresult>(), CUDA_ERROR_DEVICE_UNAVAILABLE);
    EXPECT_EQ(one.channel().receive<CUresult>(), CUDA_ERROR_DEVICE_UNAVAILABLE);
    EXPECT_EQ(one.wait(), 0) << one.words();
    EXPECT_EQ(other.wait(), 0) << other.words();
  }
  std::filesystem::remove_all(folder);
}

struct Uuids {
  CUuuid first, second;
};
int tells_uuids(Channel& parent) {
  const auto device = Device::open();
  Uuids uuids;
  device->driver.cuDeviceGetUuid(&uuids.first, 0);
  device->driver.cuDeviceGetUuid(&uuids.second, 1);
  parent.send(uuids);
  return 0;
}
const bool kTellsUuids = add_role("tells_uuids", tells_uuids);

TEST_F(Standin, ADeviceIsKnownByItsUuidNotByItsNumber) {
  Child one("tells_uuids", "devices=2"), other("tells_uuids", "devices=2 visible=1,0");
  const auto here = one.channel().receive<Uuids>(), there = other.channel().receive<Uuids>();
  EXPECT_EQ(std::memcmp(&here.first, &there.second, sizeof(CUuuid)), 0);
  EXPECT_EQ(std::memcmp(&here.second, &there.first, sizeof(CUuuid)), 0);
  EXPECT_NE(std::memcmp(&here.first, &here.second, sizeof(CUuuid)), 0);
}

// Says why there is no driver, as a program would.
int says_status(Channel&) {
  const Result<Driver> driver = Driver::open();
  std::fputs(driver.status().to_string().c_str(), stderr);
  return 0;
}
const bool kSaysStatus = add_role("says_status", says_status);

std::string status_with(const char* standin) {
  Child child("says_status", standin);
  EXPECT_EQ(child.wait(), 0);
  return child.words();
}

TEST(Driver, SaysWhatIsMissing) {
  const Status none = Driver::open("libcuda-that-is-not-there.so.1").status();
  EXPECT_EQ(none.code(), StatusCode::kNOT_FOUND);
  EXPECT_NE(none.message().find("libcuda-that-is-not-there.so.1"), std::string::npos)
      << none.message();
  const Status other = Driver::open("libm.so.6").status();
  EXPECT_EQ(other.code(), StatusCode::kUNIMPLEMENTED);
  EXPECT_EQ(other.message(), "libm.so.6 (unknown driver) has no function cuInit");
}

TEST(Driver, SaysWhichVersionIsTooOld) {
  EXPECT_EQ(status_with("version=11040"),
            "UNIMPLEMENTED: libcuda.so.1 is a driver for CUDA 11.4; 11.7 or newer is needed");
}

TEST(Driver, TakesKernelsThatAToolkitOfItsMajorVersionOrAnOlderOneMade) {
  const Result<Driver> driver = Driver::open();
  ASSERT_TRUE(driver.ok()) << driver.status().to_string();
  ASSERT_EQ(driver->version(), 13000);
  for (const int toolkit : {0, 11080, 12090, 13000, 13010}) {
    EXPECT_TRUE(driver->takes_kernels_of(toolkit).ok()) << toolkit;
  }
  EXPECT_EQ(driver->takes_kernels_of(14020).to_string(),
            "UNIMPLEMENTED: libcuda.so.1 is a driver for CUDA 13.0; the kernels, made with CUDA "
            "14.2, need 14.0 or newer");
}

TEST(Driver, SaysThatThereIsNoDevice) {
  EXPECT_EQ(
      status_with("devices=0"),
      "NOT_FOUND: starting the CUDA driver: CUDA_ERROR_NO_DEVICE (100), no CUDA-capable device "
      "is detected");
}

TEST(Driver, ErrorsBecomeStatuses) {
  const Result<Driver> driver = Driver::open();
  ASSERT_TRUE(driver.ok()) << driver.status().to_string();
  EXPECT_TRUE(driver.value().check(CUDA_SUCCESS, "nothing").ok());
  EXPECT_EQ(driver.value().check(CUDA_ERROR_OUT_OF_MEMORY, "allocating").code(),
            StatusCode::kRESOURCE_EXHAUSTED);
  EXPECT_EQ(driver.value().check(CUDA_ERROR_ILLEGAL_ADDRESS, "encoding").to_string(),
            "DEVICE_LOST: encoding: CUDA_ERROR_ILLEGAL_ADDRESS (700), an illegal memory access was "
            "encountered");
  EXPECT_EQ(driver.value().check(static_cast<CUresult>(12345), "x").code(), StatusCode::kINTERNAL);
}

}  // namespace
}  // namespace cgx::gpu
