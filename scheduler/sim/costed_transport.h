// A transport whose frames cost the daemon time: sending and reading one are work on its lane. Put
// around an endpoint of a loopback network, which charges the link.
//
// A frame leaves when the work of sending it is done, and is given to the daemon when that of
// reading it is. Thread rule: the simulator's one thread.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string_view>

#include "scheduler/planners/costs.h"
#include "scheduler/ports.h"
#include "scheduler/sim/daemon_lane.h"
#include "transport/transport.h"

namespace cgx::scheduler::sim {

class CostedTransport final : public transport::Transport, public transport::Events {
 public:
  struct Ports {  // they outlive it
    transport::Events& events;
    DaemonLane& lane;
    const MachineCosts& costs;
    const Clock& clock;
  };
  using Maker = std::function<std::unique_ptr<transport::Transport>(transport::Events&)>;
  // Told of each frame that leaves, in the order in which they do.
  using Watch = std::function<void(std::span<const std::byte> header, size_t bytes)>;
  CostedTransport(const Ports& ports, const Maker& make) : ports_(ports), inner_(make(*this)) {}

  void watch(Watch watch) { watch_ = std::move(watch); }

  std::string_view name() const override { return inner_->name(); }
  transport::Caps caps() const override { return inner_->caps(); }
  Result<transport::Endpoint> local_endpoint() override { return inner_->local_endpoint(); }
  Result<transport::PeerId> connect(const transport::ConnectOptions& options) override {
    return inner_->connect(options);
  }
  void close(transport::PeerId peer) override { inner_->close(peer); }
  Status send(transport::PeerId to, const transport::Frame& frame,
              transport::SendToken token) override;
  int progress() override { return inner_->progress(); }
  int event_fd() const override { return inner_->event_fd(); }
  bool arm() override { return inner_->arm(); }
  bool idle() const { return inner_->arm(); }  // nothing has come that progress() would take in
  Totals totals() const override { return inner_->totals(); }

  void on_frame(transport::PeerId from, const transport::Frame& frame) override;
  void on_sent(transport::PeerId to, transport::SendToken token, const Status& status) override {
    ports_.events.on_sent(to, token, status);
  }
  void on_peer_down(transport::PeerId peer, const Status& why) override {
    ports_.events.on_peer_down(peer, why);
  }

 private:
  DaemonLane::Work work_of(const transport::Frame& frame) const;

  Ports ports_;
  Watch watch_;
  std::unique_ptr<transport::Transport> inner_;
};

// Of a frame of a step its group; kNoGroup of any other.
uint32_t group_of(std::span<const std::byte> header);
// A frame of a step whose payload nobody needs to read: it has ranges and nothing else.
bool only_ranges(const transport::Frame& frame);

}  // namespace cgx::scheduler::sim
