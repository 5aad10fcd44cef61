// TCP sockets and their addresses: what both transports over TCP need of the system.
//
// Thread rule: pure functions; a Socket belongs to whoever holds it.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <utility>

#include "proto/wire/status.h"

namespace cgx::transport {

class Socket {
 public:
  Socket() = default;
  explicit Socket(int descriptor) : descriptor_(descriptor) {}
  Socket(Socket&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  ~Socket();

  int get() const { return descriptor_; }
  explicit operator bool() const { return descriptor_ >= 0; }

 private:
  int descriptor_ = -1;
};

// What an errno means, as an operator is told.
std::string error_text(int error);

struct SocketOptions {
  std::string congestion;   // TCP_CONGESTION; empty = as it is
  uint32_t stalled_ms = 0;  // TCP_USER_TIMEOUT; 0 = as it is
};
int set_options(int socket, const SocketOptions& options);  // 0 or errno
Status options_refused(const SocketOptions& options, int error);

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t bytes = 0;

  // A numeric host; anything else is refused.
  static Result<SocketAddress> parse(const std::string& host, uint16_t port);
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  std::string host() const;
  std::string text() const;  // "10.0.0.3 4711"; empty where there is none
};
SocketAddress own_address(int socket);
SocketAddress peer_address(int socket);

// On the first free port of the range, 0: of the system's choice.
Result<Socket> listen_at(const std::string& host, uint16_t port_first, uint16_t port_last,
                         const SocketOptions& options);
// Does not wait: whether it worked is known when the socket can be written.
Result<Socket> dial(const SocketAddress& to, const SocketOptions& options);
int pending_error(int socket);       // of a connection attempt: 0 or errno
uint32_t round_trip_ms(int socket);  // as TCP has measured it, rounded up
int bytes_on_their_way(int socket);  // sent, and not there yet for all TCP knows

// Of a connection, as TCP sees it. Segments are those with data, also behind a gap, of which
// nothing is handed on before it is filled.
struct PathState {
  uint32_t came = 0;       // segments here
  uint32_t arrived = 0;    // there, as its system says
  uint32_t queued_ms = 0;  // a round trip takes so much longer than at its best
};
PathState path_of(int socket);

}  // namespace cgx::transport
