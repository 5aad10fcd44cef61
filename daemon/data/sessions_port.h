// What crosses between the ipc agent (sockets) and the data agent (engine): typed messages both
// ways.
//
// A session is named by a serial number that is never reused. The ipc agent opens it, feeds it and
// closes it exactly once; after Close the data agent answers with Released when no operation
// touches the session's memory any more, and the ipc agent unmaps it.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "daemon/data/session.h"
#include "daemon/data/share_board.h"
#include "daemon/gpu/worker.h"
#include "proto/wire/session_messages.h"
#include "scheduler/communicator/snapshot.h"

namespace cgx::daemon {

using SessionSerial = uint64_t;

// ipc agent -> data agent

struct OpenSession {
  scheduler::SessionOptions options;
  SessionChannel channel;
};
struct AddMappedArena {
  uint32_t arena = 0;
  SharedRegion region;                       // on the host
  std::shared_ptr<gpu::DeviceArena> device;  // or on a GPU, whose worker has it
  uint64_t pattern = 0;                      // that the client will find there
};
struct CloseSession {
  Status why;  // kOK: it said goodbye
};

// A request that has not been served yet, from its making to its end: one of its session's and one
// of its user's.
class Unserved {
 public:
  using Count = std::shared_ptr<std::atomic<uint32_t>>;

  Unserved() = default;
  Unserved(Count session, Count user) : session_(std::move(session)), user_(std::move(user)) {
    ++*session_;
    ++*user_;
  }
  Unserved(Unserved&&) noexcept = default;
  Unserved& operator=(Unserved&& other) noexcept {
    std::swap(session_, other.session_);
    std::swap(user_, other.user_);
    return *this;
  }
  ~Unserved() {
    if (!session_) return;
    --*session_;
    --*user_;
  }

 private:
  Count session_, user_;
};

struct SessionRequest {
  SessionSerial session = 0;
  uint32_t request = 0;
  std::variant<OpenSession, AddMappedArena, wire::DropArena, wire::Meet, wire::CreateCommunicator,
               wire::RegisterTensors, wire::Commit, wire::RedoStep, wire::AskReport,
               wire::CloseCommunicator, CloseSession>
      body;
  Unserved unserved = {};
};
// What it is, for the log: "a commit".
const char* name_of(const SessionRequest& request);

// data agent -> ipc agent

struct Opened {};
// To make a page of, on a thread of the user's own: the data agent only hands it out.
struct Shown {
  scheduler::CommunicatorSnapshot communicator;
  uint32_t first = 0;  // tensor of the page
  Unserved unserved;   // until the page is made
};
struct Evict {  // the session broke a contract: tell the client why, hang up, then Close it
  Status why;
};
struct Released {
  std::string holder;  // on whose thread it ends
  SessionChannel channel;
  std::vector<SharedRegion> arenas;
  std::vector<std::shared_ptr<gpu::DeviceArena>> device_arenas;
};

// a user's thread -> ipc agent

struct ArenaMapped {
  std::string holder;
  uint32_t arena = 0;
  uint64_t reserved_bytes = 0;  // of the session's quota
  Result<SharedRegion> region;
  std::shared_ptr<gpu::DeviceArena> device;
  uint64_t pattern = 0;
};

// data agent -> ipc agent: to be closed; a user's thread -> ipc agent: it is.
struct ArenaDropped {
  std::string holder;
  uint32_t arena = 0;
  std::shared_ptr<gpu::DeviceArena> device;  // null: it is closed
  Status why;                                // or this happened
};

struct SessionAnswer {
  SessionSerial session = 0;
  uint32_t request = 0;
  std::variant<Opened, wire::Reply, Shown, Evict, Released, ArenaMapped, ArenaDropped> body;
};

// Implemented by the data agent; called on the ipc agent's thread.
class SessionsPort {
 public:
  virtual ~SessionsPort() = default;
  virtual void ask(SessionRequest request) = 0;  // waits for room in the mailbox
};

// Implemented by the ipc agent; called on the data agent's thread, never blocks.
class SessionAnswers {
 public:
  virtual ~SessionAnswers() = default;
  virtual void answer(SessionAnswer answer) = 0;
};

// Counters of what happens at the daemon's edges, on other threads than the engine's, and who holds
// what there.
class EdgeCounters {
 public:
  ShareBoard& shares() { return shares_; }
  void add(scheduler::Counter counter, uint64_t amount = 1) {
    at(counter).fetch_add(amount, std::memory_order_relaxed);
  }
  uint64_t take(scheduler::Counter counter) {
    return at(counter).exchange(0, std::memory_order_relaxed);
  }

 private:
  std::atomic<uint64_t>& at(scheduler::Counter counter) {
    return counts_[static_cast<size_t>(counter)];
  }
  std::array<std::atomic<uint64_t>, static_cast<size_t>(scheduler::Counter::kCount)> counts_{};
  ShareBoard shares_;
};

}  // namespace cgx::daemon
