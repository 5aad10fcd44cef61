// An agent is an object with do_work(now) -> int; an AgentThread gives it a thread and puts it to
// sleep. Nothing else in the daemon loops.
//
// Thread rule: every method of an agent runs on its thread, on_start() and on_stop() included.
// The sleeping protocol: do_work() found nothing -> prepare_sleep() tells producers to ring and
// looks once more -> wait in the poller until a descriptor, a mailbox or next_deadline_ns() ->
// woken().
#pragma once

#include <atomic>
#include <cstdint>
#include <future>
#include <memory>
#include <span>
#include <string_view>
#include <thread>

#include "daemon/base/idle.h"
#include "daemon/base/poller.h"

namespace cgx::daemon {

class Agent {
 public:
  virtual ~Agent() = default;
  virtual std::string_view name() const = 0;  // at most 15 characters: the thread's name

  virtual Status on_start() { return {}; }
  virtual void on_stop() {}

  // A bounded amount of work; how much was done (0: nothing to do until an input or the deadline).
  virtual int do_work(uint64_t now_ns) = 0;
  virtual uint64_t next_deadline_ns() const = 0;  // kNever: none

  virtual Spin spin() const { return Spin::kNo; }
  virtual bool prepare_sleep() { return true; }  // false: work has come, do not sleep
  virtual void woken(std::span<const Poller::Ready> /*ready*/) {}

  Poller& poller() { return poller_; }

 private:
  Poller poller_;
};

class AgentThread {
 public:
  // Runs agent.on_start() on the new thread and returns what it said; on error no thread remains.
  static Result<std::unique_ptr<AgentThread>> start(Agent& agent, uint64_t spin_ns = 0);
  ~AgentThread() { stop(); }

  // Ends the loop after the current round, runs on_stop() there and joins.
  void stop();

 private:
  AgentThread(Agent& agent, uint64_t spin_ns);
  void run(std::promise<Status> started);
  void loop();

  Agent& agent_;
  IdleStrategy idle_;
  UniqueFd wake_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

// Owns nothing but the answer to "is this the right thread?".
class ThreadOwner {
 public:
  void bind() { id_ = std::this_thread::get_id(); }
  void check() const { CGX_ASSERT(id_ == std::this_thread::get_id()); }

 private:
  std::thread::id id_;
};

}  // namespace cgx::daemon
