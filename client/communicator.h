// Communicator: one process's part in a group of ranks: tensor table, steps, calls.
//
// Thread rule: any thread; the session's mutex guards everything. Invariants: misuse is refused
// here, before a record is written; close() returns after the last thread has left.
#pragma once

#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "client/call_ledger.h"
#include "client/session.h"
#include "client/step_ledger.h"
#include "proto/wire/types.h"

namespace cgx::client {

struct Tensor {
  wire::TensorDescription description;
  std::byte* home = nullptr;
  uint64_t bytes = 0;
  ArenaHold hold;      // on the home: an absent rank's result may come into it
  bool owned = false;  // the home was allocated by the library
};

struct CallBuffers {
  const void* in = nullptr;
  void* out = nullptr;
  uint64_t count = 0;
  int dtype = CGX_F32;  // as the caller gave it, unchecked
  int op = CGX_SUM;
  bool on_gpu = false;
  void* stream = nullptr;  // then
};

class Communicator final : public CompletionSink {
 public:
  static Result<std::unique_ptr<Communicator>> create(Session& session,
                                                      const cgx_comm_options& options);
  ~Communicator() override;
  // Leaves. Returns when the daemon has let go of this rank's memory, or TIMED_OUT; what was
  // unfinished is kept by the session then.
  Status close();

  // Every call answers CANCELLED from now on, those under way too.
  Status cancel();

  Result<uint32_t> add_tensor(const cgx_tensor_options& options);
  Result<const Tensor*> tensor(uint32_t id);
  Status commit();

  Status submit(uint64_t step, std::span<const uint32_t> ids);
  Status submit_inout(uint64_t step, std::span<const uint32_t> ids, const void* const* in,
                      void* const* out);
  // The same of one tensor in a GPU's memory, ready on the stream that the buffers name.
  Status submit_from_gpu(uint64_t step, uint32_t id, DeviceBuffers buffers);
  // Waits for the step, or the call, then has the stream copy its results to the GPU.
  Status stream_wait(uint64_t step, void* stream, int64_t timeout_ms);
  Status stream_wait_call(uint64_t call, void* stream, int64_t timeout_ms);
  Status absent(uint64_t step, std::span<const uint32_t> ids);
  Status step_end(uint64_t step);
  Status set_gradient_unit(double unit);
  Status step_done(uint64_t step, int fate);
  Result<uint64_t> step_redo();
  Status wait_step(uint64_t step, int64_t timeout_ms);
  Status test(uint64_t step, std::span<const uint32_t> ids, uint8_t* states, size_t& pending);
  Result<cgx_step_report> step_report(uint64_t step);
  Result<wire::Reply> report(uint32_t first);  // a page of the daemon's
  uint64_t timeout_ms() const { return timeout_ms_; }

  Result<uint64_t> allreduce(const CallBuffers& buffers);  // returns the call's number
  Status allreduce_and_wait(const CallBuffers& buffers);
  Status wait_call(uint64_t call, int64_t timeout_ms);
  Result<bool> test_call(uint64_t call);
  // A call, whose number is returned, or a tensor of a step.
  Result<uint64_t> post(const cgx_post_options& options);

  uint32_t complete(const cgx_completion_record& record, const Status& failure) override;

 private:
  class Use;
  struct Place {  // of the buffers of one submit
    ArenaPlace in, out;
    Ready ready = {};  // when the input may be read; none: now
  };
  struct Deferred {  // a record that waits for the copy of its tensor, or behind such a one
    cgx_submit_record record;
    bool copying;
  };
  struct Staged {  // whose result the GPU gets
    uint32_t tensor = 0;
    std::shared_ptr<void> memory;
    DeviceBuffers buffers;
  };

  Communicator(Session& session, const cgx_comm_options& options, uint64_t timeout_ms);

