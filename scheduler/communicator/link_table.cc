#include "scheduler/communicator/link_table.h"

#include <algorithm>
#include <utility>

namespace cgx::scheduler {
namespace {

constexpr uint64_t kLingerNs = 3'000'000'000;  // a link outlives its last user by this
constexpr uint64_t kDrainNs = 27'000'000'000;  // and by this more while frames wait to leave
constexpr LinkId kNoLink = UINT32_MAX;

bool needs_link(const Members& members, uint32_t machine) {
  return machine != members.machine && !members.beside(machine);
}

// Before the user: several of its machines may be behind the link.
bool was_there_before(std::span<const LinkTable::Use> uses, const LinkUser& user) {
  const auto own = std::find_if(uses.begin(), uses.end(),
                                [&](const LinkTable::Use& use) { return use.user == &user; });
  return own == uses.end() || own->reused;
}

}  // namespace

LinkTable::Link* LinkTable::find(transport::PeerId peer) {
  const LinkId id = peer.index < of_peer_.size() ? of_peer_[peer.index] : kNoLink;
  return id < links_.size() && links_[id].peer == peer ? &links_[id] : nullptr;
}

LinkTable::Ends LinkTable::ends_of(const LinkUser& user, uint32_t machine) {
  return {user.job_key(), user.members().instances[machine]};
}

std::optional<LinkId> LinkTable::find(const LinkUser& user, uint32_t machine) const {
  const auto found = open_.find(ends_of(user, machine));
  return found != open_.end() ? std::optional(found->second) : std::nullopt;
}

bool LinkTable::is_used(const Link& link, const LinkUser& user, uint32_t machine) {
  return std::any_of(link.uses.begin(), link.uses.end(),
                     [&](const Use& use) { return use.user == &user && use.machine == machine; });
}

bool LinkTable::is_unused(const Link& link) {
  return !link.open && link.uses.empty() && link.frames == 0;
}

LinkId LinkTable::make(const LinkUser& user, uint32_t machine) {
  const Members& members = user.members();
  const auto unused = std::find_if(links_.begin(), links_.end(), &LinkTable::is_unused);
  const auto id = static_cast<LinkId>(unused - links_.begin());
  if (unused == links_.end()) links_.emplace_back();
  Link& made = links_[id] = {};
  made.ends = ends_of(user, machine);
  made.holder = members.holder;
  made.address = members.addresses[machine];
  made.open = true;
  open_[made.ends] = id;
  port_->open_link(id, {.job = members.job,
                        .uid = members.uid,
                        .job_key = made.ends.job_key,
                        .instance = made.ends.instance,
                        .mesh_address = members.addresses[machine]});
  return id;
}

bool LinkTable::worth_using(const Link& link, uint64_t now_ns, uint64_t quiet_ns) const {
  const bool watched = std::any_of(link.uses.begin(), link.uses.end(),
                                   [](const Use& use) { return use.user->living(); });
  const uint64_t needed_ns = link.uses.empty() ? link.close_at_ns - kLingerNs : now_ns;
  return !link.up || watched || link.heard_ns + quiet_ns >= needed_ns;
}

void LinkTable::use(LinkId id, const Use& use) {
  idle_.erase(id);
  links_[id].uses.push_back(use);
  if (links_[id].up) use.user->link_up(use.machine, links_[id].peer);
}

uint32_t LinkTable::missing(const LinkUser& user) const {
  const Members& members = user.members();
  uint32_t count = 0;
  for (uint32_t machine = 0; machine < members.machines(); ++machine) {
    count += needs_link(members, machine) && !find(user, machine);
  }
  return count;
}

void LinkTable::open(LinkUser& user, uint64_t now_ns, uint64_t quiet_ns) {
  const Members& members = user.members();
  for (uint32_t machine = 0; machine < members.machines(); ++machine) {
    if (!needs_link(members, machine)) continue;
    std::optional<LinkId> known = find(user, machine);
    if (known && !worth_using(links_[*known], now_ns, quiet_ns)) {
      end(*known, {StatusCode::kPEER_LOST, "the link has been silent and is made anew"});
      known.reset();
    }
    const bool reused = known && was_there_before(links_[*known].uses, user);
    use(known ? *known : make(user, machine), {&user, machine, reused});
  }
}

void LinkTable::leave(const LinkUser& user, uint64_t now_ns) {
  for (LinkId id = 0; id < links_.size(); ++id) {
    Link& link = links_[id];
    const auto removed =
        std::erase_if(link.uses, [&](const Use& use) { return use.user == &user; });
    if (removed == 0 || !link.uses.empty()) continue;
    link.close_at_ns = now_ns + kLingerNs;
    if (link.open) idle_.insert(id);
  }
}

void LinkTable::lose(LinkUser& user, uint32_t machine, const Status& why) {
  const std::optional<LinkId> id = find(user, machine);
  if (id && is_used(links_[*id], user, machine)) return end(*id, why);
  user.link_lost(machine, why);
}

void LinkTable::up(LinkId id, transport::PeerId peer, uint64_t now_ns) {
  Link& link = links_[id];
  if (!link.open || link.up) return;
  link.up = true;
  link.peer = peer;
  link.heard_ns = now_ns;
  if (peer.index >= of_peer_.size()) of_peer_.resize(peer.index + 1, kNoLink);
  of_peer_[peer.index] = id;
  for (const Use& use : std::vector(link.uses)) use.user->link_up(use.machine, peer);
}

void LinkTable::refused(LinkId id, const Status& why) {
  if (!links_[id].open) return;
  close(links_[id]);
  tell(id, why);
}

void LinkTable::peer_down(transport::PeerId peer, const Status& why) {
  const Link* const link = find(peer);
  if (link != nullptr) end(static_cast<LinkId>(link - links_.data()), why);
}

void LinkTable::end(LinkId id, const Status& why) {
  if (!links_[id].open) return;
  close(links_[id]);
  port_->close_link(id);
  tell(id, why);
}

// Frees the peer's id; the other side hears of it.
void LinkTable::close(Link& link) {
  if (link.up) transport_->close(link.peer);
  link.open = link.up = false;
  open_.erase(link.ends);
  idle_.erase(static_cast<LinkId>(&link - links_.data()));
}

// Who joins over a link from before may have met a dead one, which the other side has given up
// already: it asks for another, once.
void LinkTable::tell(LinkId id, const Status& why) {
  for (const Use& each : std::vector(links_[id].uses)) {
    LinkUser& user = *each.user;
    if (!each.reused || !user.needs_links()) {
      user.link_lost(each.machine, why);
      continue;
    }
    std::erase_if(links_[id].uses, [&](const Use& other) {
      return other.user == &user && other.machine == each.machine;
    });
    user.link_remade(each.machine);
    const std::optional<LinkId> known = find(user, each.machine);
    use(known ? *known : make(user, each.machine), {&user, each.machine, false});
  }
}

std::optional<LinkId> LinkTable::heard(transport::PeerId from, uint64_t now_ns) {
  Link* const link = find(from);
  if (link == nullptr || !link->open) return std::nullopt;
  link->heard_ns = now_ns;
  return static_cast<LinkId>(link - links_.data());
}

void LinkTable::heard_bytes(transport::PeerId from, uint64_t now_ns) {
  Link* const link = find(from);
  if (link != nullptr && link->open) link->carried_ns = now_ns;
}

uint64_t LinkTable::carried_ns(const LinkUser& user, uint32_t machine) const {
  const std::optional<LinkId> id = find(user, machine);
  if (!id || !is_used(links_[*id], user, machine)) return 0;
  return std::max(links_[*id].heard_ns, links_[*id].carried_ns);
}

void LinkTable::sending(transport::PeerId to, Cargo cargo) {
  Link* const link = find(to);
  if (link == nullptr) return;
  ++link->frames;
  link->parts += cargo == Cargo::kPart;
}

// The link may have ended meanwhile, and its peer's number be another's.
void LinkTable::sent(transport::PeerId to, Cargo cargo) {
  Link* link = find(to);
  if (link == nullptr) {
    const auto ended = std::find_if(links_.begin(), links_.end(),
                                    [&](const Link& each) { return each.peer == to; });
    if (ended == links_.end()) return;
    link = &*ended;
  }
  --link->frames;
  link->parts -= cargo == Cargo::kPart;
}

bool LinkTable::under_way(const LinkUser& user, uint32_t machine) const {
  const std::optional<LinkId> link = find(user, machine);
  return link && links_[*link].parts > 0;
}

std::vector<std::string> LinkTable::owing() const {
  std::vector<std::string> addresses;
  for (const Link& link : links_) {
    if (link.open && link.frames > 0) addresses.push_back(link.address);
  }
  return addresses;
}

void LinkTable::close_idle(uint64_t now_ns) {
  for (const LinkId id : std::vector(idle_.begin(), idle_.end())) {
    if (now_ns < closing_ns(links_[id])) continue;
    close(links_[id]);
    port_->close_link(id);
  }
  drop_unused();
}

// Many links once open leave no places that every later search would pass.
void LinkTable::drop_unused() {
  while (!links_.empty() && is_unused(links_.back())) links_.pop_back();
}

uint64_t LinkTable::closing_ns(const Link& idle) {
  return idle.close_at_ns + (idle.frames > 0 ? kDrainNs : 0);
}

uint64_t LinkTable::next_closing_ns() const {
  uint64_t next = UINT64_MAX;
  for (const LinkId id : idle_) next = std::min(next, closing_ns(links_[id]));
  return next;
}

void LinkTable::count_into(Share& share) const {
  for (const auto& [ends, id] : open_) share.add(links_[id].holder);
}

uint32_t LinkTable::open_count() const {
  return static_cast<uint32_t>(open_.size());
}

}  // namespace cgx::scheduler
