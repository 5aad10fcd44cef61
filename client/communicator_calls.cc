// Communicator, its calls outside steps, and what steps and calls share.
#include "client/checks.h"
#include "client/communicator.h"
#include "proto/wire/submit_record.h"

namespace cgx::client {

Result<Communicator::Place> Communicator::place_of(const void* in, void* out, uint64_t bytes,
                                                   uint64_t element_bytes) {
  Place place;
  CGX_RETURN_IF_ERROR(check_aligned("the input", in, element_bytes));
  CGX_RETURN_IF_ERROR(check_aligned("the output", out, element_bytes));
  CGX_ASSIGN_OR_RETURN(place.in, session_.arenas().locate(in, bytes, "the input"));
  if (in == out) {
    place.out = {.arena = place.in.arena, .offset = place.in.offset, .hold = {}};
    return place;
  }
  CGX_ASSIGN_OR_RETURN(place.out, session_.arenas().locate(out, bytes, "the output"));
  const auto a = reinterpret_cast<uintptr_t>(in), b = reinterpret_cast<uintptr_t>(out);
  const bool overlap = a < b + bytes && b < a + bytes;
  if (overlap) return invalid_argument("input and output overlap without being equal");
  return place;
}

Result<uint64_t> Communicator::allreduce(const CallBuffers& buffers) {
  CGX_ASSIGN_OR_RETURN(Use use, Use::begin(*this));
  CGX_RETURN_IF_ERROR(check_types("cgx_allreduce", buffers.dtype, buffers.op));
  const uint64_t element_bytes = dtype_bytes(static_cast<DType>(buffers.dtype));
  CGX_RETURN_IF_ERROR(elements_of("cgx_allreduce", {&buffers.count, 1}, element_bytes).status());
  const uint64_t bytes = buffers.count * element_bytes;
  if (buffers.on_gpu) return call_from_gpu(use, buffers, bytes);
  auto placed = place_of(buffers.in, buffers.out, bytes, element_bytes);
  if (!placed.ok()) {
    return naming(placed.status(), "cgx_allreduce", buffers.count,
                  static_cast<DType>(buffers.dtype));
  }
  return begin_call(use, buffers, *std::move(placed), nullptr);
}

Status Communicator::allreduce_and_wait(const CallBuffers& buffers) {
  CGX_ASSIGN_OR_RETURN(const Use inside, Use::begin_unlocked(*this));
  CGX_ASSIGN_OR_RETURN(const uint64_t call, allreduce(buffers));
  return wait_call(call, -1);
}

Status Communicator::make_room(Lock& lock, uint32_t records, uint32_t completions,
                               Deadline deadline) {
  const Status made = session_.make_room(lock, records, completions, deadline, closed_);
  if (!made.ok()) {
    const std::string answers =
        text(completions) + " more answers (" + text(CGX_COMPLETION_CAPACITY) + " a session)";
    return timed_out(made, "room for " + (completions > 0 ? answers : "a record"));
  }
  return closed_ ? cancelled() : Status();
}

Result<uint64_t> Communicator::begin_call(Use& use, const CallBuffers& buffers, Place place,
                                          Copy* copy) {
  const Deadline limit = deadline();
  do {
    const Status waited =
        session_.wait(use.lock(), limit, [&] { return closed_ || calls_.room(); });
    CGX_RETURN_IF_ERROR(timed_out(waited, "room for a fifth call"));
    CGX_RETURN_IF_ERROR(make_room(use.lock(), 1, 1, limit));
  } while (!calls_.room());
  cgx_submit_record record{};
  record.kind = CGX_SUBMIT_CALL;
  record.dtype = static_cast<uint8_t>(buffers.dtype);
  record.op = static_cast<uint8_t>(buffers.op);
  record.comm = handle_;
  record.step = calls_.begin({std::move(place.in.hold), std::move(place.out.hold)});
  record.count = buffers.count;
  record.in_arena = place.in.arena;
  record.in_offset = place.in.offset;
  record.out_arena = place.out.arena;
  record.out_offset = place.out.offset;
  record.word = place.ready.word;
  record.word_value = place.ready.value;
  put(record, 1, copy);
  session_.publish();
  return record.step;
}

namespace {

// What else the options ask for, as a record says it; fields that no record could hold are set,
// too.
Result<cgx_submit_record> wishes_of(const cgx_post_options& options) {
  cgx_submit_record wishes{};
  if (options.collective < 0 || options.collective > UINT8_MAX) {
    return invalid_argument("cgx_post: collective " + std::to_string(options.collective) +
                            " is not known");
  }
  wishes.collective = static_cast<uint8_t>(options.collective);
  wishes.root = options.root;
  wishes.peer = options.peer;
  wishes.tag = options.tag;
  wishes.rows = options.indices != nullptr ? std::max<uint64_t>(options.rows, 1) : options.rows;
  wishes.indices_dtype = options.indices_dtype != 0 ? 1 : 0;
  if (options.word != nullptr || options.word_value != 0) {
    return Status(StatusCode::kUNIMPLEMENTED,
                  "cgx_post: a timeline word of the caller's is not built yet; name the stream");
  }
  return wishes;
}

}  // namespace

Result<uint64_t> Communicator::post(const cgx_post_options& options) {
  if (!device_ || options.memory != CGX_MEMORY_CUDA) return try_post(options);
  CGX_ASSIGN_OR_RETURN(const Use inside, Use::begin_unlocked(*this));
  Result<uint64_t> posted = try_post(options);
  if (!posted.ok()) session_.keep_for(options.stream);
  return posted;
}

Result<uint64_t> Communicator::try_post(const cgx_post_options& options) {
  CGX_ASSIGN_OR_RETURN(const cgx_submit_record wishes, wishes_of(options));
  if (const Status built = wire::check_built(wishes); !built.ok()) {
    return Status(built.code(), "cgx_post: " + built.message());
  }
  if (options.reserved != 0) {
    return Status(StatusCode::kUNIMPLEMENTED, "cgx_post_options.reserved must be 0");
  }
  const bool on_gpu = options.memory == CGX_MEMORY_CUDA;
  if (!on_gpu && (options.memory != CGX_MEMORY_ARENA || options.stream != nullptr)) {
    return invalid_argument("cgx_post: memory " + std::to_string(options.memory) +
                            " must be CGX_MEMORY_CUDA, or CGX_MEMORY_ARENA without a stream");
  }
  if (options.kind == CGX_POST_CALL) {
    return allreduce({options.in, options.out, options.count, options.dtype, options.op, on_gpu,
                      options.stream});
  }
  if (options.kind != CGX_POST_TENSOR) {
    return invalid_argument("cgx_post: kind " + std::to_string(options.kind) +
                            " must be CGX_POST_CALL or CGX_POST_TENSOR");
  }
  if (on_gpu) {
    const DeviceBuffers buffers{.in = options.in, .out = options.out, .stream = options.stream};
    CGX_RETURN_IF_ERROR(submit_from_gpu(options.step, options.tensor, buffers));
    return uint64_t{0};
  }
  const bool home = options.in == nullptr && options.out == nullptr;
  CGX_RETURN_IF_ERROR(
      home ? submit(options.step, {&options.tensor, 1})
           : submit_inout(options.step, {&options.tensor, 1}, &options.in, &options.out));
  return uint64_t{0};
}

Status Communicator::wait_call(uint64_t number, int64_t timeout_ms) {
  CGX_ASSIGN_OR_RETURN(Use use, Use::begin(*this, true));
  CGX_RETURN_IF_ERROR(calls_.find(number).status());
  const Status waited = session_.wait(use.lock(), deadline(timeout_ms), [&] {
    const auto call = calls_.find(number);
    return closed_ || !call.ok() || (*call)->finished;
  });
  if (!waited.ok()) return timed_out(waited, "call " + std::to_string(number));
  if (closed_) return cancelled();
  CGX_ASSIGN_OR_RETURN(const Call* const call, calls_.find(number));
  return call->failure;
}

Result<bool> Communicator::test_call(uint64_t number) {
  CGX_ASSIGN_OR_RETURN(const Use use, Use::begin(*this, true));
  session_.drain();
  CGX_ASSIGN_OR_RETURN(const Call* const call, calls_.find(number));
  const bool lives = call->finished || session_.daemon_lives();
  if (!call->finished && !lives) return session_.lost();
  if (call->finished && !call->failure.ok()) return call->failure;
  return call->finished;
}

uint32_t Communicator::complete(const cgx_completion_record& record, const Status& failure) {
  if (record.kind == CGX_COMPLETE_CALL) return calls_.apply(record, failure);
  return steps_.apply(record, failure);
}

}  // namespace cgx::client
