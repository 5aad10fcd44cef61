// The decorator that carries out Faults around one transport. Internal to transport/faults*.
//
// Thread rule: as the transport it wraps.
#pragma once

#include <deque>
#include <memory>
#include <unordered_map>
#include <vector>

#include "transport/faults.h"

namespace cgx::transport {

class FaultyTransport final : public Transport, private Events {
 public:
  FaultyTransport(Faults& faults, uint32_t number, Events& events,
                  const Faults::MakeInner& make_inner);
  ~FaultyTransport() override;

  std::string_view name() const override { return inner_->name(); }
  Caps caps() const override {
    Caps caps = inner_->caps();
    caps.checks_payloads = false;  // we change them on purpose
    return caps;
  }
  Result<Endpoint> local_endpoint() override;
  Result<PeerId> connect(const ConnectOptions& options) override;
  void close(PeerId peer) override;
  Status send(PeerId to, const Frame& frame, SendToken token) override;
  int progress() override;
  int event_fd() const override { return inner_->event_fd(); }
  bool arm() override;
  Status fit() const override { return inner_->fit(); }
  void lose_after(uint32_t ms) override { inner_->lose_after(ms); }
  Totals totals() const override { return inner_->totals(); }

  // For Faults. The earliest future time at which a held frame may go.
  int64_t next_release_ns() const;
  // The direction from here to `remote` was cut, disconnected or healed; `both_ways`: the other
  // too.
  void state_changed(uint32_t remote, bool both_ways);

 private:
  // A frame on its way to the inner transport. `owned` holds a payload that is not the caller's.
  struct Held {
    std::vector<std::byte> header;
    std::span<const std::byte> payload;
    std::vector<std::byte> owned;
    SendToken token = kNoToken;
    int64_t release_ns = 0;
  };
  struct Link {
    std::string name;
    uint32_t remote = 0;
    std::deque<Held> line;        // in order: delayed or cut
    std::vector<Held> overtaken;  // reordered: wait for the next frame or their time
    uint32_t in_flight = 0;       // inner sends not yet reported
    Status down;                  // not OK: on_peer_down is due, or told
    bool told_down = false;
  };
  // An inner send: whose token to report, and the memory to keep until then.
  struct InFlight {
    PeerId peer;
    SendToken token = kNoToken;
    std::vector<std::byte> owned;
  };
  struct Done {
    PeerId peer;
    SendToken token = kNoToken;
    Status status;
  };
  // A link closed here while its peer must not notice: the inner one stays until healed.
  struct Orphan {
    PeerId peer;
    uint32_t remote = 0;
  };
  struct IdHash {
    size_t operator()(PeerId id) const {
      return std::hash<uint64_t>()(uint64_t{id.generation} << 32 | id.index);
    }
  };

  void on_frame(PeerId from, const Frame& frame) override;
  void on_sent(PeerId to, SendToken token, const Status& status) override;
  void on_peer_down(PeerId peer, const Status& why) override;
  void on_bytes(PeerId from) override;

  Link* find(PeerId peer);
  bool is_cut(const Link& link) const;
  void corrupt(Held& frame, uint64_t random) const;
  int pump(PeerId peer, Link& link);
  void pass_on(PeerId peer, Link& link, Held frame);
  void take_down(PeerId peer, Link& link, Status why);
  void drop_held(PeerId peer, Link& link, const Status& why);
  int report();
  int tell_downs();

  Faults& faults_;
  const uint32_t number_;
  Events& events_;
  std::unordered_map<PeerId, Link, IdHash> links_;
  std::vector<PeerId> order_;  // of links_, by age: the same walk in every run
  std::vector<Orphan> orphans_;
  std::unordered_map<SendToken, InFlight> in_flight_;
  SendToken last_token_ = kNoToken;
  std::vector<Done> done_;
  std::unique_ptr<Transport> inner_;  // last: its callbacks need the rest
};

}  // namespace cgx::transport
