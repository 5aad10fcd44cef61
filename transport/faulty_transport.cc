#include "transport/faulty_transport.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace cgx::transport {
namespace {

std::vector<std::byte> copy(std::span<const std::byte> bytes) {
  return {bytes.begin(), bytes.end()};
}

}  // namespace

FaultyTransport::FaultyTransport(Faults& faults, uint32_t number, Events& events,
                                 const Faults::MakeInner& make_inner)
    : faults_(faults), number_(number), events_(events), inner_(make_inner(*this)) {}

FaultyTransport::~FaultyTransport() {
  faults_.transports_[number_] = nullptr;
}

Result<Endpoint> FaultyTransport::local_endpoint() {
  CGX_ASSIGN_OR_RETURN(Endpoint endpoint, inner_->local_endpoint());
  std::vector<std::byte> address(sizeof number_);
  std::memcpy(address.data(), &number_, sizeof number_);
  address.insert(address.end(), endpoint.address.begin(), endpoint.address.end());
  endpoint.address = std::move(address);
  return endpoint;
}

Result<PeerId> FaultyTransport::connect(const ConnectOptions& options) {
  Link link;
  if (options.remote.address.size() < sizeof link.remote) {
    return invalid_argument(options.name + ": address has " +
                            std::to_string(options.remote.address.size()) +
                            " bytes, must begin with a number of 4");
  }
  std::memcpy(&link.remote, options.remote.address.data(), sizeof link.remote);
  link.name = options.name;
  ConnectOptions inner = options;
  inner.remote.address.erase(inner.remote.address.begin(),
                             inner.remote.address.begin() + sizeof link.remote);
  CGX_ASSIGN_OR_RETURN(const PeerId peer, inner_->connect(inner));
  if (faults_.direction(number_, link.remote).disconnected) {
    link.down = {StatusCode::kPEER_LOST, link.name + ": unreachable (injected)"};
  }
  links_.emplace(peer, std::move(link));
  order_.push_back(peer);
  return peer;
}

void FaultyTransport::close(PeerId peer) {
  Link* link = find(peer);
  if (!link) return;
  drop_held(peer, *link, {StatusCode::kCANCELLED, link->name + ": closed here"});
  const Faults::Direction way = faults_.direction(number_, link->remote);
  if (way.cut || way.disconnected) {
    orphans_.push_back({peer, link->remote});
  } else {
    inner_->close(peer);
  }
  links_.erase(peer);
  std::erase(order_, peer);
}

Status FaultyTransport::send(PeerId to, const Frame& frame, SendToken token) {
  if (!find(to)) return {StatusCode::kNOT_FOUND, "send to a peer that is not connected"};
  if (!find(to)->down.ok()) return find(to)->down;
  CGX_RETURN_IF_ERROR(check_frame(caps(), frame, token));

  const uint32_t remote = find(to)->remote;
  const Faults::Fate fate = faults_.decide(number_, remote);
  Link& link = *find(to);
  if (fate.drop || !link.down.ok()) {  // lost, or the fate was a disconnect
    if (token != kNoToken) done_.push_back({to, token, link.down});
    return {};
  }
  Held held{.header = copy(frame.header), .payload = frame.payload, .token = token};
  if (fate.corrupt) corrupt(held, fate.random);
  held.release_ns = faults_.now_ns() + fate.delay_ns;
  if (fate.duplicate) {
    Held twin{.header = held.header, .owned = copy(held.payload)};
    twin.payload = twin.owned;
    link.line.push_back(std::exchange(held, std::move(twin)));
  }
  if (fate.reorder) {
    link.overtaken.push_back(std::move(held));
  } else {
    link.line.push_back(std::move(held));
  }
  pump(to, link);
  return {};
}

void FaultyTransport::corrupt(Held& frame, uint64_t random) const {
  const size_t bytes = frame.header.size() + frame.payload.size();
  if (bytes == 0) return;
  const size_t at = (random >> 8) % bytes;
  const std::byte flip{static_cast<unsigned char>(random % 255 + 1)};
  if (at < frame.header.size()) {
    frame.header[at] ^= flip;
    return;
  }
  frame.owned = copy(frame.payload);
  frame.owned[at - frame.header.size()] ^= flip;
  frame.payload = frame.owned;
}

bool FaultyTransport::is_cut(const Link& link) const {
  return faults_.direction(number_, link.remote).cut;
}

// Lets go what may go: the line in order, and behind each frame those it overtook.
int FaultyTransport::pump(PeerId peer, Link& link) {
  if (!link.down.ok() || is_cut(link)) return 0;
  const int64_t now_ns = faults_.now_ns();
  int count = 0;
  const auto let_overtaken_go = [&](bool all) {
    std::vector<Held> waiting;
    for (Held& frame : std::exchange(link.overtaken, {})) {
      if (!all && frame.release_ns > now_ns) {
        waiting.push_back(std::move(frame));
        continue;
      }
      pass_on(peer, link, std::move(frame));
      ++count;
    }
    link.overtaken = std::move(waiting);
  };
  while (!link.line.empty() && link.line.front().release_ns <= now_ns) {
    Held frame = std::move(link.line.front());
    link.line.pop_front();
    pass_on(peer, link, std::move(frame));
    ++count;
    let_overtaken_go(true);
  }
  let_overtaken_go(false);
  return count;
}

