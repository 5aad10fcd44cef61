// Streams, events, words that streams write and wait for, host functions.
#include <chrono>
#include <cstring>
#include <thread>

#include "tests/gpu/driver/functions.h"
#include "tests/gpu/driver/queue.h"

using namespace cgx::standin;

namespace {

uint64_t load_word(const uint8_t* at, uint32_t width) {
  if (width == 8) {
    return __atomic_load_n(reinterpret_cast<const uint64_t*>(at), __ATOMIC_ACQUIRE);
  }
  return __atomic_load_n(reinterpret_cast<const uint32_t*>(at), __ATOMIC_ACQUIRE);
}

void store_word(uint8_t* at, uint32_t width, uint64_t value) {
  if (width == 8) {
    __atomic_store_n(reinterpret_cast<uint64_t*>(at), value, __ATOMIC_RELEASE);
  } else {
    __atomic_store_n(reinterpret_cast<uint32_t*>(at), static_cast<uint32_t>(value),
                     __ATOMIC_RELEASE);
  }
}

int64_t now_ns() {
  return std::chrono::steady_clock::now().time_since_epoch().count();
}

CUresult find_word(CUstream stream, CUdeviceptr address, uint32_t width, OwnedStream& owned,
                   Target& word) {
  if (process().settings.without_words) return CUDA_ERROR_NOT_SUPPORTED;
  if (!find_stream(stream, owned)) return CUDA_ERROR_INVALID_HANDLE;
  if (address % width != 0) return CUDA_ERROR_INVALID_VALUE;
  word = find_target(address, width);
  if (word.kind != Target::Kind::kUnknown) return CUDA_SUCCESS;
  accuse("a stream is told of a word in memory that is not registered");
  return CUDA_ERROR_INVALID_VALUE;
}

CUresult write_word(CUstream stream, CUdeviceptr address, uint32_t width, uint64_t value) {
  OwnedStream owned;
  Target word;
  const CUresult result = find_word(stream, address, width, owned, word);
  if (result != CUDA_SUCCESS) return result;
  process().ledger->note_write(word.place, value);
  enqueue(owned, [word, width, value] { store_word(word.at, width, value); });
  return CUDA_SUCCESS;
}

// As long as nobody stores it, but not beyond the end of the device or the process.
void wait_for(const Target& word, const Condition& condition, const Stream* stream,
              Context* context) {
  for (uint32_t turn = 0; !condition.met_by(load_word(word.at, condition.width)); ++turn) {
    if (stream->stopping() || state_of(context) != CUDA_SUCCESS) return;
    if (turn < 64) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  }
}

CUresult wait_word(CUstream stream, CUdeviceptr address, const Condition& condition) {
  OwnedStream owned;
  Target word;
  const CUresult result = find_word(stream, address, condition.width, owned, word);
  if (result != CUDA_SUCCESS) return result;
  if (!condition.met_by(load_word(word.at, condition.width)) &&
      !process().ledger->has_write(word.place, condition)) {
    accuse("a wait for the value " + std::to_string(condition.value) +
           " is enqueued before its write is enqueued anywhere");
  }
  const Stream* const raw = owned.stream.get();
  Context* const context = owned.context;
  enqueue(owned, [word, condition, raw, context] { wait_for(word, condition, raw, context); });
  return CUDA_SUCCESS;
}

std::shared_ptr<Event> find_event(CUevent handle) {
  const std::lock_guard lock(process().mutex);
  const auto found = process().events.find(handle);
  return found == process().events.end() ? nullptr : found->second;
}

Point point_of(Event& event) {
  const std::lock_guard lock(event.mutex);
  return event.recorded;
}

// 0 for one that was never recorded.
int64_t time_of(Event& event) {
  const std::lock_guard lock(event.mutex);
  return event.at_ns == nullptr ? 0 : event.at_ns->load();
}

}  // namespace

CUresult cuStreamCreate(CUstream* stream, unsigned flags) {
  CGX_ENTER(Call::cuStreamCreate);
  Process& p = process();
  const std::lock_guard lock(p.mutex);
  std::shared_ptr<Stream> made = p.make_stream((flags & CU_STREAM_NON_BLOCKING) == 0);
  *stream = reinterpret_cast<CUstream>(made.get());
  p.streams[*stream] = {std::move(made), current_context()};
  return CUDA_SUCCESS;
}

// What is enqueued still runs.
CUresult cuStreamDestroy_v2(CUstream stream) {
  CGX_ENTER(Call::cuStreamDestroy);
  Process& p = process();
  const std::lock_guard lock(p.mutex);
  const auto found = p.streams.find(stream);
  if (found == p.streams.end()) return CUDA_ERROR_INVALID_HANDLE;
  found->second.stream->close(false);
  p.closing.push_back(std::move(found->second.stream));
  p.streams.erase(found);
  return CUDA_SUCCESS;
}

