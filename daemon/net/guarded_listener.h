// Accepts connections on one listening socket and hands over those that begin as their protocol
// does; everything else is counted and closed. For protocols whose library would only log garbage
// (gRPC).
//
// Owns one thread, which accepts, waits for the first bytes and watches for the end of connections
// it handed over; it never reads past a peek. Bounded: connections waiting, connections alive. Of a
// local connection the library gets the end of a pump (pump.h), never the connection itself.
// Thread rule: create and destroy on one thread; the call-backs run on the listener's.
// Shares: where no more may wait, the oldest of whoever has most there goes; over TCP likewise of
// those alive, and users of a Unix socket share them (scheduler/shares.h); the last descriptors of
// the process are not for strangers.
// Local connections are closed on threads of their users' (UserThreads): no other user waits, nor
// does the end of the listener.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "proto/wire/unique_fd.h"
#include "scheduler/shares.h"

namespace cgx::daemon {

// What the first bytes of a connection say.
enum class Opening : uint8_t { kIncomplete, kRight, kWrong };

struct ListenerOptions {
  std::string name;     // for operators: "connections of cgxctl"
  std::string opening;  // the first bytes of every connection
  // Instead of `opening`: says it of what has come, at most `judged_bytes`.
  std::function<Opening(std::string_view)> judge = {};
  size_t judged_bytes = 0;
  uint64_t opening_timeout_ns = 2'000'000'000;
  uint32_t waiting_max = 64;
  uint32_t alive_max = 128;
  uint32_t alive_per_host_max = UINT32_MAX;        // TCP only; the oldest one goes
  std::function<bool(const std::string&)> admits;  // of TCP: the numeric host; empty: everybody
  bool answers_half_closed = false;  // alive until both directions have ended, not only theirs
};

struct ListenerEvents {
  // What to serve, and the socket that says who is at its other end, until this returns.
  std::function<void(UniqueFd, int)> on_connection;
  std::function<void()> on_junk;  // wrong first bytes, or none in time after some
  // Who has how many of those waiting and alive, when that has changed; may be empty.
  std::function<void(const scheduler::Share&)> on_share = {};
};

class GuardedListener {
 public:
  static Result<std::unique_ptr<GuardedListener>> create(int listening_fd,
                                                         const ListenerOptions& options,
                                                         const ListenerEvents& events);
  ~GuardedListener();

 private:
  class Loop;
  explicit GuardedListener(std::unique_ptr<Loop> loop);
  std::unique_ptr<Loop> loop_;
};

}  // namespace cgx::daemon
