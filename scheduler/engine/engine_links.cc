// Engine, the links between daemons and what passes over them.
#include "scheduler/engine/engine_state.h"

namespace cgx::scheduler {
namespace {

// Tokens: slab frames carry the site above slab + 1, copied payloads the highest bit and their
// number.
constexpr transport::SendToken kCopyBit = uint64_t{1} << 63;
constexpr int kSiteShift = 32;

// A link that has gone is told of by on_peer_down.
Status gone_or(const Status& status) {
  const StatusCode code = status.code();
  const bool link_gone = code == StatusCode::kPEER_LOST || code == StatusCode::kNOT_FOUND ||
                         code == StatusCode::kUNAVAILABLE || code == StatusCode::kCANCELLED;
  return status.ok() || link_gone ? Status() : resource_exhausted(status.message());
}

LinkTable::Cargo cargo_of(transport::SendToken token) {
  return token & kCopyBit ? LinkTable::Cargo::kWords : LinkTable::Cargo::kPart;
}

}  // namespace

Status Engine::State::send(transport::PeerId peer, wire::FrameHeader header,
                           std::span<const std::byte> payload, SiteId site, SlabId slab) {
  if (slab == kNoSlab && !payload.empty()) {
    return send_shared(
        peer, header,
        std::make_shared<const std::vector<std::byte>>(payload.begin(), payload.end()));
  }
  const transport::SendToken token =
      slab == kNoSlab ? transport::kNoToken : uint64_t{site} << kSiteShift | (uint64_t{slab} + 1);
  const Status status = pass_on(peer, header, payload, token);
  if (slab != kNoSlab && !status.ok()) at(site).slabs->release(slab);
  return gone_or(status);
}

Status Engine::State::send_shared(transport::PeerId peer, wire::FrameHeader header,
                                  SharedBytes payload) {
  const transport::SendToken token = kCopyBit | next_copy_++;
  const SharedBytes& kept = copied_payloads_[token] = std::move(payload);
  const Status status = pass_on(peer, header, *kept, token);
  if (!status.ok()) copied_payloads_.erase(token);
  return gone_or(status);
}

Status Engine::State::pass_on(transport::PeerId peer, wire::FrameHeader header,
                              std::span<const std::byte> payload, transport::SendToken token) {
  if (Siblings::beside(peer)) {
    count(Counter::ksite_frames, 1);
    wire::seal(header, payload, wire::PayloadCheck::kTransport);  // tells it from others
    siblings_.push({peer, header, payload, token});
    return {};
  }
  count(Counter::kframes_sent, 1);
  wire::seal(header, payload, payload_check());
  const Status status =
      ports_.transport->send(peer, {std::as_bytes(std::span(&header, 1)), payload}, token);
  if (status.ok() && token != transport::kNoToken) links_.sending(peer, cargo_of(token));
  return status;
}

// Those that were sent until now; what follows from them is given out in the next round.
int Engine::State::deliver_beside() {
  int delivered = 0;
  for (const Siblings::Frame& frame : siblings_.take()) {
    const auto found = std::find_if(communicators_.begin(), communicators_.end(),
                                    [&](const auto& one) { return Siblings::is_for(frame, *one); });
    if (found != communicators_.end()) {
      const uint64_t began_ns = turn_clock_ns();
      (*found)->receive(frame.header, frame.payload);
      charge(**found, began_ns);
    }
    give_back(frame.token);
    ++delivered;
  }
  return delivered;
}

void Engine::State::give_back(transport::SendToken token) {
  if (token == transport::kNoToken) return;
  if (token & kCopyBit) {
    copied_payloads_.erase(token);
  } else {
    at(static_cast<SiteId>(token >> kSiteShift)).slabs->release(static_cast<SlabId>(token) - 1);
  }
}

void Engine::State::lose_link(LinkUser& user, uint32_t machine, const Status& why) {
  links_.lose(user, machine, why);
}

void Engine::link_up(LinkId id, transport::PeerId peer) {
  state_->links_.up(id, peer, state_->now_ns_);
}

void Engine::link_down(LinkId id, const Status& why) {
  state_->links_.refused(id, why);
}

void Engine::on_peer_down(transport::PeerId peer, const Status& why) {
  state_->links_.peer_down(peer, why);
}

void Engine::on_bytes(transport::PeerId from) {
  state_->links_.heard_bytes(from, state_->now_ns_);
}

void Engine::on_sent(transport::PeerId to, transport::SendToken token, const Status& status) {
  (void)status;  // a failed link reports itself through on_peer_down
  state_->links_.sent(to, cargo_of(token));
  state_->give_back(token);
}

void Engine::on_frame(transport::PeerId from, const transport::Frame& frame) {
  count(Counter::kframes_received);
  const std::optional<LinkId> link = state_->links_.heard(from, state_->now_ns_);
  if (!link) {
    count(Counter::kframes_unexpected);
    return;
  }
  const Result<wire::FrameHeader> header =
      wire::open_frame(frame.header, frame.payload, state_->payload_check());
  if (!header.ok()) {
    count(Counter::kframes_corrupt);
    return link_down(*link, header.status());
  }
  const LinkTable::Use* stray = nullptr;
  for (const LinkTable::Use& use : state_->links_.uses(*link)) {
    const Members& members = use.user->members();
    if (members.id != header->communicator || members.machine != header->target) continue;
    stray = &use;
    if (use.machine != header->source) continue;
    const uint64_t began_ns = state_->turn_clock_ns();
    use.user->receive(*header, frame.payload);
    return state_->charge(static_cast<const Communicator&>(*use.user), began_ns);
  }
  if (stray == nullptr) return count(Counter::kframes_unexpected);
  link_down(*link,
            protocol_error("frame of machine " + std::to_string(header->source) +
                           " came over the link of machine " + std::to_string(stray->machine)));
}

}  // namespace cgx::scheduler