CUresult cuStreamQuery(CUstream stream) {
  CGX_ENTER(Call::cuStreamQuery);
  OwnedStream owned;
  if (!find_stream(stream, owned)) return CUDA_ERROR_INVALID_HANDLE;
  return owned.stream->last().passed() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuStreamSynchronize(CUstream stream) {
  CGX_ENTER(Call::cuStreamSynchronize);
  OwnedStream owned;
  if (!find_stream(stream, owned)) return CUDA_ERROR_INVALID_HANDLE;
  enqueue(owned, [] {}).wait();  // behind what the default stream waits for
  return state_of(owned.context);
}

CUresult cuCtxSynchronize() {
  CGX_ENTER(Call::cuCtxSynchronize);
  drain(current_context());
  return state_of(current_context());
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent handle, unsigned) {
  CGX_ENTER(Call::cuStreamWaitEvent);
  OwnedStream owned;
  const std::shared_ptr<Event> event = find_event(handle);
  if (!find_stream(stream, owned) || event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  enqueue(owned, [] {}, {point_of(*event)});
  return CUDA_SUCCESS;
}

CUresult cuLaunchHostFunc(CUstream stream, CUhostFn call, void* with) {
  CGX_ENTER(Call::cuLaunchHostFunc);
  OwnedStream owned;
  if (!find_stream(stream, owned)) return CUDA_ERROR_INVALID_HANDLE;
  enqueue(owned, [call, with] {
    const InHostFunction inside;
    call(with);
  });
  return CUDA_SUCCESS;
}

CUresult cuStreamIsCapturing(CUstream stream, unsigned* status) {
  CGX_ENTER(Call::cuStreamIsCapturing);
  OwnedStream owned;
  if (!find_stream(stream, owned)) return CUDA_ERROR_INVALID_HANDLE;
  *status =
      owned.stream->captured() ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
  if (owned.stream != owned.context->legacy) return CUDA_SUCCESS;
  const std::lock_guard lock(process().mutex);
  for (const auto& other : process().streams_of(owned.context)) {
    if (other->captured() && other->waits_for_default()) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  }
  return CUDA_SUCCESS;
}

// The list does not have these two because nothing of this project calls them; its users do.
extern "C" __attribute__((visibility("default"))) CUresult cuStreamBeginCapture_v2(CUstream stream,
                                                                                   unsigned mode) {
  OwnedStream owned;
  if (!find_stream(stream, owned)) return CUDA_ERROR_INVALID_HANDLE;
  owned.stream->capture(true);
  const std::lock_guard lock(process().mutex);
  if (mode == CU_STREAM_CAPTURE_MODE_GLOBAL) process().captured = owned.stream;
  return CUDA_SUCCESS;
}
extern "C" __attribute__((visibility("default"))) CUresult cuStreamEndCapture(CUstream stream,
                                                                              void** graph) {
  OwnedStream owned;
  if (!find_stream(stream, owned)) return CUDA_ERROR_INVALID_HANDLE;
  const bool broken = owned.stream->broken();
  owned.stream->capture(false);
  const std::lock_guard lock(process().mutex);
  if (process().captured == owned.stream) process().captured = nullptr;
  *graph = nullptr;
  return broken ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
}

CUresult cuThreadExchangeStreamCaptureMode(unsigned* mode) {
  CGX_ENTER(Call::cuThreadExchangeStreamCaptureMode, Need::kStart);
  std::swap(*mode, capture_mode);
  return CUDA_SUCCESS;
}

CUresult cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr word, uint32_t value, unsigned) {
  CGX_ENTER(Call::cuStreamWriteValue32);
  return write_word(stream, word, 4, value);
}
CUresult cuStreamWriteValue64_v2(CUstream stream, CUdeviceptr word, uint64_t value, unsigned) {
  CGX_ENTER(Call::cuStreamWriteValue64);
  return write_word(stream, word, 8, value);
}
CUresult cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr word, uint32_t value, unsigned flags) {
  CGX_ENTER(Call::cuStreamWaitValue32);
  return wait_word(stream, word, {value, flags, 4});
}
CUresult cuStreamWaitValue64_v2(CUstream stream, CUdeviceptr word, uint64_t value, unsigned flags) {
  CGX_ENTER(Call::cuStreamWaitValue64);
  return wait_word(stream, word, {value, flags, 8});
}

CUresult cuEventCreate(CUevent* event, unsigned flags) {
  CGX_ENTER(Call::cuEventCreate);
  auto made = std::make_shared<Event>();
  made->timed = (flags & CU_EVENT_DISABLE_TIMING) == 0;
  *event = reinterpret_cast<CUevent>(made.get());
  const std::lock_guard lock(process().mutex);
  process().events[*event] = std::move(made);
  return CUDA_SUCCESS;
}

CUresult cuEventDestroy_v2(CUevent event) {
  CGX_ENTER(Call::cuEventDestroy);
  const std::lock_guard lock(process().mutex);
  return process().events.erase(event) > 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuEventRecord(CUevent handle, CUstream stream) {
  CGX_ENTER(Call::cuEventRecord);
  OwnedStream owned;
  const std::shared_ptr<Event> event = find_event(handle);
  if (!find_stream(stream, owned) || event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  auto at = std::make_shared<std::atomic<int64_t>>(0);
  const Point point = enqueue(owned, [at] { at->store(now_ns()); });
  const std::lock_guard lock(event->mutex);
  event->recorded = point;
  event->at_ns = std::move(at);
  return CUDA_SUCCESS;
}

// One that was never recorded is complete.
CUresult cuEventQuery(CUevent handle) {
  CGX_ENTER(Call::cuEventQuery);
  const std::shared_ptr<Event> event = find_event(handle);
  if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  return point_of(*event).passed() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuEventSynchronize(CUevent handle) {
  CGX_ENTER(Call::cuEventSynchronize);
  const std::shared_ptr<Event> event = find_event(handle);
  if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  point_of(*event).wait();
  return state_of(current_context());
}

CUresult cuEventElapsedTime(float* milliseconds, CUevent start, CUevent end) {
  CGX_ENTER(Call::cuEventElapsedTime);
  const std::shared_ptr<Event> first = find_event(start), last = find_event(end);
  if (first == nullptr || last == nullptr || !first->timed || !last->timed) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  if (!point_of(*first).passed() || !point_of(*last).passed()) return CUDA_ERROR_NOT_READY;
  const int64_t from = time_of(*first), to = time_of(*last);
  if (from == 0 || to == 0) return CUDA_ERROR_INVALID_HANDLE;
  *milliseconds = static_cast<float>(to - from) * 1e-6f;
  return CUDA_SUCCESS;
}
