#include "client/device_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <string>
#include <thread>

#include "client/deadline.h"
#include "client/relaxed_capture.h"

namespace cgx::client {
namespace {

constexpr uint64_t kPageBytes = uint64_t{wire::kWordsMax} * wire::kWordBytes;
constexpr uintptr_t kStreamOfThread = 2;  // CU_STREAM_PER_THREAD; the default one is null or 1

Status no_words(const char* what) {
  return resource_exhausted(std::string("a page of timeline words: ") + what + ": " +
                            std::strerror(errno));
}

}  // namespace

class DeviceMemory::InContext {
 public:
  explicit InContext(const DeviceMemory& memory)
      : driver_(memory.driver_), relaxed_(memory.driver_) {
    device::CUcontext now = nullptr;
    const bool is = driver_.cuCtxGetCurrent(&now) == device::CUDA_SUCCESS && now == memory.context_;
    pushed_ = !is && memory.context_ != nullptr &&
              driver_.cuCtxPushCurrent(memory.context_) == device::CUDA_SUCCESS;
  }
  ~InContext() {
    device::CUcontext popped = nullptr;
    if (pushed_) static_cast<void>(driver_.cuCtxPopCurrent(&popped));
  }
  InContext(const InContext&) = delete;
  InContext& operator=(const InContext&) = delete;

