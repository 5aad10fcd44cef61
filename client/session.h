// Session: one process's connection to its daemon: socket, channel, arenas, and the waiting they
// share.
//
// Thread rule: any thread. One mutex guards the channel and every communicator's ledgers; a thread
// that waits gives it up. Lock order: session, then arenas or socket. Invariants: a record is only
// written after its completion slot was reserved, so the daemon never waits for a client; after the
// daemon is lost every call fails with the same status.
#pragma once

#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/arena.h"
#include "client/channel.h"
#include "client/copy_watch.h"
#include "client/deadline.h"
#include "client/environment.h"
#include "client/fork_guard.h"
#include "client/leader.h"
#include "client/session_socket.h"
#include "client/staging.h"
#include "proto/wire/mutex.h"

namespace cgx::client {

struct SessionOptions {
  std::string socket;  // empty: found by environment
  std::string job;
  uint64_t arena_bytes = 0;
  uint32_t connect_timeout_ms = 0;
  uint32_t spin_us = 0;
};

// A communicator, as its session sees it. Called with the session's mutex held.
class CompletionSink {
 public:
  virtual ~CompletionSink() = default;
  // Returns how many completion slots became free.
  virtual uint32_t complete(const cgx_completion_record& record, const Status& failure) = 0;
};

// What a closed communicator leaves behind: holds on memory of which the daemon did not say that it
// is done with it.
class Leftover {
 public:
  virtual ~Leftover() = default;
};

using Lock = std::unique_lock<std::mutex>;

// What a GPU's tensor is in the arena, once `copy` is over, which keeps the memory until then.
struct StagedIn {
  std::shared_ptr<void> memory;  // null: the tensor is where it is wanted
  Copy copy;
  Ready ready = {};  // instead of the copy, where a GPU's worker reads it
  bool host_waits = true;
};

class Session {
 public:
  static Result<std::unique_ptr<Session>> open(const SessionOptions& options);
  // Every communicator is gone by now. Wakes the threads in poll() and lets them leave.
  ~Session();

  ArenaSet& arenas() { return arenas_; }
  SessionSocket& socket() { return *socket_; }
  const wire::Welcome& daemon() const { return daemon_; }
  const Environment& environment() const { return environment_; }
  const std::string& job() const { return job_; }
  uint32_t spin_us() const { return spin_us_; }

  // FORKED in a child of the process that opened the session.
  Status check_not_forked() const;
  // The mutex, or FORKED, or why the daemon is lost.
  Result<Lock> enter();
  // The same without regard to a lost daemon: for looking at what arrived before.
  Result<Lock> enter_to_look();

  // With the lock held
  uint32_t attach(CompletionSink& sink);  // returns the communicator's handle
  void detach(uint32_t handle);
  // Until the session is closed.
  void keep(std::unique_ptr<Leftover> leftover) { leftovers_.push_back(std::move(leftover)); }
  void forget_slots(uint32_t completions) { reserved_ -= completions; }

  // Waits until `records` fit in the submit ring and `completions` slots are free, or the caller's
  // communicator is `closed`.
  Status make_room(Lock& lock, uint32_t records, uint32_t completions, Deadline deadline,
                   const bool& closed);
  // Requires room. `completions`: the slots this record reserves.
  void push(const cgx_submit_record& record, uint32_t completions);
  // The slots of a record that is pushed later, for none.
  void reserve(uint32_t completions) { reserved_ += completions; }
  void publish() { channel_->publish(); }
  // Waits until the daemon has read all records: what follows over the socket must not overtake
  // them.
  void flush(Lock& lock, Deadline deadline);

  void drain();
  // Frees memory whose last call has ended by now. Without the lock.
  void take_in();
  const Status& lost() const { return lost_; }
  // Looks, unless somebody did lately. False: lost() says why, all it finished is taken in.
  bool daemon_lives();
  // Waits until ready() holds: OK, TIMED_OUT or why the daemon is lost. ready() runs under the
  // lock.
  template <typename Ready>
  Status wait(Lock& lock, Deadline deadline, Ready ready);

