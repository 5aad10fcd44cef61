// A network in memory for tests and the simulator: N endpoints, one thread, virtual time.
//
// Thread rule: the network, its endpoints and everybody who calls them live on one thread.
// Invariants: no clock is read and nothing is random, so equal calls give equal histories; frames
// of a pair arrive in order; time only moves forward, in advance_to(). The payload is read when the
// frame leaves, just before on_sent: a buffer touched too early shows as wrong bytes. Where Options
// say so only a payload's size travels: nothing of it is read, and whoever reads what came crashes.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "transport/transport.h"

namespace cgx::transport {

class LoopbackEndpoint;

class LoopbackNetwork {
 public:
  static constexpr int64_t kNever = INT64_MAX;

  // One frame's way; endpoints are numbered in the order of make_endpoint().
  struct Hop {
    uint32_t from = 0;
    uint32_t to = 0;
    size_t bytes = 0;  // header + payload + overhead
    int64_t now_ns = 0;
  };

  struct Options {
    std::function<int64_t(const Hop&)> latency_ns;  // one way, first bit to first bit; empty = 0
    uint64_t port_bytes_per_second = 0;  // of each endpoint, each direction; 0 = unlimited
    uint32_t frame_overhead_bytes = 0;   // wire bytes beyond header and payload
    bool sent_on_arrival = false;        // on_sent as of tcp, not once a frame has left
    std::function<bool(const Frame&)>
        size_only;  // of the payload only its size travels; empty: never
    Caps caps{.header_bytes_max = 1024,
              .frame_bytes_max = kFrameBytesMax,
              .frame_bytes_best = 256u << 10,
              .network = false};
  };

  explicit LoopbackNetwork(Options options);
  ~LoopbackNetwork();
  LoopbackNetwork(const LoopbackNetwork&) = delete;
  LoopbackNetwork& operator=(const LoopbackNetwork&) = delete;

  // Both must outlive the endpoint: this network and `events`. Destroying the endpoint is the death
  // of its process: frames that have left still arrive, then every peer hears on_peer_down.
  std::unique_ptr<Transport> make_endpoint(Events& events);

  int64_t now_ns() const { return now_ns_; }
  // When something happens next inside the network, kNever if it is empty. What has arrived but was
  // not yet taken by its endpoint's progress() does not count.
  int64_t next_event_ns() const;
  // Lets everything happen that is due by then; callbacks come from progress() of the endpoints.
  void advance_to(int64_t now_ns);
  // As Options::port_bytes_per_second, for frames that leave from now on.
  void shape(uint64_t port_bytes_per_second) {
    options_.port_bytes_per_second = port_bytes_per_second;
  }

 private:
  friend class LoopbackEndpoint;

  void schedule(int64_t at_ns, std::function<void()> run);
  int64_t transfer_ns(size_t bytes) const;
  std::span<const std::byte> unreadable(size_t bytes);

  Options options_;
  int64_t now_ns_ = 0;
  uint64_t next_sequence_ = 0;
  std::map<std::pair<int64_t, uint64_t>, std::function<void()>> events_;
  std::vector<LoopbackEndpoint*> endpoints_;  // nullptr: destroyed
  void* unreadable_ = nullptr;                // frame_bytes_max of it
};

}  // namespace cgx::transport