void FaultyTransport::pass_on(PeerId peer, Link& link, Held frame) {
  const Frame inner{frame.header, frame.payload};
  const SendToken token =
      frame.payload.empty() && frame.token == kNoToken ? kNoToken : ++last_token_;
  const Status status = inner_->send(peer, inner, token);
  if (token == kNoToken) return;
  if (!status.ok()) {
    if (frame.token != kNoToken) done_.push_back({peer, frame.token, status});
    return;
  }
  ++link.in_flight;
  in_flight_.emplace(token, InFlight{peer, frame.token, std::move(frame.owned)});
}

void FaultyTransport::state_changed(uint32_t remote, bool both_ways) {
  const Faults::Direction way = faults_.direction(number_, remote);
  for (const PeerId peer : std::vector<PeerId>(order_)) {
    Link& link = *find(peer);
    if (link.remote != remote || !way.disconnected || !link.down.ok()) continue;
    take_down(peer, link, {StatusCode::kPEER_LOST, link.name + ": disconnected (injected)"});
    if (both_ways) inner_->close(peer);
  }
  if (way.cut || way.disconnected) return;
  std::erase_if(orphans_, [&](const Orphan& orphan) {
    if (orphan.remote != remote) return false;
    inner_->close(orphan.peer);
    return true;
  });
}

void FaultyTransport::take_down(PeerId peer, Link& link, Status why) {
  link.down = std::move(why);
  drop_held(peer, link, link.down);
}

void FaultyTransport::drop_held(PeerId peer, Link& link, const Status& why) {
  const auto report = [&](const Held& frame) {
    if (frame.token != kNoToken) done_.push_back({peer, frame.token, why});
  };
  std::for_each(link.line.begin(), link.line.end(), report);
  std::for_each(link.overtaken.begin(), link.overtaken.end(), report);
  link.line.clear();
  link.overtaken.clear();
}

int FaultyTransport::progress() {
  int count = 0;
  for (const PeerId peer : std::vector<PeerId>(order_)) {
    if (Link* link = find(peer)) count += pump(peer, *link);
  }
  count += inner_->progress();
  count += report();
  return count + tell_downs();
}

int FaultyTransport::report() {
  const std::vector<Done> done = std::exchange(done_, {});
  for (const Done& frame : done) events_.on_sent(frame.peer, frame.token, frame.status);
  return static_cast<int>(done.size());
}

// A link that is down is told when the inner transport has given back every buffer.
int FaultyTransport::tell_downs() {
  int count = 0;
  for (const PeerId peer : std::vector<PeerId>(order_)) {
    Link* link = find(peer);
    if (!link || link->down.ok() || link->told_down || link->in_flight > 0) continue;
    const bool unreported =
        std::any_of(done_.begin(), done_.end(), [&](const Done& d) { return d.peer == peer; });
    if (unreported) continue;
    link->told_down = true;
    const Status why = link->down;
    events_.on_peer_down(peer, why);
    ++count;
  }
  return count;
}

bool FaultyTransport::arm() {
  if (!done_.empty()) return false;
  for (const auto& [peer, link] : links_) {
    if (!link.down.ok() && !link.told_down) return false;
    if (!link.line.empty() || !link.overtaken.empty()) return false;  // time may let them go
  }
  return inner_->arm();
}

int64_t FaultyTransport::next_release_ns() const {
  int64_t next = Faults::kNever;
  for (const auto& [peer, link] : links_) {
    if (is_cut(link)) continue;
    const auto consider = [&](const Held& frame) {
      if (frame.release_ns > faults_.now_ns()) next = std::min(next, frame.release_ns);
    };
    if (!link.line.empty()) consider(link.line.front());
    std::for_each(link.overtaken.begin(), link.overtaken.end(), consider);
  }
  return next;
}

FaultyTransport::Link* FaultyTransport::find(PeerId peer) {
  const auto found = links_.find(peer);
  return found == links_.end() ? nullptr : &found->second;
}

void FaultyTransport::on_frame(PeerId from, const Frame& frame) {
  const Link* link = find(from);
  if (link && link->down.ok()) events_.on_frame(from, frame);
}

void FaultyTransport::on_sent(PeerId to, SendToken token, const Status& status) {
  auto entry = in_flight_.extract(token);
  CGX_ASSERT(!entry.empty());
  Link* link = find(to);
  if (link) --link->in_flight;
  if (entry.mapped().token == kNoToken) return;  // a duplicate: nobody waits for it
  events_.on_sent(to, entry.mapped().token,
                  link && !status.ok() && !link->down.ok() ? link->down : status);
}

void FaultyTransport::on_bytes(PeerId from) {
  const Link* link = find(from);
  if (link && link->down.ok()) events_.on_bytes(from);
}

void FaultyTransport::on_peer_down(PeerId peer, const Status& why) {
  Link* link = find(peer);
  if (link && link->down.ok()) take_down(peer, *link, why);
}

}  // namespace cgx::transport