  // Without the lock
  Status poll(uint64_t& seen, std::optional<Deadline> deadline);
  Status wake();
  Result<int> event_descriptor();
  void wake_waiters() { channel_->wake_all(); }
  // The daemon's time-out of communicators whose program gives none; 0: it does not say.
  Result<uint64_t> communicator_ms();
  // Loads the CUDA driver when it is asked for first.
  Result<Staging*> staging();
  // Waits for the copies that are on streams, and for streams to write their words. TIMED_OUT: some
  // have not, and what they use must outlive them.
  Status end_copies();
  void say_goodbye();
  // The stream may write to the arena although nothing was handed over: closing waits for it, too.
  void keep_for(void* stream);
  // Has the stream copy the tensor into memory of the arena, or of one on the device, unless it is
  // there already.
  Result<StagedIn> stage_in(const DeviceBuffers& buffers,
                            const std::optional<wire::DeviceId>& device);
  Result<void*> allocate_on(const wire::DeviceId& device, uint64_t bytes, uint64_t alignment);
  // Memory of the GPU that the caller made; its end waits until the worker has closed it.
  Status import(const wire::DeviceId& device, const void* memory, uint64_t bytes);
  Status end_import(const void* memory, Deadline deadline);
  Result<uint32_t> arena_on(const wire::DeviceId& device) {
    return arenas_.arena_on(device, make_on(device));
  }
  CopyWatch& copies() { return *copies_; }

  // Makes this process the one that serves at CGX_LEADER, until the session is closed. OK also
  // where that address is another's, or nobody knows its name yet. INVALID_ARGUMENT: some of the
  // ranks are on other machines, which cannot reach it.
  Status serve_leader(uint32_t ranks);
  // Lets those that met at this process's store hear why they have not; returns that, with what may
  // be wrong with the store.
  Status end_meeting(const Status& why);

  // The key that daemons of this job prove membership with, once this process knows one.
  std::optional<wire::JobKey> job_key;  // guarded by the mutex

 private:
  class Waiting;

  Session(Environment environment, std::unique_ptr<SessionSocket> socket,
          std::unique_ptr<Channel> channel, wire::Welcome daemon, const SessionOptions& options);

  Status open_leader();
  Status announce_arena(uint32_t arena, const ArenaMemory& memory);
  Status announce_device(uint32_t arena, DeviceMemory& memory);
  ArenaSet::MakeDevice make_on(const wire::DeviceId& device);
  Status drop_arena(uint32_t arena);
  Status wait_for_words(const void* imported, Deadline deadline);
  Result<StagedIn> order(StagedIn staged, const void* memory, void* stream);
  void lose(Status why);
  void pause_for_ring(Lock& lock);
  void spin(Lock& lock, Deadline deadline);
  void sleep_slice(Lock& lock, uint32_t word, Deadline deadline);
  Status stopped(std::chrono::nanoseconds limit);
  Status failure_of(const cgx_completion_record& record) const;

  const Environment environment_;
  std::unique_ptr<LeaderServer> leader_;  // guarded by the mutex
  const std::string job_;
  const wire::Welcome daemon_;
  const uint32_t spin_us_;
  ForkGuard guard_;
  std::unique_ptr<SessionSocket> socket_;
  std::unique_ptr<Channel> channel_;
  ArenaSet arenas_;
  Mutex staging_mutex_;
  std::unique_ptr<Staging> staging_ CGX_GUARDED_BY(staging_mutex_);  // once made it stays
  std::unique_ptr<CopyWatch> copies_ = std::make_unique<CopyWatch>();

  std::mutex mutex_;  // guards channel_ and all below
  std::condition_variable left_;
  std::map<uint32_t, CompletionSink*> sinks_;
  std::vector<std::unique_ptr<Leftover>> leftovers_;
  uint32_t last_handle_ = 0;
  uint32_t reserved_ = 0;  // completion slots promised to the daemon
  uint64_t events_ = 0;    // completions taken in and wakes
  uint32_t polling_ = 0;   // threads in poll()
  bool closing_ = false;
  uint32_t last_beat_ = 0;
  Deadline last_look_{};               // at the daemon's beat
  std::chrono::nanoseconds still_{0};  // how long it has not moved, as far as we looked
  Status lost_;
};

// Announces a waiter to the daemon for as long as it lives.
class Session::Waiting {
 public:
  explicit Waiting(Channel& channel) : channel_(channel) { channel_.announce(); }
  ~Waiting() { channel_.withdraw(); }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

 private:
  Channel& channel_;
};

template <typename Ready>
Status Session::wait(Lock& lock, Deadline deadline, Ready ready) {
  drain();
  if (!ready() && lost_.ok()) spin(lock, deadline);
  if (ready()) return {};
  const Waiting waiting(*channel_);
  for (;;) {
    const uint32_t word = channel_->word();
    daemon_lives();
    drain();
    if (ready()) return {};
    if (!lost_.ok()) return lost_;
    if (Clock::now() >= deadline) return {StatusCode::kTIMED_OUT, "the wait's time-out passed"};
    sleep_slice(lock, word, deadline);
  }
}

}  // namespace cgx::client
