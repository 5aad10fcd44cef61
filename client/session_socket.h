// SessionSocket: the Unix socket to the daemon: handshake, then requests and their replies.
//
// Thread rule: call() and gone() from any thread. Of the threads that wait for replies one reads
// the socket for all of them. Invariants: no wait is longer than its deadline; a daemon that closes
// the socket or breaks the protocol fails every call from then on; received descriptors are never
// leaked.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "client/deadline.h"
#include "proto/wire/mutex.h"
#include "proto/wire/session_messages.h"
#include "proto/wire/unique_fd.h"

namespace cgx::client {

struct Handshake {
  wire::Welcome welcome;
  UniqueFd memory, doorbell, completion_event;
};

// How long a daemon may stand still: it prepares a plan, or it only has to answer.
enum class Patience : uint8_t { kPrepares, kAnswers };

struct CallWith {
  int fd = -1, second_fd = -1;  // sent along
  Patience patience = Patience::kPrepares;
};

class SessionSocket {
 public:
  // UNAVAILABLE if nobody answers at `path`.
  static Result<std::unique_ptr<SessionSocket>> connect(const std::string& path, Deadline deadline);

  // Once, before any call().
  Result<Handshake> shake_hands(const wire::Hello& hello, Deadline deadline);

  // Sends a request and waits for its reply; an error reply comes back as its status.
  template <typename Message>
  Result<wire::Reply> call(const Message& message, Deadline deadline, CallWith with = {}) {
    const uint32_t request = next_request();
    CGX_RETURN_IF_ERROR(send(wire::encode_packet(message, request), with));
    return await(request, deadline, with.patience);
  }
  // Sends without waiting for an answer; returns the number a reply would carry.
  template <typename Message>
  Result<uint32_t> post(const Message& message) {
    const uint32_t request = next_request();
    CGX_RETURN_IF_ERROR(send(wire::encode_packet(message, request), {}));
    return request;
  }
  // Waits for the reply to a posted request.
  Result<wire::Reply> await(uint32_t request, Deadline deadline,
                            Patience patience = Patience::kPrepares);
  // Ends the wait for a reply, within a second. Nothing if nobody waits.
  void cancel(uint32_t request);
  // The error that answered a posted request, if one did by now. Ends the request.
  Status error_of(uint32_t request);

  // DAEMON_LOST once the daemon has closed the socket, with its last words; never blocks.
  Status gone();
  // Asked once a second while a call waits; an error ends the call. Set before the first call.
  void set_health_check(std::function<Status(Patience)> check) { health_check_ = std::move(check); }
  // Ends the connection in both directions and fails every waiting call with `why`.
  void shut_down(const Status& why);

  int fd() const { return fd_.get(); }
  int release() { return fd_.release(); }
  const std::string& path() const { return path_; }
  // The peer's credentials, as the kernel tells them.
  Result<uint32_t> daemon_uid() const;

 private:
  SessionSocket(std::string path, UniqueFd fd) : path_(std::move(path)), fd_(std::move(fd)) {}

  uint32_t next_request();
  Status send(const std::vector<std::byte>& packet, const CallWith& with);
  // These two let go of the mutex for a while.
  void read_one(Deadline deadline) CGX_REQUIRES(mutex_);
  void check_health(Patience patience) CGX_REQUIRES(mutex_);
  void fail(const Status& why) CGX_REQUIRES(mutex_);
  Status wait_readable(Deadline deadline) const;
  Result<std::vector<std::byte>> receive(std::vector<UniqueFd>* fds, int flags = 0) const;
  Status lost(const std::string& why) const;
  void keep_reply(std::span<const std::byte> packet) CGX_REQUIRES(mutex_);
  std::optional<wire::Reply> take_reply(uint32_t request) CGX_REQUIRES(mutex_);

  const std::string path_;
  UniqueFd fd_;
  std::function<Status(Patience)> health_check_;
  Mutex mutex_;
  Condition changed_;
  bool reading_ CGX_GUARDED_BY(mutex_) = false;
  Status failed_ CGX_GUARDED_BY(mutex_);
  // The daemon's reason for closing, if it gave one.
  std::string last_words_ CGX_GUARDED_BY(mutex_);
  uint32_t last_request_ CGX_GUARDED_BY(mutex_) = 0;
  // Requests somebody will ask the reply of.
  std::set<uint32_t> expected_ CGX_GUARDED_BY(mutex_);
  std::map<uint32_t, wire::Reply> replies_ CGX_GUARDED_BY(mutex_);
};

}  // namespace cgx::client
