// Runs a function in two child processes joined by a socket, each in a network namespace of its own
// if asked (root only): 10.99.0.1 and 10.99.0.2 on the two ends of a veth pair. The namespaces have
// no name and end with the processes, so nothing is left behind.
//
// Call it while the process has no other thread. Children leave by _exit with the function's
// result.
#pragma once

#include <sys/types.h>

#include <array>
#include <functional>
#include <span>

#include "transport/transport.h"

namespace cgx::transport {

enum class Where { kSameHost, kTwoNamespaces };

class TwoProcesses {
 public:
  struct Child {
    int side = 0;    // 0 or 1
    int socket = 0;  // to the other child
  };
  using Run = std::function<int(const Child&)>;

  TwoProcesses(Where where, const Run& run);
  ~TwoProcesses();  // kills what still runs
  TwoProcesses(const TwoProcesses&) = delete;
  TwoProcesses& operator=(const TwoProcesses&) = delete;

  pid_t pid(int side) const { return pids_[side]; }
  int wait(int side);  // its exit status, 128 + signal if it was killed

 private:
  std::array<pid_t, 2> pids_{-1, -1};
};

bool can_make_namespaces();
uint64_t veth_bytes_sent();  // of this namespace's veth0

void write_all(int socket, const void* data, size_t bytes);
bool read_all(int socket, void* data, size_t bytes);  // false: the other side is gone

// Both sides call it: swaps endpoints over the socket, then connects. Tags are side + 1.
Result<PeerId> connect_over(Transport& transport, const TwoProcesses::Child& self);
// Both sides call it: returns when both have arrived.
void meet(const TwoProcesses::Child& self);

}  // namespace cgx::transport
