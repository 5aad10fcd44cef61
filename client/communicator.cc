#include "client/communicator.h"

#include <algorithm>
#include <cstring>

#include "client/cores.h"
#include "client/rendezvous.h"

namespace cgx::client {
namespace {

constexpr uint64_t kTimeoutMs = 30ull * 60 * 1000;
constexpr uint64_t kGraceMs = 5'000;  // the daemon's own answer, which names the culprit, comes first
constexpr uint32_t kRanksMax = 65'536;
constexpr uint32_t kTensorsMax = CGX_COMPLETION_CAPACITY - 64;  // a step's completions fit in the ring
constexpr size_t kSubmitBatch = 1024;
constexpr size_t kTableBatchBytes = wire::kSessionPacketBytesMax / 2;

std::string text(uint64_t number) { return std::to_string(number); }

Status check_options(const cgx_comm_options& options, uint32_t size, bool leader) {
  const size_t length = options.name ? std::strlen(options.name) : 0;
  if (length == 0 || length > wire::kNameBytesMax) {
    return invalid_argument("the communicator's name must have 1 to " +
                            text(wire::kNameBytesMax) + " bytes, not " + text(length));
  }
  if (size > kRanksMax) {
    return invalid_argument("size " + text(size) + " exceeds the limit of " + text(kRanksMax));
  }
  if (options.rank >= size) {
    return invalid_argument("rank " + text(options.rank) + " must be below size " + text(size));
  }
  const bool callbacks = options.rendezvous.put && options.rendezvous.get;
  if (size > 1 && !callbacks && !leader) {
    return invalid_argument("a communicator of " + text(size) +
                            " ranks needs rendezvous.put and rendezvous.get, or CGX_LEADER");
  }
  return {};
}

// The product of the shape, or INVALID_ARGUMENT if it does not fit.
Result<uint64_t> elements_of(const std::string& name, std::span<const uint64_t> shape,
                             uint64_t element_bytes) {
  uint64_t elements = 1, bytes = 0;
  for (const uint64_t dim : shape) {
    if (__builtin_mul_overflow(elements, dim, &elements)) elements = UINT64_MAX;
  }
  if (__builtin_mul_overflow(elements, element_bytes, &bytes) || bytes > UINT64_MAX / 2) {
    return invalid_argument("tensor " + name + ": its shape has more elements than 2^63 bytes hold");
  }
  return elements;
}

Status check_types(const std::string& what, int dtype, int op) {
  if (dtype < 0 || dtype > UINT8_MAX || !dtype_known(static_cast<uint8_t>(dtype))) {
    return invalid_argument(what + ": dtype " + std::to_string(dtype) + " is not an element type");
  }
  if (op != CGX_SUM && op != CGX_AVG) {
    return invalid_argument(what + ": op " + std::to_string(op) + " must be CGX_SUM or CGX_AVG");
  }
  const auto type = static_cast<DType>(dtype);
  if (op == CGX_AVG && !dtype_is_small_float(type) && type != DType::kF64) {
    return invalid_argument(what + ": avg is defined for floating types, not for " +
                            std::string(dtype_name(type)));
  }
  return {};
}

Status check_aligned(const std::string& what, const void* memory, uint64_t element_bytes) {
  if (reinterpret_cast<uintptr_t>(memory) % element_bytes == 0) return {};
  return invalid_argument(what + " is not aligned to its elements of " + text(element_bytes) +
                          " bytes");
}

Status cancelled(const std::string& name) {
  return {StatusCode::kCANCELLED, "communicator " + name + " was closed"};
}

}  // namespace

// A thread inside the communicator: holds the session's lock and keeps close() waiting.
class Communicator::Use {
 public:
  // `to_look`: allowed although the daemon is lost, to see what arrived before.
  static Result<Use> begin(Communicator& comm, bool to_look = false) {
    auto lock = to_look ? comm.session_.enter_to_look() : comm.session_.enter();
    CGX_RETURN_IF_ERROR(lock.status());
    if (comm.closed_) return cancelled(comm.name_);
    return Use(comm, std::move(lock).value());
  }
  Use(Use&& other) noexcept
      : comm_(std::exchange(other.comm_, nullptr)), lock_(std::move(other.lock_)) {}
  Use& operator=(Use&&) = delete;
  ~Use() {
    if (!comm_) return;
    if (!lock_.owns_lock()) lock_.lock();
    if (--comm_->users_ == 0) comm_->left_.notify_all();
  }
  Lock& lock() { return lock_; }

