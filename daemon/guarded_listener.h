// Accepts connections on one listening socket and hands over those that begin as their protocol
// does; everything else is counted and closed. For protocols whose library would only log garbage
// (gRPC).
//
// Owns one thread, which accepts, waits for the first bytes and watches for the end of connections
// it handed over; it never reads past a peek. Bounded: connections waiting, connections alive,
// alive per user. Thread rule: create and destroy on one thread; the call-backs run on the
// listener's.
// Shares: where no more may wait, the oldest of whoever has most there goes; the last descriptors
// of the process are not for strangers.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "daemon/fd.h"

namespace cgx::daemon {

struct ListenerOptions {
  std::string opening;  // the first bytes of every connection
  uint64_t opening_timeout_ns = 2'000'000'000;
  uint32_t waiting_max = 64;
  uint32_t alive_max = 128;
  uint32_t alive_per_user_max = 32;                // Unix sockets only
  uint32_t alive_per_host_max = UINT32_MAX;        // TCP only; the oldest one goes
  std::function<bool(const std::string&)> admits;  // of TCP: the numeric host; empty: everybody
};

struct ListenerEvents {
  std::function<void(UniqueFd)> on_connection;
  std::function<void()> on_junk;  // wrong first bytes, or none in time after some
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

// The user at the other end of a Unix socket; UINT32_MAX where there is none (TCP).
uint32_t peer_uid(int fd);

}  // namespace cgx::daemon
