#include "client/staging.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <utility>

#include "client/relaxed_capture.h"

namespace cgx::client {
namespace {

using device::CUcontext;
using device::CUdeviceptr;
using device::CUevent;
using device::CUstream;

CUdeviceptr address_of(const void* memory) {
  return reinterpret_cast<CUdeviceptr>(memory);
}

CUstream stream_of(void* stream) {
  return static_cast<CUstream>(stream);
}

constexpr std::chrono::milliseconds kAskAgain{1};

// Which says nothing of what was asked.
bool refused_for_a_capture(device::CUresult answer) {
  return answer == device::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED ||
         answer == device::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
}

// The work that an event stands for is done, or its context has failed or is gone.
bool says_over(device::CUresult answer) {
  if (answer == device::CUDA_SUCCESS || answer == device::CUDA_ERROR_INVALID_CONTEXT ||
      answer == device::CUDA_ERROR_INVALID_HANDLE) {
    return true;
  }
  const StatusCode code = device::status_of(answer);
  return code == StatusCode::kDEVICE_LOST || code == StatusCode::kCANCELLED;
}

}  // namespace

// A context that is current for as long as this lives. Threads that wait for copies have none of
// their own.
class Staging::InContext {
 public:
  InContext(const device::Driver& driver, CUcontext context) : driver_(driver) {
    CUcontext now = nullptr;
    const bool is = driver.cuCtxGetCurrent(&now) == device::CUDA_SUCCESS && now == context;
    pushed_ = !is && driver.cuCtxPushCurrent(context) == device::CUDA_SUCCESS;
  }
  ~InContext() {
    CUcontext popped = nullptr;
    if (pushed_) static_cast<void>(driver_.cuCtxPopCurrent(&popped));
  }
  InContext(const InContext&) = delete;
  InContext& operator=(const InContext&) = delete;

