// Communicator, its tensors in the memory of a GPU: copied into the arena by the caller's stream,
// handed to the daemon when they are there, copied back when the results are.
#include "client/checks.h"
#include "client/communicator.h"

namespace cgx::client {
namespace {

constexpr uint64_t kStepsStaged = 4, kCallsStaged = 64;  // as long as the ledgers know them

// A tensor's end on the GPU that gets its result.
DeviceBuffers target_of(const DeviceBuffers& buffers, void* stream) {
  return {.in = buffers.out, .out = buffers.out, .bytes = buffers.bytes, .stream = stream};
}

}  // namespace

// Nobody waits with the lock for the driver.
Result<StagedIn> Communicator::stage_in(Use& use, const DeviceBuffers& buffers) {
  use.lock().unlock();
  Result<StagedIn> staged = session_.stage_in(buffers, device_);
  use.lock().lock();
  if (closed_) return cancelled();
  return staged;
}

// Where the daemon, or the GPU's worker, finds what was staged.
Result<Communicator::Place> Communicator::place_staged(const StagedIn& staged,
                                                       const DeviceBuffers& buffers,
                                                       uint64_t element_bytes) {
  void* const memory = staged.memory.get();
  const bool there = memory == nullptr;
  CGX_ASSIGN_OR_RETURN(Place place,
                       place_of(there ? buffers.in : memory, there ? buffers.out : memory,
                                buffers.bytes, element_bytes));
  place.ready = staged.ready;
  return place;
}

Status Communicator::submit_from_gpu(uint64_t number, uint32_t id, DeviceBuffers buffers) {
  CGX_ASSIGN_OR_RETURN(Use use, Use::begin(*this));
  CGX_RETURN_IF_ERROR(check_ids({&id, 1}));
  const Tensor& tensor = *tensors_[id];
  const wire::TensorDescription& about = tensor.description;
  buffers.bytes = tensor.bytes;
  if (device_ && buffers.in == nullptr && buffers.out == nullptr) {
    buffers.in = buffers.out = tensor.home;
  }
  Result<StagedIn> staged = stage_in(use, buffers);
  if (!staged.ok()) {
    return naming(staged.status(), "tensor " + about.name, about.elements, about.dtype);
  }
  Result<Place> placed = place_staged(*staged, buffers, dtype_bytes(about.dtype));
  if (!placed.ok()) {
    return naming(placed.status(), "tensor " + about.name, about.elements, about.dtype);
  }
  Place place = *std::move(placed);
  CGX_RETURN_IF_ERROR(make_room(use.lock(), 1, 1, deadline()));
  CGX_ASSIGN_OR_RETURN(Step* const step, open_step(number));
  Copy* const copy = staged->host_waits ? &staged->copy : nullptr;
  const Status spoken = speak_of(*step, id, Mark::kSubmitted, &place, copy);
  session_.publish();
  CGX_RETURN_IF_ERROR(spoken);
  if (staged->memory == nullptr) return {};
  staged_steps_[number].push_back({id, std::move(staged->memory), buffers});
  if (number >= kStepsStaged) {
    staged_steps_.erase(staged_steps_.begin(), staged_steps_.upper_bound(number - kStepsStaged));
  }
  return {};
}

Result<uint64_t> Communicator::call_from_gpu(Use& use, const CallBuffers& buffers, uint64_t bytes) {
  const DeviceBuffers device{
      .in = buffers.in, .out = buffers.out, .bytes = bytes, .stream = buffers.stream};
  const auto dtype = static_cast<DType>(buffers.dtype);
  Result<StagedIn> staged = stage_in(use, device);
  if (!staged.ok()) return naming(staged.status(), "cgx_post", buffers.count, dtype);
  Result<Place> placed = place_staged(*staged, device, dtype_bytes(dtype));
  if (!placed.ok()) return naming(placed.status(), "cgx_post", buffers.count, dtype);
  Copy* const copy = staged->host_waits ? &staged->copy : nullptr;
  CGX_ASSIGN_OR_RETURN(const uint64_t call, begin_call(use, buffers, *std::move(placed), copy));
  if (staged->memory == nullptr) return call;
  staged_calls_[call] = {0, std::move(staged->memory), device};
  if (call >= kCallsStaged) {
    staged_calls_.erase(staged_calls_.begin(), staged_calls_.upper_bound(call - kCallsStaged));
  }
  return call;
}

// Records reach the daemon in the order in which they were said: behind one whose tensor is still
// being copied they queue up.
void Communicator::put(const cgx_submit_record& record, uint32_t completions, Copy* copy) {
  if (copy == nullptr && deferred_.empty()) return session_.push(record, completions);
  session_.reserve(completions);
  deferred_.push_back({record, copy != nullptr});
  if (copy == nullptr) return;
  ++copying_;
  const bool is_call = record.kind == CGX_SUBMIT_CALL;
  const std::string what =
      is_call ? "call " + text(record.step) : "tensor " + tensors_[record.tensor]->description.name;
  session_.copies().watch(this, std::move(*copy),
                          [&session = session_, self = self_, what](const Status& status) {
                            auto entered = session.enter_to_look();
                            if (!entered.ok()) return;
                            Lock lock = std::move(entered).value();
                            if (*self != nullptr) (*self)->copied(lock, what, status);
                          });
}

// In the thread that waits for copies. The last line may be the last of this object.
void Communicator::copied(Lock& lock, const std::string& what, const Status& status) {
  const bool open = !closed_ && session_.lost().ok();
  if (open && status.ok()) {
    deferred_.front().copying = false;
    const Status sent = send_deferred(lock);
    if (!sent.ok() && !closed_ && session_.lost().ok()) give_up(lock, sent);
  } else if (open) {
    give_up(lock, {status.code(), what + " of communicator " + name_ +
                                      " did not come from the GPU: " + status.message()});
  }
  if (closed_ || !session_.lost().ok()) deferred_.clear();
  --copying_;
  session_.wake_waiters();
  left_.notify_all();
}

Status Communicator::send_deferred(Lock& lock) {
  while (!closed_ && !deferred_.empty() && !deferred_.front().copying) {
    CGX_RETURN_IF_ERROR(session_.make_room(lock, 1, 0, deadline(), closed_));
    if (closed_) break;
    session_.push(deferred_.front().record, 0);
    deferred_.pop_front();
  }
  session_.publish();
  return {};
}

// What this rank has promised to others will not come: it leaves, so that they hear of it at once.
void Communicator::give_up(Lock& lock, Status why) {
  broken_ = std::move(why);
  end_waits();
  left_.wait(lock, [this] { return users_ == 0; });
  static_cast<void>(leave(lock).ok());
}

Status Communicator::copy_out(Use& use, const Staged& staged, void* stream) {
  use.lock().unlock();
  Status status;
  Result<Staging*> staging = session_.staging();
  if (staging.ok()) {
    const DeviceBuffers target = target_of(staged.buffers, stream);
    status = (*staging)->copy_out(target, staged.memory, device_.has_value()).status();
  }
  use.lock().lock();
  return staging.ok() ? status : staging.status();
}

Status Communicator::stream_wait(uint64_t number, void* stream, int64_t timeout_ms) {
  CGX_ASSIGN_OR_RETURN(const Use inside, Use::begin_unlocked(*this));
  CGX_RETURN_IF_ERROR(wait_step(number, timeout_ms));
  CGX_ASSIGN_OR_RETURN(Use use, Use::begin(*this, true));
  CGX_ASSIGN_OR_RETURN(const Step* const step, steps_.find(number));
  auto found = staged_steps_.extract(number);
  if (found.empty()) return {};
  const std::vector<uint8_t> states = step->states;
  for (const Staged& staged : found.mapped()) {
    if (states[staged.tensor] != CGX_TENSOR_RESULT) continue;
    const Status status = copy_out(use, staged, stream);
    if (status.ok()) continue;
    const wire::TensorDescription& about = tensors_[staged.tensor]->description;
    const Status named = naming(status, "tensor " + about.name, about.elements, about.dtype);
    staged_steps_.insert(std::move(found));  // it may be waited for again, elsewhere
    return named;
  }
  return {};
}

Status Communicator::stream_wait_call(uint64_t call, void* stream, int64_t timeout_ms) {
  CGX_ASSIGN_OR_RETURN(const Use inside, Use::begin_unlocked(*this));
  CGX_RETURN_IF_ERROR(wait_call(call, timeout_ms));
  CGX_ASSIGN_OR_RETURN(Use use, Use::begin(*this, true));
  auto found = staged_calls_.extract(call);
  if (found.empty()) return {};
  const Status status = copy_out(use, found.mapped(), stream);
  if (status.ok()) return status;
  staged_calls_.insert(std::move(found));  // as above
  return {status.code(), "call " + text(call) + ": " + status.message()};
}

}  // namespace cgx::client
