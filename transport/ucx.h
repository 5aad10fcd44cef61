// Frames over UCX active messages, network transports only. The only door to UCX: nothing else in
// the tree includes its headers.
//
// Thread rule: a transport lives on the thread that made it. prepare_process() runs in main before
// any thread exists. (UCX itself keeps one sleeping thread that accepts connections.)
// Invariants: UCX sees no environment variable; no signal handler of UCX stays installed; a link
// whose lanes leave the allowed list is refused. See README.md for the settings and the reasons.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "transport/address_filter.h"
#include "transport/transport.h"

namespace cgx::transport {

struct UcxOptions {
  std::vector<AddressRange> admitted;             // may connect over TCP; empty = all
  std::vector<std::string> transports = {"tcp"};  // UCX names of network transports
  std::vector<std::string> devices;               // network devices, e.g. "eth0"; empty = any
  uint16_t port_first = 0;                        // TCP listening port; 0 = the system chooses
  uint16_t port_last = 0;
  uint32_t frame_bytes = 256 << 10;  // payload that travels in one UCX segment; 4 KiB to 1 MiB
  std::string congestion;            // TCP congestion control of our sockets; empty = the system's
  // A connection whose peer acknowledges nothing that long while data waits is cut
  // (TCP_USER_TIMEOUT; TCP alone takes 15 minutes). Twice the heartbeat's limit, which judges
  // first. 0 = the system's.
  uint32_t stalled_ms = 8000;
  std::string log_level = "fatal";  // what UCX itself prints to stderr: fatal, error, warn, ...
};

// `events` must outlive the transport. Destroying it cuts every link without a callback.
Result<std::unique_ptr<Transport>> make_ucx_transport(const UcxOptions& options, Events& events);

// Undoes what UCX did when the loader ran its constructors: removes UCX_* from the environment,
// reloads UCX's global options without them and gives back the signal handlers it took (SIGSEGV,
// SIGBUS, SIGILL, SIGFPE, SIGHUP). Call it first thing in main; make_ucx_transport() refuses to
// work in a process that did not.
void prepare_process();

}  // namespace cgx::transport
