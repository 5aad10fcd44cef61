// Stands between two tcp transports, as a network that may lose, change or repeat what it carries.
// Thread rule: everything happens in pump().
#pragma once

#include <chrono>
#include <functional>
#include <list>
#include <span>
#include <vector>

#include "transport/tcp_sockets.h"

namespace cgx::transport {

enum class Way : uint8_t { kToTarget = 0, kToDialer = 1 };

// Whether the system takes in what comes for a socket: it answers no dials otherwise.
void let_in(int socket, bool in);

class TcpRelay {
 public:
  // Changes bytes on their way; `offset`: of the first one, in all that went this way.
  using Tamper = std::function<void(Way way, uint64_t offset, std::span<std::byte> bytes)>;

  explicit TcpRelay(const SocketAddress& target);

  // What connects here reaches the target: for Endpoint.address.
  std::vector<std::byte> address() const;
  void pump();
  void cut();    // every connection ends
  void stall();  // those there are carry nothing any more; new ones do
  void answer_dials(bool answer) { let_in(listener_.get(), answer); }
  void refuse_dials(bool refuse);  // nobody listens at its port
  size_t connections() const { return pairs_.size(); }
  const std::vector<std::byte>& heard() const { return heard_; }  // what went to the target

  Tamper tamper;
  uint64_t bytes_per_second = 0;  // of each way of a connection; 0: no limit

 private:
  struct Pair {
    Socket ends[2];                     // of the dialer, of the target
    std::vector<std::byte> waiting[2];  // by way
    bool over = false, stalled = false;
    std::chrono::steady_clock::time_point next[2];  // when it may carry again
  };
  void accept_all();
  void carry(Pair& pair, Way way);

  const SocketAddress target_;
  Socket listener_;
  SocketAddress door_;
  std::list<Pair> pairs_;
  uint64_t offsets_[2] = {0, 0};
  std::vector<std::byte> heard_;
};

// Blocking, to 127.0.0.1-like addresses: what a stranger does.
Socket connect_to(const SocketAddress& address);
SocketAddress address_in(std::span<const std::byte> blob);  // the first one
std::vector<std::byte> address_of(const std::vector<SocketAddress>& doors);

}  // namespace cgx::transport