 private:
  Use(Communicator& comm, Lock lock) : comm_(&comm), lock_(std::move(lock)) { ++comm.users_; }

  Communicator* comm_;
  Lock lock_;
};

Communicator::Communicator(Session& session, const cgx_comm_options& options)
    : session_(session),
      name_(options.name),
      timeout_ms_(options.timeout_ms == 0 ? kTimeoutMs : options.timeout_ms),
      steps_(options.first_step) {}

Result<std::unique_ptr<Communicator>> Communicator::create(Session& session,
                                                           const cgx_comm_options& options) {
  cgx_comm_options full = options;
  if (full.size == 0) full.size = 1;
  CGX_RETURN_IF_ERROR(check_options(full, full.size, !session.environment().leader.empty()));
  std::unique_ptr<Communicator> comm(new Communicator(session, full));
  CGX_RETURN_IF_ERROR(comm->join(full));
  return comm;
}

Status Communicator::join(const cgx_comm_options& options) {
  Meeting meeting{.rank = options.rank, .size = options.size};
  meeting.self = {session_.daemon().instance, session_.daemon().mesh_address};
  CGX_ASSIGN_OR_RETURN(meeting.key_if_first, random_key());
  {
    CGX_ASSIGN_OR_RETURN(const Lock lock, session_.enter());
    handle_ = session_.attach(*this);
    meeting.prefix = "cgx/" + session_.job() + "/" + name_ + "#" +
                     text(session_.communicators_made(name_));
    if (session_.job_key) meeting.key_if_first = *session_.job_key;
  }
  CallbackStore store(options.rendezvous);
  CGX_ASSIGN_OR_RETURN(Agreement agreement, meet(meeting, &store));
  const auto local = std::count_if(
      agreement.members.begin(), agreement.members.end(),
      [&](const wire::Member& member) { return member.instance == meeting.self.instance; });
  CGX_RETURN_IF_ERROR(check_spinning(session_.spin_us(), static_cast<uint32_t>(local)));
  {
    CGX_ASSIGN_OR_RETURN(const Lock lock, session_.enter());
    if (!session_.job_key) session_.job_key = agreement.job_key;
  }
  const wire::CreateCommunicator message{.comm = handle_,
                                         .name = name_,
                                         .rank = options.rank,
                                         .first_step = options.first_step,
                                         .timeout_ms = timeout_ms_,
                                         .job_key = agreement.job_key,
                                         .members = std::move(agreement.members)};
  return session_.socket().call(message, deadline()).status();
}

Communicator::~Communicator() {
  auto entered = session_.enter_to_look();
  if (!entered.ok()) return;  // a forked child's copy
  Lock lock = std::move(entered).value();
  closed_ = true;
  session_.wake_waiters();
  left_.wait(lock, [this] { return users_ == 0; });
  if (handle_ == 0) return;
  session_.drain();
  const bool idle = !steps_.unfinished() && calls_.in_flight() == 0;
  session_.detach(handle_);
  session_.forget_slots(steps_.reserved() + calls_.in_flight());
  const bool reachable = session_.lost().ok();
  lock.unlock();
  if (reachable) {
    static_cast<void>(session_.socket().post(wire::CloseCommunicator{.comm = handle_}).ok());
  }
  if (!idle) return;  // the daemon may still write to the homes: they go with the session
  for (const auto& tensor : tensors_) {
    if (tensor->owned) static_cast<void>(session_.arenas().release(tensor->home).ok());
  }
}

Deadline Communicator::deadline(int64_t timeout_ms) const {
  const uint64_t own = std::min(timeout_ms_, kTimeoutMsMax) + kGraceMs;
  return deadline_in_ms(timeout_ms < 0 ? own : std::min(static_cast<uint64_t>(timeout_ms), own));
}

Status Communicator::timed_out(const Status& status, const std::string& what) const {
  if (status.code() != StatusCode::kTIMED_OUT) return status;
  return {StatusCode::kTIMED_OUT, what + " of communicator " + name_ + ": " + status.message()};
}

// --- Tensor table ---------------------------------------------------------------------------------

Result<Tensor> Communicator::describe(const cgx_tensor_options& options) {
  Tensor result;
  wire::TensorDescription& about = result.description;
  about.name = options.name ? options.name : "";
  if (about.name.empty() || about.name.size() > wire::kNameBytesMax) {
    return invalid_argument("a tensor's name must have 1 to " + text(wire::kNameBytesMax) +
                            " bytes, not " + text(about.name.size()));
  }
  CGX_RETURN_IF_ERROR(check_types("tensor " + about.name, options.dtype, options.op));
  if (options.dims > wire::kShapeDimsMax || (options.dims > 0 && !options.shape)) {
    return invalid_argument("tensor " + about.name + ": " + text(options.dims) +
                            " dimensions; 0 to " + text(wire::kShapeDimsMax) + " with a shape");
  }
  about.dtype = static_cast<DType>(options.dtype);
  about.op = static_cast<ReduceOp>(options.op);
  about.shape.assign(options.shape, options.shape + options.dims);
  CGX_ASSIGN_OR_RETURN(about.elements,
                       elements_of(about.name, about.shape, dtype_bytes(about.dtype)));
  result.bytes = about.elements * dtype_bytes(about.dtype);
  return result;
}

Status Communicator::place_home(Tensor& tensor, void* home) {
  if (!home) {
    CGX_ASSIGN_OR_RETURN(home, session_.arenas().allocate(tensor.bytes, 64));
    tensor.owned = true;
  }
  tensor.home = static_cast<std::byte*>(home);
  const std::string what = "the home of tensor " + tensor.description.name;
  CGX_RETURN_IF_ERROR(check_aligned(what, home, dtype_bytes(tensor.description.dtype)));
  CGX_ASSIGN_OR_RETURN(const ArenaPlace place,
                       session_.arenas().locate(home, tensor.bytes, what.c_str()));
  tensor.description.home_arena = place.arena;
  tensor.description.home_offset = place.offset;
  return {};
}

Result<uint32_t> Communicator::add_tensor(const cgx_tensor_options& options) {
  CGX_ASSIGN_OR_RETURN(Use use, Use::begin(*this));
  CGX_ASSIGN_OR_RETURN(Tensor tensor, describe(options));
  if (tensors_.size() >= kTensorsMax) {
    return resource_exhausted("communicator " + name_ + " has " + text(kTensorsMax) +
                              " tensors, the most one step can complete");
  }
  const std::string& name = tensor.description.name;
  if (tensor_names_.contains(name)) {
    return Status(StatusCode::kALREADY_EXISTS,
                  "tensor " + name + " is registered in communicator " + name_);
  }
  use.lock().unlock();  // a new arena is announced over the socket
  CGX_RETURN_IF_ERROR(place_home(tensor, options.home));
  use.lock().lock();
  tensor_names_.insert(name);
  tensors_.push_back(std::make_unique<Tensor>(std::move(tensor)));
  return static_cast<uint32_t>(tensors_.size() - 1);
}

Result<const Tensor*> Communicator::tensor(uint32_t id) {
  CGX_ASSIGN_OR_RETURN(const Use use, Use::begin(*this, true));
  if (id < tensors_.size()) return const_cast<const Tensor*>(tensors_[id].get());
  return Status(StatusCode::kNOT_FOUND, "tensor " + text(id) + " of " + text(tensors_.size()) +
                                            " in communicator " + name_);
}

// Sends the descriptions not sent yet, in batches that fit in a packet.
Status Communicator::send_table(std::span<const wire::TensorDescription> table) {
  wire::RegisterTensors batch{.comm = handle_, .first = announced_};
  size_t bytes = 0;
  const auto flush = [&]() -> Status {
    CGX_ASSIGN_OR_RETURN(const uint32_t request, session_.socket().post(batch));
    posted_.push_back(request);
    announced_ += static_cast<uint32_t>(batch.tensors.size());
    batch = {.comm = handle_, .first = announced_};
    bytes = 0;
    return {};
  };
  for (const wire::TensorDescription& about : table) {
    batch.tensors.push_back(about);
    bytes += about.name.size() + about.shape.size() * 8 + 64;
    if (bytes >= kTableBatchBytes) CGX_RETURN_IF_ERROR(flush());
  }
  return batch.tensors.empty() ? Status() : flush();
}

Status Communicator::commit() {
  CGX_ASSIGN_OR_RETURN(Use use, Use::begin(*this));
  CGX_RETURN_IF_ERROR(steps_.between_steps());
  if (committing_) return {StatusCode::kBUSY, "communicator " + name_ + " is being committed"};
  committing_ = true;
  std::vector<wire::TensorDescription> table;
  for (size_t i = announced_; i < tensors_.size(); ++i) table.push_back(tensors_[i]->description);
  const auto count = static_cast<uint32_t>(tensors_.size());
  use.lock().unlock();
  Status status = send_table(table);
  if (status.ok()) {
    status = session_.socket().call(wire::Commit{.comm = handle_, .tensors = count}, deadline())
                 .status();
  }
  // A refused description explains a refused commit.
  for (const uint32_t request : std::exchange(posted_, {})) {
    const Status refused = session_.socket().error_of(request);
    if (!refused.ok()) status = refused;
  }
  use.lock().lock();
  committing_ = false;
  if (status.ok()) steps_.resize(count);
  return timed_out(status, "cgx_commit");
}

// --- Steps ----------------------------------------------------------------------------------------

Status Communicator::check_ids(std::span<const uint32_t> ids) const {
  for (const uint32_t id : ids) {
    if (id < steps_.tensors()) continue;
    if (id < tensors_.size()) {
      return {StatusCode::kNOT_COMMITTED,
              "tensor " + tensors_[id]->description.name + " joins at the next cgx_commit"};
    }
    return {StatusCode::kNOT_FOUND, "tensor " + text(id) + "; communicator " + name_ + " has " +
                                        text(tensors_.size())};
  }
  return {};
}

cgx_submit_record Communicator::record_of(const Step& step, uint32_t id, Mark mark,
                                          const Place* place) const {
  const wire::TensorDescription& about = tensors_[id]->description;
  cgx_submit_record record{};
  record.kind = mark == Mark::kSubmitted ? CGX_SUBMIT_TENSOR : CGX_SUBMIT_ABSENT;
  record.comm = handle_;
  record.step = step.number;
  record.tensor = id;
  record.attempt = step.attempt;
  record.in_arena = place ? place->in.arena : about.home_arena;
  record.in_offset = place ? place->in.offset : about.home_offset;
  record.out_arena = place ? place->out.arena : about.home_arena;
  record.out_offset = place ? place->out.offset : about.home_offset;
  record.cookie = step.cookie;
  return record;
}

// A second submit of a tensor means that this rank's backward pass was given up: the daemon is told, so
// that the step fails on all ranks.
Status Communicator::abandon(Step& step, cgx_submit_record record) {
  const std::string& name = tensors_[record.tensor]->description.name;
  session_.push(record, 1);
  steps_.abandon(step, {StatusCode::kSTEP_ABANDONED,
                        "tensor " + name + " was submitted again in step " + text(step.number) +
                            " before its step_end"});
  return step.failure;
}

Status Communicator::speak_of(Step& step, uint32_t id, Mark mark, const Place* place) {
  const Mark before = step.marks[id];
  if (before == Mark::kAbsent && mark == Mark::kAbsent) return {};
  const cgx_submit_record record = record_of(step, id, mark, place);
  if (before == Mark::kSubmitted && mark == Mark::kSubmitted) return abandon(step, record);
  if (before != Mark::kNone) {
    const bool absent = before == Mark::kAbsent;
    return invalid_argument("tensor " + tensors_[id]->description.name + " was " +
                            (absent ? "declared absent" : "submitted") + " in step " +
                            text(step.number) + " already");
  }
  session_.push(record, 1);
  steps_.mark(step, id, mark);
  return {};
}

Status Communicator::speak(Use& use, uint64_t number, std::span<const uint32_t> ids, Mark mark,
                           const Place* place) {
  do {
    const auto batch = ids.first(std::min(ids.size(), kSubmitBatch));
    const auto count = static_cast<uint32_t>(batch.size());
    CGX_RETURN_IF_ERROR(check_ids(batch));
    CGX_RETURN_IF_ERROR(session_.make_room(use.lock(), count, count, deadline()));
    CGX_ASSIGN_OR_RETURN(Step* const step, steps_.open(number));
    Status status;
    for (size_t i = 0; i < batch.size() && status.ok(); ++i) {
      status = speak_of(*step, batch[i], mark, place);
    }
    session_.publish();
    CGX_RETURN_IF_ERROR(status);
    ids = ids.subspan(batch.size());
  } while (!ids.empty());
  return {};
}

Status Communicator::submit(uint64_t step, std::span<const uint32_t> ids) {
  CGX_ASSIGN_OR_RETURN(Use use, Use::begin(*this));
  return speak(use, step, ids, Mark::kSubmitted, nullptr);
}

Status Communicator::absent(uint64_t step, std::span<const uint32_t> ids) {
  CGX_ASSIGN_OR_RETURN(Use use, Use::begin(*this));
  return speak(use, step, ids, Mark::kAbsent, nullptr);
}

Result<Communicator::Place> Communicator::place_of(const void* in, void* out, uint64_t bytes,
                                                   uint64_t element_bytes) {
  Place place;
  CGX_RETURN_IF_ERROR(check_aligned("the input", in, element_bytes));
  CGX_RETURN_IF_ERROR(check_aligned("the output", out, element_bytes));
  CGX_ASSIGN_OR_RETURN(place.in, session_.arenas().locate(in, bytes, "the input"));
  CGX_ASSIGN_OR_RETURN(place.out, session_.arenas().locate(out, bytes, "the output"));
  const auto a = reinterpret_cast<uintptr_t>(in), b = reinterpret_cast<uintptr_t>(out);
  const bool overlap = a != b && a < b + bytes && b < a + bytes;
  if (overlap) return invalid_argument("input and output overlap without being equal");
  return place;
}

Status Communicator::submit_inout(uint64_t step, uint32_t id, const void* in, void* out) {
  CGX_ASSIGN_OR_RETURN(Use use, Use::begin(*this));
  CGX_RETURN_IF_ERROR(check_ids({&id, 1}));
  CGX_ASSIGN_OR_RETURN(const Place place, place_of(in, out, tensors_[id]->bytes,
                                dtype_bytes(tensors_[id]->description.dtype)));
  return speak(use, step, {&id, 1}, Mark::kSubmitted, &place);
}

Status Communicator::step_end(uint64_t number) {
  CGX_ASSIGN_OR_RETURN(Use use, Use::begin(*this));
  CGX_ASSIGN_OR_RETURN(Step * step, steps_.open(number));
  const uint32_t slots = steps_.slots_at_end(*step);
  CGX_RETURN_IF_ERROR(session_.make_room(use.lock(), 1, slots, deadline()));
  CGX_ASSIGN_OR_RETURN(step, steps_.open(number));
  cgx_submit_record record{};
  record.kind = CGX_SUBMIT_STEP_END;
  record.comm = handle_;
  record.step = number;
  record.attempt = step->attempt;
  record.cookie = step->cookie;
  session_.push(record, steps_.slots_at_end(*step));
  steps_.end(*step);
  session_.publish();
  return {};
}

Status Communicator::step_done(uint64_t number, cgx_step_fate fate) {
  if (fate != CGX_KEPT && fate != CGX_DROPPED) {
    return invalid_argument("fate " + std::to_string(fate) + " must be CGX_KEPT or CGX_DROPPED");
  }
  CGX_ASSIGN_OR_RETURN(Use use, Use::begin(*this));
  CGX_RETURN_IF_ERROR(session_.make_room(use.lock(), 1, 0, deadline()));
  CGX_ASSIGN_OR_RETURN(Step* const step, steps_.awaited(number));
  CGX_RETURN_IF_ERROR(steps_.may_close(*step));
  cgx_submit_record record{};
  record.kind = CGX_SUBMIT_STEP_DONE;
  record.flags = fate == CGX_DROPPED ? CGX_STEP_DROPPED : 0;
  record.comm = handle_;
  record.step = number;
  record.attempt = step->attempt;
  session_.push(record, 0);
  session_.publish();
  return {};
}

Result<uint64_t> Communicator::step_redo() {
  CGX_ASSIGN_OR_RETURN(Use use, Use::begin(*this));
  session_.drain();
  if (!steps_.failed()) {
    return Status(StatusCode::kSTEP_ORDER, "no step of communicator " + name_ + " has failed");
  }
  use.lock().unlock();
  const auto reply = session_.socket().call(wire::RedoStep{.comm = handle_}, deadline());
  use.lock().lock();
  if (!reply.ok()) return timed_out(reply.status(), "cgx_step_redo");
  session_.drain();  // the failed attempt's completions precede the reply
  session_.forget_slots(
      steps_.restart(reply->value1, static_cast<uint32_t>(reply->value0)));
  return reply->value1;
}

Status Communicator::wait_step(uint64_t number, int64_t timeout_ms) {
  CGX_ASSIGN_OR_RETURN(Use use, Use::begin(*this, true));
  CGX_RETURN_IF_ERROR(steps_.awaited(number).status());
  const Status waited = session_.wait(use.lock(), deadline(timeout_ms), [&] {
    const auto step = steps_.awaited(number);
    return closed_ || !step.ok() || (*step)->finished || (*step)->stopped();
  });
  if (!waited.ok()) return timed_out(waited, "step " + text(number));
  if (closed_) return cancelled(name_);
  CGX_ASSIGN_OR_RETURN(const Step* const step, steps_.awaited(number));
  return step->failure;
}

Status Communicator::test(uint64_t number, std::span<const uint32_t> ids, uint8_t* states,
                          size_t& pending) {
  CGX_ASSIGN_OR_RETURN(const Use use, Use::begin(*this, true));
  session_.drain();
  CGX_RETURN_IF_ERROR(check_ids(ids));
  CGX_ASSIGN_OR_RETURN(const Step* const step, steps_.find(number));
  size_t unfinished = 0;
  bool failed = false;
  for (size_t i = 0; i < ids.size(); ++i) {
    const uint8_t state = ids[i] < step->states.size() ? step->states[ids[i]] : 0;
    unfinished += state == CGX_TENSOR_PENDING;
    failed |= state == CGX_TENSOR_FAILED;
    if (states) states[i] = state;
  }
  pending = unfinished;
  if (failed || (!step->failure.ok() && unfinished > 0)) return step->failure;
  return unfinished > 0 ? session_.lost() : Status();
}

Result<cgx_step_report> Communicator::step_report(uint64_t number) {
  CGX_ASSIGN_OR_RETURN(const Use use, Use::begin(*this, true));
  session_.drain();
  CGX_ASSIGN_OR_RETURN(const Step* const step, steps_.find(number));
  cgx_step_report report{.step = number,
                         .attempt = step->attempt,
                         .finished = step->finished,
                         .epoch = step->epoch,
                         .policy_version = step->policy_version};
  for (const uint8_t state : step->states) {
    report.results += state == CGX_TENSOR_RESULT;
    report.filled += state == CGX_TENSOR_FILLED;
    report.absent += state == CGX_TENSOR_ABSENT;
    report.failed += state == CGX_TENSOR_FAILED;
  }
  return report;
}

// --- Calls outside steps --------------------------------------------------------------------------

Result<uint64_t> Communicator::allreduce(const CallBuffers& buffers) {
  CGX_ASSIGN_OR_RETURN(Use use, Use::begin(*this));
  CGX_RETURN_IF_ERROR(check_types("cgx_allreduce", buffers.dtype, buffers.op));
  const uint64_t element_bytes = dtype_bytes(static_cast<DType>(buffers.dtype));
  CGX_RETURN_IF_ERROR(elements_of("of cgx_allreduce", {&buffers.count, 1}, element_bytes).status());
  const uint64_t bytes = buffers.count * element_bytes;
  CGX_ASSIGN_OR_RETURN(const Place place, place_of(buffers.in, buffers.out, bytes, element_bytes));
  const Deadline limit = deadline();
  do {
    const Status waited =
        session_.wait(use.lock(), limit, [&] { return closed_ || calls_.room(); });
    CGX_RETURN_IF_ERROR(timed_out(waited, "room for a fifth call"));
    CGX_RETURN_IF_ERROR(session_.make_room(use.lock(), 1, 1, limit));
    if (closed_) return cancelled(name_);
  } while (!calls_.room());
  cgx_submit_record record{};
  record.kind = CGX_SUBMIT_CALL;
  record.dtype = static_cast<uint8_t>(buffers.dtype);
  record.op = static_cast<uint8_t>(buffers.op);
  record.comm = handle_;
  record.step = calls_.begin();
  record.count = buffers.count;
  record.in_arena = place.in.arena;
  record.in_offset = place.in.offset;
  record.out_arena = place.out.arena;
  record.out_offset = place.out.offset;
  session_.push(record, 1);
  session_.publish();
  return record.step;
}

Status Communicator::wait_call(uint64_t number, int64_t timeout_ms) {
  CGX_ASSIGN_OR_RETURN(Use use, Use::begin(*this, true));
  CGX_RETURN_IF_ERROR(calls_.find(number).status());
  const Status waited = session_.wait(use.lock(), deadline(timeout_ms), [&] {
    const auto call = calls_.find(number);
    return closed_ || !call.ok() || (*call)->finished;
  });
  if (!waited.ok()) return timed_out(waited, "call " + text(number));
  if (closed_) return cancelled(name_);
  CGX_ASSIGN_OR_RETURN(const Call* const call, calls_.find(number));
  return call->failure;
}

Result<bool> Communicator::test_call(uint64_t number) {
  CGX_ASSIGN_OR_RETURN(const Use use, Use::begin(*this, true));
  session_.drain();
  CGX_ASSIGN_OR_RETURN(const Call* const call, calls_.find(number));
  if (!call->finished && !session_.lost().ok()) return session_.lost();
  if (call->finished && !call->failure.ok()) return call->failure;
  return call->finished;
}

uint32_t Communicator::complete(const cgx_completion_record& record, const Status& failure) {
  if (record.kind == CGX_COMPLETE_CALL) return calls_.apply(record, failure);
  return steps_.apply(record, failure);
}

}  // namespace cgx::client