 private:
  const device::Driver& driver_;
  bool pushed_;
};

Copy::Copy(Copy&& other) noexcept
    : staging_(std::exchange(other.staging_, nullptr)),
      context_(other.context_),
      over_(other.over_),
      words_(std::move(other.words_)),
      ready_(other.ready_),
      memory_(std::move(other.memory_)) {}

Copy& Copy::operator=(Copy&& other) noexcept {
  if (this == &other) return *this;
  let_go();
  staging_ = std::exchange(other.staging_, nullptr);
  context_ = other.context_;
  over_ = other.over_;
  words_ = std::move(other.words_);
  ready_ = other.ready_;
  memory_ = std::move(other.memory_);
  return *this;
}

void Copy::let_go() {
  if (staging_ != nullptr) staging_->keep(std::move(*this));
}

// A driver that does not answer while some thread captures a graph is asked again.
Status Copy::wait() const {
  const device::Driver& driver = staging_->driver_;
  const RelaxedCapture relaxed(driver);
  const Staging::InContext inside(driver, context_);
  device::CUresult answer = driver.cuEventSynchronize(over_);
  for (; refused_for_a_capture(answer); answer = driver.cuEventSynchronize(over_)) {
    std::this_thread::sleep_for(kAskAgain);
  }
  return driver.check(answer, "waiting for a copy");
}

Result<std::unique_ptr<Staging>> Staging::open() {
  CGX_ASSIGN_OR_RETURN(const device::Driver driver, device::Driver::open());
  return std::unique_ptr<Staging>(new Staging(driver));
}

// What a context that has failed answers is of no interest any more.
Staging::~Staging() {
  for (Copy& copy : under_way_) {
    if (copy.words_ == nullptr) {  // for words the session has waited
      static_cast<void>(copy.wait().ok());
      free_.push_back({copy.context_, copy.over_});
    }
    copy.staging_ = nullptr;
  }
  for (const Event& each : free_) {
    const InContext inside(driver_, each.context);
    static_cast<void>(driver_.cuEventDestroy(each.event));
  }
  for (const Pinned& each : pinned_) {
    const InContext inside(driver_, each.context);
    static_cast<void>(driver_.cuMemHostUnregister(each.arena->base()));
  }
}

Result<CUcontext> Staging::current() {
  CUcontext context = nullptr;
  CGX_RETURN_IF_ERROR(driver_.check(driver_.cuCtxGetCurrent(&context), "asking for the context"));
  if (context != nullptr) return context;
  return invalid_argument(
      "this thread has no current CUDA context: hand the tensor over in a thread that uses its "
      "GPU");
}

// The default stream answers IMPLICIT where a stream is captured that it would wait for.
Status Staging::check_not_captured(void* stream) const {
  if (!driver_.lacks(device::Feature::kGraphs).ok()) return {};
  unsigned state = device::CU_STREAM_CAPTURE_STATUS_NONE;
  const device::CUresult answer = driver_.cuStreamIsCapturing(stream_of(stream), &state);
  const bool captured =
      answer == device::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT ||
      (answer == device::CUDA_SUCCESS && state != device::CU_STREAM_CAPTURE_STATUS_NONE);
  if (!captured) return {};
  return invalid_argument(
      "the stream is being captured in a CUDA graph: hand over tensors, and wait for their "
      "results, outside of the capture");
}

Result<CUcontext> Staging::check(const DeviceBuffers& buffers) {
  CGX_RETURN_IF_ERROR(check_not_captured(buffers.stream));
  CGX_ASSIGN_OR_RETURN(const CUcontext context, current());
  if (buffers.bytes == 0) return context;
  CGX_RETURN_IF_ERROR(check_end(buffers.in, buffers.bytes, "the input", context));
  if (buffers.out == buffers.in) return context;
  CGX_RETURN_IF_ERROR(check_end(buffers.out, buffers.bytes, "the output", context));
  const uint64_t a = address_of(buffers.in), b = address_of(buffers.out);
  if (a >= b + buffers.bytes || b >= a + buffers.bytes) return context;
  return invalid_argument("input and output overlap without being equal");
}

Status Staging::check_range(const void* memory, uint64_t bytes, const char* what) {
  CGX_ASSIGN_OR_RETURN(const CUcontext context, current());
  return check_end(memory, bytes, what, context);
}

// Memory of a pool has no context; its device tells then whose it is.
Status Staging::check_end(const void* memory, uint64_t bytes, const char* what, CUcontext context) {
  const CUdeviceptr at = address_of(memory);
  unsigned kind = 0;
  device::CUresult answer =
      driver_.cuPointerGetAttribute(&kind, device::CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at);
  if (answer == device::CUDA_ERROR_INVALID_VALUE || kind == device::CU_MEMORYTYPE_HOST) {
    return invalid_argument(std::string(what) + " is not in the memory of a GPU; was it freed?");
  }
  CGX_RETURN_IF_ERROR(driver_.check(answer, std::string("looking at ") + what));
  int theirs = 0;
  device::CUdevice ours = 0;
  answer = driver_.cuPointerGetAttribute(&theirs, device::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, at);
  CGX_RETURN_IF_ERROR(driver_.check(answer, std::string("looking at ") + what));
  CGX_RETURN_IF_ERROR(driver_.check(driver_.cuCtxGetDevice(&ours), "asking for the device"));
  CUcontext owner = nullptr;
  answer = driver_.cuPointerGetAttribute(&owner, device::CU_POINTER_ATTRIBUTE_CONTEXT, at);
  const bool known = answer == device::CUDA_SUCCESS && owner != nullptr;
  if (theirs != ours || (known && owner != context)) {
    return invalid_argument(std::string(what) + " is of another CUDA context (GPU " +
                            std::to_string(theirs) + ") than the one current in this thread (GPU " +
                            std::to_string(ours) + ")");
  }
  CUdeviceptr base = 0;
  size_t size = 0;
  answer = driver_.cuMemGetAddressRange(&base, &size, at);
  CGX_RETURN_IF_ERROR(driver_.check(answer, std::string("looking at ") + what));
  const CUdeviceptr begin = base;
  uint64_t there = base + size - at;
  while (there < bytes && is_mapped(at, ours) && is_mapped(at + there, ours) &&
         driver_.cuMemGetAddressRange(&base, &size, at + there) == device::CUDA_SUCCESS) {
    there = base + size - at;
  }
  if (there >= bytes) return {};
  return invalid_argument(std::string(what) + " needs " + std::to_string(bytes) +
                          " bytes and has " + std::to_string(there) +
                          " to the end of its allocation of " + std::to_string(at + there - begin));
}

// A piece of a pool, which may lie beside others that belong to the same tensor, as torch's
// expandable segments do. What cuMemAlloc made never does, whatever lies beside it.
bool Staging::is_mapped(CUdeviceptr at, device::CUdevice ours) const {
  int legacy = 1, theirs = -1;
  const auto ask = [&](int& to, device::CUpointer_attribute attribute) {
    return driver_.cuPointerGetAttribute(&to, attribute, at) == device::CUDA_SUCCESS;
  };
  return ask(legacy, device::CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE) && legacy == 0 &&
         ask(theirs, device::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) && theirs == ours;
}

Status Staging::pin(std::shared_ptr<ArenaMemory> arena) {
  const MutexLock lock(pinning_);
  for (const Pinned& each : pinned_) {
    if (each.arena == arena) return {};
  }
  CGX_ASSIGN_OR_RETURN(const CUcontext context, current());
  const RelaxedCapture relaxed(driver_);
  const auto answer =
      driver_.cuMemHostRegister(arena->base(), arena->bytes(), device::CU_MEMHOSTREGISTER_PORTABLE);
  const Status status =
      driver_.check(answer, "pinning an arena of " + std::to_string(arena->bytes()) + " bytes");
  if (status.ok()) pinned_.push_back({context, std::move(arena)});
  return status;
}

Result<Copy> Staging::copy_in(std::shared_ptr<void> to, const DeviceBuffers& from) {
  CGX_ASSIGN_OR_RETURN(const CUcontext context, current());
  const auto answer =
      driver_.cuMemcpyDtoHAsync(to.get(), address_of(from.in), from.bytes, stream_of(from.stream));
  CGX_RETURN_IF_ERROR(driver_.check(answer, "copying from the GPU"));
  return mark(context, from.stream, std::move(to));
}

Status Staging::copy_within(void* to, const DeviceBuffers& from) {
  return driver_.check(driver_.cuMemcpyDtoDAsync(address_of(to), address_of(from.in), from.bytes,
                                                 stream_of(from.stream)),
                       "copying within the GPU");
}

Result<Copy> Staging::copy_of_nothing(void* stream, std::shared_ptr<void> memory) {
  CGX_ASSIGN_OR_RETURN(const CUcontext context, current());
  return mark(context, stream, std::move(memory));
}

Result<Copy> Staging::copy_out(const DeviceBuffers& to, std::shared_ptr<void> from, bool within) {
  CGX_ASSIGN_OR_RETURN(const CUcontext context, check(to));
  const auto answer = within ? driver_.cuMemcpyDtoDAsync(address_of(to.out), address_of(from.get()),
                                                         to.bytes, stream_of(to.stream))
                             : driver_.cuMemcpyHtoDAsync(address_of(to.out), from.get(), to.bytes,
                                                         stream_of(to.stream));
  CGX_RETURN_IF_ERROR(driver_.check(answer, "copying to the GPU"));
  return mark(context, to.stream, std::move(from));
}

Result<CUevent> Staging::event_of(CUcontext context) {
  {
    const MutexLock lock(mutex_);
    const auto found = std::find_if(free_.begin(), free_.end(),
                                    [&](const Event& each) { return each.context == context; });
    if (found != free_.end()) {
      const CUevent event = found->event;
      free_.erase(found);
      return event;
    }
  }
  CUevent event = nullptr;
  const unsigned flags = device::CU_EVENT_BLOCKING_SYNC | device::CU_EVENT_DISABLE_TIMING;
  CGX_RETURN_IF_ERROR(driver_.check(driver_.cuEventCreate(&event, flags), "making an event"));
  return event;
}

// A copy without an event would be one that nobody can wait for: the host waits at once then.
Result<Copy> Staging::mark(CUcontext context, void* stream, std::shared_ptr<void> memory) {
  Result<CUevent> event = event_of(context);
  Status status = event.status();
  if (status.ok()) {
    status = driver_.check(driver_.cuEventRecord(*event, stream_of(stream)), "recording an event");
    if (status.ok()) return Copy(*this, context, *event, std::move(memory));
    static_cast<void>(driver_.cuEventDestroy(*event));
  }
  static_cast<void>(driver_.cuStreamSynchronize(stream_of(stream)));
  return status;
}

void Staging::keep(Copy copy) {
  const MutexLock lock(mutex_);
  under_way_.push_back(std::move(copy));
}

bool Staging::is_over(const Copy& copy) const {
  if (copy.words_ != nullptr) return copy.words_->device()->reached(copy.ready_);
  const RelaxedCapture relaxed(driver_);
  const InContext inside(driver_, copy.context_);
  return says_over(driver_.cuEventQuery(copy.over_));
}

// Memory is freed without the lock: that takes the arenas' own.
void Staging::sweep() {
  std::vector<std::shared_ptr<void>> done;
  const MutexLock lock(mutex_);
  for (Copy& copy : under_way_) {
    if (!is_over(copy)) continue;
    if (copy.words_ == nullptr) free_.push_back({copy.context_, copy.over_});
    done.push_back(std::move(copy.memory_));
    copy.staging_ = nullptr;
  }
  std::erase_if(under_way_, [](const Copy& copy) { return copy.staging_ == nullptr; });
}

bool Staging::idle() {
  sweep();
  const MutexLock lock(mutex_);
  return std::all_of(under_way_.begin(), under_way_.end(),
                     [](const Copy& copy) { return copy.words_ != nullptr; });
}

}  // namespace cgx::client
