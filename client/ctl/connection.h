// Where the daemon is and a channel to it. Thread rule: one thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "proto/messages/control.grpc.pb.h"
#include "proto/wire/status.h"

namespace cgx::ctl {

struct Address {
  std::string text;  // /path, unix:/path, host:port; empty: this machine's daemon
  std::string ca_file, certificate_file, key_file;  // host:port needs all three
};

struct Environment {  // read once, in main
  uint32_t uid = 0;
  std::string control;  // CGX_CONTROL, instead of --address
  std::string xdg_runtime_dir;
  std::string client_socket;  // CGX_SOCKET, trainers' own word: the control socket lies beside it
};

struct Connection {
  std::string address;  // the one that answered
  std::unique_ptr<v1::Control::Stub> stub;
};

// The user's own daemon first, then the machine's.
std::vector<std::string> default_sockets(const Environment& environment);

// UNAVAILABLE names every address tried and why it failed; INVALID_ARGUMENT: the address is
// malformed.
Result<Connection> connect(const Address& address, const Environment& environment);

}  // namespace cgx::ctl