  Result<uint64_t> try_post(const cgx_post_options& options);
  Status may_meet(uint32_t rank);
  Result<std::unique_ptr<Store>> store_for(const Meeting& meeting, const cgx_comm_options& options);
  Status join(const cgx_comm_options& options);
  Result<Tensor> describe(const cgx_tensor_options& options);
  Status place_home(Tensor& tensor, void* home);
  Status give_back(Tensor tensor);
  Status choose_site(const cgx_comm_options& options, uint32_t& arena, std::string& staged);
  Result<Place> place_staged(const StagedIn& staged, const DeviceBuffers& buffers,
                             uint64_t element_bytes);
  // Sends a request and waits for its reply; close() ends the wait.
  template <typename Message>
  Result<wire::Reply> ask(Use& use, const Message& message, Deadline deadline);
  Status send_table(std::span<const wire::TensorDescription> table);
  Status check_ids(std::span<const uint32_t> ids) const;
  Result<Step*> open_step(uint64_t number);
  // As the session's; CANCELLED where this is closed meanwhile.
  Status make_room(Lock& lock, uint32_t records, uint32_t completions, Deadline deadline);
  Status speak(Use& use, uint64_t step, std::span<const uint32_t> ids, Mark mark,
               std::span<Place> places = {});
  Status speak_of(Step& step, uint32_t id, Mark mark, Place* place, Copy* copy = nullptr);
  Status tell(uint64_t step, std::span<const uint32_t> ids, uint8_t* states, size_t& pending);
  void put(const cgx_submit_record& record, uint32_t completions, Copy* copy = nullptr);
  void copied(Lock& lock, const std::string& what, const Status& status);
  Status send_deferred(Lock& lock);
  void give_up(Lock& lock, Status why);
  Status leave(Lock& lock);
  Result<StagedIn> stage_in(Use& use, const DeviceBuffers& buffers);
  Result<uint64_t> begin_call(Use& use, const CallBuffers& buffers, Place place, Copy* copy);
  Result<uint64_t> call_from_gpu(Use& use, const CallBuffers& buffers, uint64_t bytes);
  Status copy_out(Use& use, const Staged& staged, void* stream);
  Status abandon(Step& step, cgx_submit_record record);
  cgx_submit_record record_of(const Step& step, uint32_t id, Mark mark, const Place* place) const;
  Result<Place> place_of(const void* in, void* out, uint64_t bytes, uint64_t element_bytes);
  void say_done(uint64_t step, bool dropped);
  void end_waits();
  Status let_go(Lock& lock, uint32_t handle);
  Deadline deadline(int64_t timeout_ms = -1) const;
  Status cancelled() const;
  Status being_committed() const;
  Status timed_out(const Status& status, const std::string& what) const;

  Session& session_;
  const std::string name_;
  const uint64_t timeout_ms_;  // the program's or the daemon's
  uint32_t handle_ = 0;

  std::vector<std::unique_ptr<Tensor>> tensors_;  // by id; stable addresses
  std::set<std::string> tensor_names_;
  bool committing_ = false;
  uint32_t announced_ = 0;        // descriptions sent; touched only by the committing thread
  std::vector<uint32_t> posted_;  // their requests
  StepLedger steps_;
  CallLedger calls_;
  std::deque<Deferred> deferred_;
  uint32_t copying_ = 0;  // copies whose end is not told yet
  // For those who are told of copies: null once this is gone. The session's lock guards it.
  const std::shared_ptr<Communicator*> self_ = std::make_shared<Communicator*>(this);
  std::map<uint64_t, std::vector<Staged>> staged_steps_;
  std::map<uint64_t, Staged> staged_calls_;
  Status broken_;             // why this rank has left by itself
  std::set<uint32_t> asked_;  // requests under way
  bool closed_ = false;
  std::optional<wire::DeviceId> device_;  // where a GPU's worker reduces the tensors
  uint32_t users_ = 0;                    // threads inside
  std::condition_variable left_;
};

// A thread inside the communicator: holds the session's lock and keeps close() waiting.
class Communicator::Use {
 public:
  // `to_look`: allowed although the daemon is lost, to see what arrived before.
  static Result<Use> begin(Communicator& comm, bool to_look = false) {
    auto lock = to_look ? comm.session_.enter_to_look() : comm.session_.enter();
    CGX_RETURN_IF_ERROR(lock.status());
    if (comm.closed_) return comm.cancelled();
    return Use(comm, std::move(lock).value());
  }
  // Inside, but without the lock: for what takes it more than once.
  static Result<Use> begin_unlocked(Communicator& comm) {
    CGX_ASSIGN_OR_RETURN(Use use, begin(comm, true));
    use.lock_.unlock();
    return use;
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

template <typename Message>
Result<wire::Reply> Communicator::ask(Use& use, const Message& message, Deadline deadline) {
  if (closed_) return cancelled();  // since this thread last looked: nobody would end the wait
  CGX_ASSIGN_OR_RETURN(const uint32_t request, session_.socket().post(message));
  asked_.insert(request);
  use.lock().unlock();
  auto reply = session_.socket().await(request, deadline);
  use.lock().lock();
  asked_.erase(request);
  if (closed_) return cancelled();
  return reply;
}

}  // namespace cgx::client
