// The C functions of cgx.h: adapters, nothing more. Exceptions (out of memory, for instance) stop
// here.
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "client/communicator.h"
#include "client/include/cgx/cgx.h"
#include "client/options.h"
#include "client/session.h"
#include "proto/wire/mutex.h"
#include "proto/wire/submit_record.h"

using cgx::Status;
using cgx::StatusCode;
using cgx::client::Communicator;
using cgx::client::Session;

struct cgx_comm {
  cgx_session* session;
  std::unique_ptr<Communicator> communicator;
};

struct cgx_session {
  std::unique_ptr<Session> session;
  cgx::Mutex mutex;
  std::vector<std::unique_ptr<cgx_comm>> comms CGX_GUARDED_BY(mutex);
};

struct cgx_arena {
  std::shared_ptr<cgx::client::ArenaMemory> memory;
};

namespace {

thread_local std::string last_error;

cgx_status report(const Status& status) {
  if (!status.ok()) last_error = status.to_string();
  return static_cast<cgx_status>(status.code());
}

template <typename Function>
cgx_status guarded(Function function) noexcept {
  try {
    return report(function());
  } catch (const std::bad_alloc&) {
    last_error.clear();
    return CGX_RESOURCE_EXHAUSTED;
  } catch (const std::exception& error) {
    return report(cgx::internal_error(error.what()));
  }
}

// Stores a result through the caller's pointer.
template <typename T, typename Out>
Status store(cgx::Result<T> result, Out* out) {
  if (!result.ok()) return result.status();
  *out = std::move(result).value();
  return Status();
}

Status missing(const char* what) {
  return cgx::invalid_argument(std::string(what) + " must not be NULL");
}

#define CGX_REQUIRE(argument) \
  if (!(argument)) return missing(#argument)

std::span<const uint32_t> span_of(const uint32_t* ids, size_t count) {
  return {ids, count};
}

// A number outside a list stays outside when it becomes a byte.
uint8_t byte_of(int number) {
  return number >= 0 && number < UINT8_MAX ? static_cast<uint8_t>(number) : UINT8_MAX;
}

using cgx::client::OptionsKind;
#define CGX_KIND(type, last) \
  { #type, sizeof(type), offsetof(type, last) + sizeof(type::last) }
constexpr OptionsKind kOpen = CGX_KIND(cgx_open_options, size);
constexpr OptionsKind kArena = CGX_KIND(cgx_arena_options, bytes);
constexpr OptionsKind kComm = CGX_KIND(cgx_comm_options, ranks);
constexpr OptionsKind kTensor = CGX_KIND(cgx_tensor_options, shape);
constexpr OptionsKind kPost = CGX_KIND(cgx_post_options, op);
constexpr OptionsKind kReport = CGX_KIND(cgx_step_report, finished);
#undef CGX_KIND

cgx::Result<cgx::client::SessionOptions> session_options(const cgx_open_options* options) {
  cgx::client::SessionOptions full;
  if (!options) return full;
  CGX_ASSIGN_OR_RETURN(const cgx_open_options given, cgx::client::known(kOpen, options));
  full.socket = given.socket ? given.socket : "";
  full.job = given.job ? given.job : "";
  full.arena_bytes = given.arena_bytes;
  full.connect_timeout_ms = given.connect_timeout_ms;
  full.spin_us = given.spin_us;
  return full;
}

// On the host, or the answer that it must be.
Status check_place(const cgx_arena_options& options) {
  const bool named = std::any_of(std::begin(options.device), std::end(options.device),
                                 [](uint8_t byte) { return byte != 0; });
  if (options.kind != CGX_ARENA_HOST && options.kind != CGX_ARENA_DEVICE) {
    return cgx::invalid_argument("cgx_arena_options.kind " + std::to_string(options.kind) +
                                 " must be CGX_ARENA_HOST or CGX_ARENA_DEVICE");
  }
  if ((options.kind == CGX_ARENA_DEVICE) != named) {
    return cgx::invalid_argument(
        "cgx_arena_options.device names the GPU of CGX_ARENA_DEVICE, and of nothing else");
  }
  if (options.reserved == 0) return {};
  return {StatusCode::kUNIMPLEMENTED, "cgx_arena_options.reserved must be 0"};
}

cgx::wire::DeviceId device_of(const cgx_arena_options& options) {
  cgx::wire::DeviceId device;
  std::memcpy(device.data(), options.device, sizeof(options.device));
  return device;
}

Status allocate(cgx_session* session, const cgx_arena_options& options, void** memory) {
  CGX_RETURN_IF_ERROR(session->session->check_not_forked());
  session->session->take_in();
  const size_t alignment = options.alignment == 0 ? 64 : options.alignment;
  if (options.kind == CGX_ARENA_DEVICE) {
    const cgx::wire::DeviceId device = device_of(options);
    return store(session->session->allocate_on(device, options.bytes, alignment), memory);
  }
  return store(session->session->arenas().allocate(options.bytes, alignment), memory);
}

// In a forked child a thread that it lacks may hold the mutex, and nobody else is there.
CGX_THREAD_RULE(no_thread_safety_analysis)
std::vector<std::unique_ptr<cgx_comm>> take_comms(cgx_session& session) {
  const bool alone = !session.session->check_not_forked().ok();
  if (!alone) session.mutex.lock();
  auto comms = std::move(session.comms);
  if (!alone) session.mutex.unlock();
  return comms;
}

Status forget(cgx_comm* comm) {
  cgx_session& session = *comm->session;
  std::unique_ptr<cgx_comm> owned;
  {
    const cgx::MutexLock lock(session.mutex);
    for (auto& entry : session.comms) {
      if (entry.get() == comm) owned = std::move(entry);
    }
    std::erase(session.comms, nullptr);
  }
  return owned ? owned->communicator->close() : cgx::invalid_argument("comm is not open");
}

}  // namespace

const char* cgx_version(void) {
  return CGX_VERSION_TEXT;
}
uint32_t cgx_abi(void) {
  return CGX_ABI;
}
const char* cgx_status_name(int status) {
  return cgx::status_name(static_cast<StatusCode>(status)).data();
}
const char* cgx_status_meaning(int status) {
  return cgx::status_meaning(static_cast<StatusCode>(status)).data();
}
const char* cgx_dtype_name(int dtype) {
  return cgx::dtype_name(static_cast<cgx::DType>(byte_of(dtype))).data();
}
size_t cgx_dtype_bytes(int dtype) {
  return cgx::dtype_bytes(static_cast<cgx::DType>(byte_of(dtype)));
}
const char* cgx_collective_name(int collective) {
  return cgx::wire::collective_name(static_cast<cgx::wire::Collective>(byte_of(collective))).data();
}
const char* cgx_last_error(void) {
  return last_error.c_str();
}

cgx_status cgx_open(const cgx_open_options* options, cgx_session** session) {
  return guarded([&]() -> Status {
    CGX_REQUIRE(session);
    CGX_ASSIGN_OR_RETURN(const cgx::client::SessionOptions full, session_options(options));
    CGX_ASSIGN_OR_RETURN(auto opened, Session::open(full));
    *session = new cgx_session{.session = std::move(opened)};
    return {};
  });
}

cgx_status cgx_close(cgx_session* session) {
  return guarded([&]() -> Status {
    const std::unique_ptr<cgx_session> owned(session);
    if (!owned) return {};
    take_comms(*owned).clear();  // before the session, without its mutex
    const Status copies = owned->session->end_copies();
    if (copies.ok()) return {};
    owned->session->say_goodbye();
    [[maybe_unused]] Session* const used_by_copies = owned->session.release();
    return copies;
  });
}

cgx_status cgx_arena_alloc(cgx_session* session, size_t bytes, size_t alignment, void** memory) {
  return guarded([&]() -> Status {
    CGX_REQUIRE(session);
    CGX_REQUIRE(memory);
    return allocate(session, {.bytes = bytes, .alignment = alignment}, memory);
  });
}

cgx_status cgx_arena_alloc_at(cgx_session* session, const cgx_arena_options* options,
                              void** memory) {
  return guarded([&]() -> Status {
    CGX_REQUIRE(session);
    CGX_REQUIRE(options);
    CGX_REQUIRE(memory);
    CGX_ASSIGN_OR_RETURN(const cgx_arena_options given, cgx::client::known(kArena, options));
    CGX_RETURN_IF_ERROR(check_place(given));
    return allocate(session, given, memory);
  });
}

cgx_status cgx_arena_import(cgx_session* session, const cgx_arena_options* options, void* memory) {
  return guarded([&]() -> Status {
    CGX_REQUIRE(session);
    CGX_REQUIRE(options);
    CGX_REQUIRE(memory);
    CGX_ASSIGN_OR_RETURN(const cgx_arena_options given, cgx::client::known(kArena, options));
    CGX_RETURN_IF_ERROR(check_place(given));
    CGX_RETURN_IF_ERROR(session->session->check_not_forked());
    if (given.kind != CGX_ARENA_DEVICE || given.alignment != 0) {
      return cgx::invalid_argument(
          "cgx_arena_import takes memory of a GPU where it lies: kind CGX_ARENA_DEVICE, alignment "
          "0");
    }
    session->session->take_in();
    return session->session->import(device_of(given), memory, given.bytes);
  });
}

cgx_status cgx_arena_end_import(cgx_session* session, void* memory, int64_t timeout_ms) {
  return guarded([&]() -> Status {
    CGX_REQUIRE(session);
    CGX_REQUIRE(memory);
    CGX_RETURN_IF_ERROR(session->session->check_not_forked());
    const uint64_t limit_ms =
        timeout_ms < 0 ? cgx::client::kTimeoutMsMax : static_cast<uint64_t>(timeout_ms);
    return session->session->end_import(memory, cgx::client::deadline_in_ms(limit_ms));
  });
}

cgx_status cgx_arena_free(cgx_session* session, void* memory) {
  return guarded([&]() -> Status {
    CGX_REQUIRE(session);
    CGX_RETURN_IF_ERROR(session->session->check_not_forked());
    return session->session->arenas().release(memory);
  });
}

cgx_status cgx_arena_retain(cgx_session* session, const void* memory, cgx_arena** arena) {
  return guarded([&]() -> Status {
    CGX_REQUIRE(session);
    CGX_REQUIRE(arena);
    CGX_RETURN_IF_ERROR(session->session->check_not_forked());
    auto holder = session->session->arenas().holder(memory);
    if (!holder) return cgx::invalid_argument("memory is not in the arena");
    *arena = new cgx_arena{std::move(holder)};
    return {};
  });
}

void cgx_arena_release(cgx_arena* arena) {
  delete arena;
}

cgx_status cgx_comm_create(cgx_session* session, const cgx_comm_options* options, cgx_comm** comm) {
  return guarded([&]() -> Status {
    CGX_REQUIRE(session);
    CGX_REQUIRE(options);
    CGX_REQUIRE(comm);
    CGX_ASSIGN_OR_RETURN(const cgx_comm_options given, cgx::client::known(kComm, options));
    CGX_ASSIGN_OR_RETURN(auto made, Communicator::create(*session->session, given));
    auto handle = std::make_unique<cgx_comm>(cgx_comm{session, std::move(made)});
    const cgx::MutexLock lock(session->mutex);
    *comm = session->comms.emplace_back(std::move(handle)).get();
    return {};
  });
}

cgx_status cgx_comm_timeout(cgx_comm* comm, uint64_t* timeout_ms) {
  return guarded([&]() -> Status {
    CGX_REQUIRE(comm);
    CGX_REQUIRE(timeout_ms);
    *timeout_ms = comm->communicator->timeout_ms();
    return {};
  });
}

cgx_status cgx_comm_cancel(cgx_comm* comm) {
  return guarded([&]() -> Status {
    CGX_REQUIRE(comm);
    return comm->communicator->cancel();
  });
}

cgx_status cgx_comm_close(cgx_comm* comm) {
  return guarded([&]() -> Status { return comm ? forget(comm) : Status(); });
}

cgx_status cgx_register(cgx_comm* comm, const cgx_tensor_options* options, uint32_t* id) {
  return guarded([&]() -> Status {
    CGX_REQUIRE(comm);
    CGX_REQUIRE(options);
    CGX_REQUIRE(id);
    CGX_ASSIGN_OR_RETURN(const cgx_tensor_options given, cgx::client::known(kTensor, options));
    return store(comm->communicator->add_tensor(given), id);
  });
}

cgx_status cgx_tensor_home(cgx_comm* comm, uint32_t id, void** memory, size_t* bytes) {
  return guarded([&]() -> Status {
    CGX_REQUIRE(comm);
    CGX_ASSIGN_OR_RETURN(const auto* tensor, comm->communicator->tensor(id));
    if (memory) *memory = tensor->home;
    if (bytes) *bytes = tensor->bytes;
    return {};
  });
}

cgx_status cgx_commit(cgx_comm* comm) {
  return guarded([&]() -> Status {
    CGX_REQUIRE(comm);
    return comm->communicator->commit();
  });
}

cgx_status cgx_submit(cgx_comm* comm, uint64_t step, const uint32_t* ids, size_t count) {
  return guarded([&]() -> Status {
    CGX_REQUIRE(comm);
    CGX_REQUIRE(ids || count == 0);
    return comm->communicator->submit(step, span_of(ids, count));
  });
}

cgx_status cgx_submit_inout(cgx_comm* comm, uint64_t step, const uint32_t* ids,
                            const void* const* in, void* const* out, size_t count) {
  return guarded([&]() -> Status {
    CGX_REQUIRE(comm);
    CGX_REQUIRE((ids && in && out) || count == 0);
    return comm->communicator->submit_inout(step, span_of(ids, count), in, out);
  });
}

cgx_status cgx_absent(cgx_comm* comm, uint64_t step, const uint32_t* ids, size_t count) {
  return guarded([&]() -> Status {
    CGX_REQUIRE(comm);
    CGX_REQUIRE(ids || count == 0);
    return comm->communicator->absent(step, span_of(ids, count));
  });
}

cgx_status cgx_step_end(cgx_comm* comm, uint64_t step) {
  return guarded([&]() -> Status {
    CGX_REQUIRE(comm);
    return comm->communicator->step_end(step);
  });
}

cgx_status cgx_set_gradient_unit(cgx_comm* comm, double unit) {
  return guarded([&]() -> Status {
    CGX_REQUIRE(comm);
    return comm->communicator->set_gradient_unit(unit);
  });
}

cgx_status cgx_step_done(cgx_comm* comm, uint64_t step, int fate) {
  return guarded([&]() -> Status {
    CGX_REQUIRE(comm);
    return comm->communicator->step_done(step, fate);
  });
}

cgx_status cgx_step_redo(cgx_comm* comm, uint64_t* step) {
  return guarded([&]() -> Status {
    CGX_REQUIRE(comm);
    CGX_REQUIRE(step);
    return store(comm->communicator->step_redo(), step);
  });
}

cgx_status cgx_wait(cgx_comm* comm, uint64_t step, int64_t timeout_ms) {
  return guarded([&]() -> Status {
    CGX_REQUIRE(comm);
    return comm->communicator->wait_step(step, timeout_ms);
  });
}

cgx_status cgx_test(cgx_comm* comm, uint64_t step, const uint32_t* ids, size_t count,
                    uint8_t* states, size_t* pending) {
  return guarded([&]() -> Status {
    CGX_REQUIRE(comm);
    CGX_REQUIRE(ids || count == 0);
    CGX_REQUIRE(pending);
    return comm->communicator->test(step, span_of(ids, count), states, *pending);
  });
}

cgx_status cgx_step_info(cgx_comm* comm, uint64_t step, cgx_step_report* report) {
  return guarded([&]() -> Status {
    CGX_REQUIRE(comm);
    CGX_REQUIRE(report);
    CGX_RETURN_IF_ERROR(cgx::client::check_size(kReport, report));
    CGX_ASSIGN_OR_RETURN(const cgx_step_report found, comm->communicator->step_report(step));
    cgx::client::tell(found, report);
    return {};
  });
}

cgx_status cgx_post(cgx_comm* comm, const cgx_post_options* options, uint64_t* call) {
  return guarded([&]() -> Status {
    CGX_REQUIRE(comm);
    CGX_REQUIRE(options);
    CGX_ASSIGN_OR_RETURN(const cgx_post_options given, cgx::client::known(kPost, options));
    CGX_ASSIGN_OR_RETURN(const uint64_t number, comm->communicator->post(given));
    if (call && given.kind == CGX_POST_CALL) *call = number;
    return {};
  });
}

cgx_status cgx_stream_wait(cgx_comm* comm, uint64_t step, void* stream, int64_t timeout_ms) {
  return guarded([&]() -> Status {
    CGX_REQUIRE(comm);
    return comm->communicator->stream_wait(step, stream, timeout_ms);
  });
}

cgx_status cgx_stream_wait_call(cgx_comm* comm, uint64_t call, void* stream, int64_t timeout_ms) {
  return guarded([&]() -> Status {
    CGX_REQUIRE(comm);
    return comm->communicator->stream_wait_call(call, stream, timeout_ms);
  });
}

cgx_status cgx_arena_pin(cgx_session* session, const void* memory) {
  return guarded([&]() -> Status {
    CGX_REQUIRE(session);
    CGX_RETURN_IF_ERROR(session->session->check_not_forked());
    auto holder = session->session->arenas().holder(memory);
    if (!holder) return cgx::invalid_argument("memory is not in the arena");
    CGX_ASSIGN_OR_RETURN(cgx::client::Staging* const staging, session->session->staging());
    return staging->pin(std::move(holder));
  });
}

cgx_status cgx_allreduce_async(cgx_comm* comm, const void* in, void* out, uint64_t count, int dtype,
                               int op, uint64_t* call) {
  return guarded([&]() -> Status {
    CGX_REQUIRE(comm);
    CGX_REQUIRE(call);
    return store(comm->communicator->allreduce({in, out, count, dtype, op}), call);
  });
}

cgx_status cgx_allreduce(cgx_comm* comm, const void* in, void* out, uint64_t count, int dtype,
                         int op) {
  return guarded([&]() -> Status {
    CGX_REQUIRE(comm);
    return comm->communicator->allreduce_and_wait({in, out, count, dtype, op});
  });
}

cgx_status cgx_wait_call(cgx_comm* comm, uint64_t call, int64_t timeout_ms) {
  return guarded([&]() -> Status {
    CGX_REQUIRE(comm);
    return comm->communicator->wait_call(call, timeout_ms);
  });
}

cgx_status cgx_test_call(cgx_comm* comm, uint64_t call, int* done) {
  return guarded([&]() -> Status {
    CGX_REQUIRE(comm);
    CGX_REQUIRE(done);
    const auto finished = comm->communicator->test_call(call);
    *done = !finished.ok() || *finished;
    return finished.status();
  });
}

cgx_status cgx_report(cgx_comm* comm, uint32_t first, char* text, uint32_t* next) {
  return guarded([&]() -> Status {
    CGX_REQUIRE(comm);
    CGX_REQUIRE(text);
    CGX_REQUIRE(next);
    CGX_ASSIGN_OR_RETURN(const cgx::wire::Reply page, comm->communicator->report(first));
    text[page.message.copy(text, CGX_REPORT_BYTES - 1)] = '\0';
    *next = static_cast<uint32_t>(page.value0);
    return {};
  });
}

cgx_status cgx_poll(cgx_session* session, uint64_t* seen, int64_t timeout_ms) {
  return guarded([&]() -> Status {
    CGX_REQUIRE(session);
    CGX_REQUIRE(seen);
    std::optional<cgx::client::Deadline> deadline;
    if (timeout_ms >= 0) {
      deadline = cgx::client::deadline_in_ms(static_cast<uint64_t>(timeout_ms));
    }
    return session->session->poll(*seen, deadline);
  });
}

cgx_status cgx_wake(cgx_session* session) {
  return guarded([&]() -> Status {
    CGX_REQUIRE(session);
    return session->session->wake();
  });
}

cgx_status cgx_event_fd(cgx_session* session, int* descriptor) {
  return guarded([&]() -> Status {
    CGX_REQUIRE(session);
    CGX_REQUIRE(descriptor);
    return store(session->session->event_descriptor(), descriptor);
  });
}
