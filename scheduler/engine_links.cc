// Engine, the links between daemons and what passes over them.
#include <algorithm>

#include "scheduler/engine_state.h"

namespace cgx::scheduler {
namespace {

constexpr uint64_t kLingerNs = 3'000'000'000;  // a link outlives its last communicator by this
constexpr uint64_t kDrainNs = 27'000'000'000;  // and by this more while frames wait to leave
// Tokens: slab frames carry slab + 1, copied payloads the bit above with their number.
constexpr transport::SendToken kCopyBit = uint64_t{1} << 63;

}  // namespace

Status Engine::State::send(transport::PeerId peer, wire::FrameHeader header,
                           std::span<const std::byte> payload, SlabId slab) {
  transport::SendToken token = transport::kNoToken;
  std::span<const std::byte> stable = payload;
  if (slab != kNoSlab) {
    token = uint64_t{slab} + 1;
  } else if (!payload.empty()) {
    token = kCopyBit | next_copy_++;
    std::vector<std::byte>& copy = copied_payloads_[token];
    copy.assign(payload.begin(), payload.end());
    stable = copy;
  }
  count(Counter::kframes_sent, 1);
  wire::seal(header, stable, payload_check());
  const Status status =
      ports_.transport->send(peer, {std::as_bytes(std::span(&header, 1)), stable}, token);
  if (status.ok()) {
    if (token != transport::kNoToken) ++links_[link_of_peer_[peer.index]].sending;
    return {};
  }
  if (slab != kNoSlab) slabs_->release(slab);
  copied_payloads_.erase(token);
  const bool link_gone =
      status.code() == StatusCode::kPEER_LOST || status.code() == StatusCode::kNOT_FOUND ||
      status.code() == StatusCode::kUNAVAILABLE || status.code() == StatusCode::kCANCELLED;
  return link_gone ? Status() : resource_exhausted(status.message());  // on_peer_down tells
}

std::optional<LinkId> Engine::State::find_link(const Communicator& communicator,
                                               uint32_t machine) const {
  const wire::InstanceId& instance = communicator.members().instances[machine];
  for (LinkId link = 0; link < links_.size(); ++link) {
    const Link& known = links_[link];
    if (known.open && known.job_key == communicator.job_key() && known.instance == instance) {
      return link;
    }
  }
  return std::nullopt;
}

LinkId Engine::State::new_link(const Communicator& communicator, uint32_t machine) {
  const Members& members = communicator.members();
  const auto unused = std::find_if(links_.begin(), links_.end(), [](const Link& known) {
    return !known.open && known.users == 0 && known.sending == 0;
  });
  const auto link = static_cast<LinkId>(unused - links_.begin());
  if (unused == links_.end()) {
    links_.emplace_back();
    memberships_.emplace_back();
  }
  links_[link] = {.job_key = communicator.job_key(),
                  .instance = members.instances[machine],
                  .holder = members.holder,
                  .open = true};
  ports_.links->open_link(link, {.job = members.job,
                                 .uid = members.uid,
                                 .job_key = communicator.job_key(),
                                 .instance = members.instances[machine],
                                 .mesh_address = members.addresses[machine]});
  return link;
}

// Nobody watches a link whose communicators have failed or gone: a dead one must not be met again.
bool Engine::State::worth_using(LinkId id) const {
  const Link& link = links_[id];
  const bool watched =
      std::any_of(memberships_[id].begin(), memberships_[id].end(),
                  [](const Membership& member) { return member.communicator->living(); });
  const uint64_t needed_ns = link.users > 0 ? now_ns_ : link.close_at_ns - kLingerNs;
  return !link.up || watched || link.heard_ns + 2 * options_.timeouts.heartbeat_ns >= needed_ns;
}

void Engine::State::use_link(LinkId link, const Membership& member) {
  ++links_[link].users;
  memberships_[link].push_back(member);
  if (links_[link].up) member.communicator->link_up(member.machine, links_[link].peer);
}

void Engine::State::open_links(Communicator& communicator) {
  const Members& members = communicator.members();
  for (uint32_t machine = 0; machine < members.machines(); ++machine) {
    if (machine == members.machine) continue;
    std::optional<LinkId> known = find_link(communicator, machine);
    if (known && !worth_using(*known)) {
      end_link(*known, {StatusCode::kPEER_LOST, "the link has been silent and is made anew"});
      known.reset();
    }
    const LinkId link = known ? *known : new_link(communicator, machine);
    use_link(link, {&communicator, machine, known.has_value()});
  }
}

void Engine::State::leave_links(const Communicator& communicator) {
  for (LinkId link = 0; link < links_.size(); ++link) {
    const auto removed = std::erase_if(memberships_[link], [&](const Membership& member) {
      return member.communicator == &communicator;
    });
    links_[link].users -= static_cast<uint32_t>(removed);
    if (removed > 0 && links_[link].users == 0) links_[link].close_at_ns = now_ns_ + kLingerNs;
  }
}

uint64_t Engine::State::next_closing_ns() const {
  uint64_t next = UINT64_MAX;
  for (const Link& link : links_) {
    if (!link.open || link.users > 0) continue;
    next = std::min(next, link.close_at_ns + (link.sending > 0 ? kDrainNs : 0));
  }
  return next;
}

// Last frames (results a peer still needs, the goodbye) leave before the link goes.
void Engine::State::close_idle_links() {
  for (LinkId link = 0; link < links_.size(); ++link) {
    Link& idle = links_[link];
    if (!idle.open || idle.users > 0 || now_ns_ < idle.close_at_ns) continue;
    if (idle.sending > 0 && now_ns_ < idle.close_at_ns + kDrainNs) continue;
    idle.open = false;
    if (idle.up) ports_.transport->close(idle.peer);
    idle.up = false;
    ports_.links->close_link(link);
  }
}

void Engine::link_up(LinkId id, transport::PeerId peer) {
  State::Link& link = state_->links_[id];
  if (!link.open || link.up) return;
  link.up = true;
  link.peer = peer;
  link.heard_ns = state_->now_ns_;
  if (peer.index >= state_->link_of_peer_.size()) {
    state_->link_of_peer_.resize(peer.index + 1, UINT32_MAX);
  }
  state_->link_of_peer_[peer.index] = id;
  for (const State::Membership& member : std::vector(state_->memberships_[id])) {
    member.communicator->link_up(member.machine, peer);
  }
}

void Engine::link_down(LinkId id, const Status& why) {
  State::Link& link = state_->links_[id];
  if (!link.open) return;
  if (link.up) state_->ports_.transport->close(link.peer);
  link.open = link.up = false;
  state_->tell_members(id, why);
}

void Engine::on_peer_down(transport::PeerId peer, const Status& why) {
  if (peer.index >= state_->link_of_peer_.size()) return;
  const LinkId id = state_->link_of_peer_[peer.index];
  if (id == UINT32_MAX || !(state_->links_[id].peer == peer)) return;
  state_->end_link(id, why);
}

void Engine::State::lose_link(Communicator& communicator, uint32_t machine, const Status& why) {
  for (LinkId link = 0; link < links_.size(); ++link) {
    const bool carries =
        std::any_of(memberships_[link].begin(), memberships_[link].end(), [&](const auto& member) {
          return member.communicator == &communicator && member.machine == machine;
        });
    if (carries && links_[link].open) return end_link(link, why);
  }
  communicator.link_lost(machine, why);
}

void Engine::State::end_link(LinkId id, const Status& why) {
  Link& link = links_[id];
  if (!link.open) return;
  if (link.up) ports_.transport->close(link.peer);  // frees its id; the other side hears of it
  link.open = link.up = false;
  ports_.links->close_link(id);
  tell_members(id, why);
}

// Who joins over a link from before may have met a dead one, which the other side has given up
// already: it asks for another, once.
void Engine::State::tell_members(LinkId id, const Status& why) {
  for (const Membership& member : std::vector(memberships_[id])) {
    Communicator& communicator = *member.communicator;
    if (!member.reused || !communicator.needs_links()) {
      communicator.link_lost(member.machine, why);
      continue;
    }
    std::erase_if(memberships_[id], [&](const Membership& each) {
      return each.communicator == &communicator && each.machine == member.machine;
    });
    --links_[id].users;
    communicator.link_remade(member.machine);
    const std::optional<LinkId> known = find_link(communicator, member.machine);
    use_link(known ? *known : new_link(communicator, member.machine),
             {&communicator, member.machine, false});
  }
}

void Engine::on_sent(transport::PeerId to, transport::SendToken token, const Status& status) {
  (void)status;  // a failed link reports itself through on_peer_down
  const auto link = std::find_if(state_->links_.begin(), state_->links_.end(),
                                 [&](const State::Link& known) { return known.peer == to; });
  if (link != state_->links_.end()) --link->sending;
  if (token & kCopyBit) {
    state_->copied_payloads_.erase(token);
  } else {
    state_->slabs_->release(static_cast<SlabId>(token - 1));
  }
}

void Engine::on_frame(transport::PeerId from, const transport::Frame& frame) {
  count(Counter::kframes_received);
  const LinkId id =
      from.index < state_->link_of_peer_.size() ? state_->link_of_peer_[from.index] : UINT32_MAX;
  if (id == UINT32_MAX || !state_->links_[id].open || !(state_->links_[id].peer == from)) {
    count(Counter::kframes_unexpected);
    return;
  }
  state_->links_[id].heard_ns = state_->now_ns_;
  const Result<wire::FrameHeader> header =
      wire::open_frame(frame.header, frame.payload, state_->payload_check());
  if (!header.ok()) {
    count(Counter::kframes_corrupt);
    return link_down(id, header.status());
  }
  for (const State::Membership& member : state_->memberships_[id]) {
    if (member.communicator->members().id != header->communicator) continue;
    if (member.machine != header->source) {
      return link_down(
          id, protocol_error("frame of machine " + std::to_string(header->source) +
                             " came over the link of machine " + std::to_string(member.machine)));
    }
    const uint64_t began_ns = state_->turn_clock_ns();
    member.communicator->receive(*header, frame.payload);
    return state_->charge(*member.communicator, began_ns);
  }
  count(Counter::kframes_unexpected);
}

}  // namespace cgx::scheduler