 private:
  const device::Driver& driver_;
  const RelaxedCapture relaxed_;
  bool pushed_;
};

Result<std::unique_ptr<DeviceMemory>> DeviceMemory::create(const device::Driver& driver,
                                                           const wire::DeviceId& device,
                                                           wire::ArenaWay way, uint64_t bytes) {
  const RelaxedCapture relaxed(driver);
  std::unique_ptr<DeviceMemory> memory(new DeviceMemory(driver, device, way, bytes));
  CGX_RETURN_IF_ERROR(memory->check_device());
  CGX_RETURN_IF_ERROR(memory->make_words());
  CGX_RETURN_IF_ERROR(way == wire::ArenaWay::kVmm ? memory->make_vmm() : memory->make_ipc());
  return memory;
}

Result<std::unique_ptr<DeviceMemory>> DeviceMemory::import(const device::Driver& driver,
                                                           const wire::DeviceId& device,
                                                           const void* memory) {
  const RelaxedCapture relaxed(driver);
  std::unique_ptr<DeviceMemory> made(new DeviceMemory(driver, device, wire::ArenaWay::kIpc, 0));
  made->imported_ = true;
  CGX_RETURN_IF_ERROR(made->check_device());
  CGX_RETURN_IF_ERROR(made->find_allocation(memory));
  CGX_RETURN_IF_ERROR(made->make_words());
  return made;
}

Result<std::unique_ptr<DeviceMemory>> DeviceMemory::another(wire::ArenaWay way,
                                                            uint64_t bytes) const {
  const InContext inside(*this);
  return create(driver_, device_, way, bytes);
}

// A handle stands for all of it.
Status DeviceMemory::find_allocation(const void* memory) {
  CGX_RETURN_IF_ERROR(driver_.lacks(device::Feature::kIpc));
  const auto address = reinterpret_cast<device::CUdeviceptr>(memory);
  size_t size = 0;
  CGX_RETURN_IF_ERROR(driver_.check(driver_.cuMemGetAddressRange(&base_, &size, address),
                                    "looking at the memory to import"));
  bytes_ = size;
  pattern_at_ = address - base_;
  CGX_RETURN_IF_ERROR(export_handle("of the allocation of " + std::to_string(size) + " bytes"));
  return driver_.check(driver_.cuMemcpyDtoH(&before_, address, sizeof(before_)),
                       "reading the memory to import");
}

// INVALID_VALUE is what drivers say of memory that no cuMemAlloc made.
Status DeviceMemory::export_handle(const std::string& what) {
  device::CUipcMemHandle handle;
  const device::CUresult made = driver_.cuIpcGetMemHandle(&handle, base_);
  if (imported_ && made == device::CUDA_ERROR_INVALID_VALUE) {
    return {StatusCode::kUNIMPLEMENTED,
            "there is no CUDA IPC handle " + what +
                ", which cuMemAlloc did not make (torch's expandable segments, a memory pool): "
                "hand it over as it is, and it is copied"};
  }
  CGX_RETURN_IF_ERROR(driver_.check(made, "a handle " + what));
  std::memcpy(handle_.data(), handle.reserved, sizeof(handle.reserved));
  return {};
}

Status DeviceMemory::check_device() {
  CGX_RETURN_IF_ERROR(driver_.check(driver_.cuCtxGetCurrent(&context_), "asking for the context"));
  if (context_ == nullptr) {
    return invalid_argument(
        "this thread has no current CUDA context: memory of a GPU is made in "
        "a thread that uses it");
  }
  CGX_RETURN_IF_ERROR(driver_.check(driver_.cuCtxGetDevice(&ordinal_), "asking for the device"));
  device::CUuuid id{};
  CGX_RETURN_IF_ERROR(driver_.check(driver_.cuDeviceGetUuid(&id, ordinal_), "asking for its UUID"));
  if (std::memcmp(id.bytes, device_.data(), sizeof(id.bytes)) == 0) return {};
  return invalid_argument("the GPU of the current CUDA context is not the one whose UUID is named");
}

Status DeviceMemory::make_words() {
  words_fd_ = UniqueFd(::memfd_create("cgx-words", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!words_fd_.valid()) return no_words("memfd_create");
  if (::ftruncate(words_fd_.get(), kPageBytes) != 0 ||
      ::fcntl(words_fd_.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return no_words("sealing");
  }
  void* const page =
      ::mmap(nullptr, kPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, words_fd_.get(), 0);
  if (page == MAP_FAILED) return no_words("mmap");
  words_ = static_cast<std::byte*>(page);
  constexpr unsigned kFlags =
      device::CU_MEMHOSTREGISTER_PORTABLE | device::CU_MEMHOSTREGISTER_DEVICEMAP;
  CGX_RETURN_IF_ERROR(driver_.check(driver_.cuMemHostRegister(words_, kPageBytes, kFlags),
                                    "pinning the page of timeline words"));
  pinned_ = true;
  return driver_.check(driver_.cuMemHostGetDevicePointer(&words_on_device_, words_, 0),
                       "the device's address of timeline words");
}

Status DeviceMemory::make_vmm() {
  CGX_RETURN_IF_ERROR(driver_.lacks(device::Feature::kVmm));
  const device::CUmemAllocationProp kind{
      .type = device::CU_MEM_ALLOCATION_TYPE_PINNED,
      .requestedHandleTypes = device::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
      .location = {.type = device::CU_MEM_LOCATION_TYPE_DEVICE, .id = ordinal_}};
  size_t granule = 0;
  CGX_RETURN_IF_ERROR(driver_.check(driver_.cuMemGetAllocationGranularity(
                                        &granule, &kind, device::CU_MEM_ALLOC_GRANULARITY_MINIMUM),
                                    "memory that travels as a descriptor"));
  bytes_ = (bytes_ + granule - 1) / granule * granule;
  const std::string what = std::to_string(bytes_) + " bytes of the GPU's memory";
  CGX_RETURN_IF_ERROR(driver_.check(driver_.cuMemCreate(&allocation_, bytes_, &kind, 0), what));
  CGX_RETURN_IF_ERROR(driver_.check(driver_.cuMemAddressReserve(&base_, bytes_, 0, 0, 0), what));
  CGX_RETURN_IF_ERROR(driver_.check(driver_.cuMemMap(base_, bytes_, 0, allocation_, 0), what));
  const device::CUmemAccessDesc access{.location = kind.location,
                                       .flags = device::CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CGX_RETURN_IF_ERROR(driver_.check(driver_.cuMemSetAccess(base_, bytes_, &access, 1), what));
  int descriptor = -1;
  CGX_RETURN_IF_ERROR(driver_.check(
      driver_.cuMemExportToShareableHandle(&descriptor, allocation_,
                                           device::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
      "a descriptor of " + what));
  memory_fd_ = UniqueFd(descriptor);
  return {};
}

Status DeviceMemory::make_ipc() {
  CGX_RETURN_IF_ERROR(driver_.lacks(device::Feature::kIpc));
  const std::string what = std::to_string(bytes_) + " bytes of the GPU's memory";
  CGX_RETURN_IF_ERROR(driver_.check(driver_.cuMemAlloc(&base_, bytes_), what));
  return export_handle("of " + what);
}

bool DeviceMemory::reached(Ready ready) const {
  std::byte* const at = words_ + ready.word * wire::kWordBytes;
  const uint32_t now = std::atomic_ref<uint32_t>(*reinterpret_cast<uint32_t*>(at)).load();
  return static_cast<int32_t>(now - ready.value) >= 0;
}

bool DeviceMemory::idle() {
  const MutexLock lock(mutex_);
  const bool written = std::all_of(streams_.begin(), streams_.end(),
                                   [this](const auto& each) { return reached(each.second.last); });
  return written || failed();
}

bool DeviceMemory::failed() const {
  const InContext inside(*this);
  const device::CUresult answer = driver_.cuStreamQuery(nullptr);
  return answer != device::CUDA_SUCCESS && answer != device::CUDA_ERROR_NOT_READY &&
         answer != device::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
}

// By handle: it must be closed there before it is freed here. The worker says so in word 0.
bool DeviceMemory::worker_has_closed() const {
  const std::atomic_ref<uint32_t> gone(*reinterpret_cast<uint32_t*>(words_));
  const Deadline limit = waits_until_ ? *waits_until_ : deadline_in_ms(kWorkerEndsMs);
  while (gone.load() == 0 && Clock::now() < limit) {
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  const bool closed = gone.load() != 0;
  if (closed && waits_until_) *waits_until_ = deadline_in_ms(kWorkerEndsMs);
  return closed;
}

// In a child of the process that made it the driver is not to be called.
DeviceMemory::~DeviceMemory() {
  if (::getpid() == maker_) give_back();
  if (words_ != nullptr) ::munmap(words_, kPageBytes);
}

void DeviceMemory::give_back() {
  const InContext inside(*this);
  const bool ipc = way_ == wire::ArenaWay::kIpc;
  const bool kept = ipc && announced_ && !worker_has_closed();  // until the process ends
  if (ipc && base_ != 0 && !imported_ && !kept) static_cast<void>(driver_.cuMemFree(base_));
  if (way_ == wire::ArenaWay::kVmm && base_ != 0) {
    static_cast<void>(driver_.cuMemUnmap(base_, bytes_));
    static_cast<void>(driver_.cuMemAddressFree(base_, bytes_));
  }
  if (allocation_ != 0) static_cast<void>(driver_.cuMemRelease(allocation_));
  if (pinned_) static_cast<void>(driver_.cuMemHostUnregister(words_));
}

wire::AddArena DeviceMemory::announcement(uint32_t number) const {
  return {.arena = number,
          .kind = wire::ArenaKind::kDevice,
          .way = way_,
          .device = device_,
          .bytes = bytes_,
          .offset = 0,
          .handle = handle_,
          .pattern_at = pattern_at_};
}

Status DeviceMemory::check_pattern() const {
  const InContext inside(*this);
  uint64_t here = 0;
  const device::CUdeviceptr at = base_ + pattern_at_;
  const Status looked = driver_.check(driver_.cuMemcpyDtoH(&here, at, sizeof(here)),
                                      "looking for the worker's pattern");
  const Status restored = put_back();
  CGX_RETURN_IF_ERROR(looked);
  CGX_RETURN_IF_ERROR(restored);
  if (here == pattern_) return {};
  return internal_error("what the GPU worker wrote into the arena is not there: another memory");
}

Status DeviceMemory::put_back() const {
  if (!imported_) return {};
  const InContext inside(*this);
  const std::string what = "writing back what the memory to import held";
  const device::CUdeviceptr at = base_ + pattern_at_;
  CGX_RETURN_IF_ERROR(driver_.check(driver_.cuMemcpyHtoD(at, &before_, sizeof(before_)), what));
  return driver_.check(driver_.cuStreamSynchronize(nullptr), what);  // the worker reads it next
}

// A default stream is the current context's: that of another GPU knows nothing of what is written
// here. UNIMPLEMENTED for the handle that means another stream in each thread, so has no word.
Status DeviceMemory::check_stream(void* stream) const {
  const auto handle = reinterpret_cast<uintptr_t>(stream);
  if (handle > kStreamOfThread) return {};
  device::CUcontext now = nullptr;
  CGX_RETURN_IF_ERROR(driver_.check(driver_.cuCtxGetCurrent(&now), "asking for the context"));
  if (now != context_) return of_another_context(now);
  if (handle != kStreamOfThread) return {};
  return {StatusCode::kUNIMPLEMENTED, "the default stream of a thread has no timeline word"};
}

Status DeviceMemory::of_another_context(device::CUcontext now) const {
  device::CUdevice theirs = 0;
  if (now == nullptr || driver_.cuCtxGetDevice(&theirs) != device::CUDA_SUCCESS) {
    return invalid_argument(
        "this thread has no current CUDA context: name a stream, or hand the tensor over in a "
        "thread that uses its GPU");
  }
  return invalid_argument("the tensor is of another CUDA context (GPU " + std::to_string(ordinal_) +
                          ") than the one current in this thread (GPU " + std::to_string(theirs) +
                          "), whose default stream it is to be ready on");
}

// Under the mutex: values are enqueued on their stream in the order in which they grow.
Result<Ready> DeviceMemory::when_done(void* stream) {
  CGX_RETURN_IF_ERROR(check_stream(stream));
  CGX_RETURN_IF_ERROR(driver_.lacks(device::Feature::kWords));
  const MutexLock lock(mutex_);
  CGX_ASSIGN_OR_RETURN(const Word word, word_for(stream));
  const Ready next{word.last.word, word.last.value + 1};
  CGX_RETURN_IF_ERROR(
      driver_.check(driver_.cuStreamWriteValue32(static_cast<device::CUstream>(stream),
                                                 words_on_device_ + next.word * wire::kWordBytes,
                                                 next.value, device::CU_STREAM_WRITE_VALUE_DEFAULT),
                    "having the stream write its timeline word"));
  if (word.given_up_by) streams_.erase(*word.given_up_by);
  streams_[stream] = {next, ++writes_};
  return next;
}

// Programs make streams as they need them: one that has written its last word, and the longest ago,
// gives it to a new one, whose values go on from there. It has it until that one's first write.
Result<DeviceMemory::Word> DeviceMemory::word_for(void* stream) {
  const auto known = streams_.find(stream);
  if (known != streams_.end()) return Word{known->second.last, {}};
  if (streams_.size() + 1 < wire::kWordsMax) {
    return Word{{static_cast<uint32_t>(streams_.size()) + 1, 0}, {}};
  }
  auto oldest = streams_.end();
  for (auto each = streams_.begin(); each != streams_.end(); ++each) {
    if (!reached(each->second.last)) continue;
    if (oldest == streams_.end() || each->second.written < oldest->second.written) oldest = each;
  }
  if (oldest == streams_.end()) {
    return Status(StatusCode::kUNIMPLEMENTED, "more streams than timeline words");
  }
  return Word{oldest->second.last, oldest->first};
}

}  // namespace cgx::client
