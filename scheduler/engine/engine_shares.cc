// Engine, arenas, and who has how much of what there is a limited number of.
#include "scheduler/engine/engine_state.h"

namespace cgx::scheduler {

Status Engine::add_arena(SessionId id, uint32_t arena, std::span<std::byte> memory) {
  return state_->add_arena(id, arena, [&](ArenaTable& arenas) { return arenas.add(memory); });
}

// A number that was dropped stays the session's, so that nobody else is behind places in it.
Status Engine::add_arena(SessionId id, uint32_t arena, const SiteMemory& memory) {
  const State::Session* const session = state_->find(id);
  if (session != nullptr && arena < session->arenas.size()) {
    const ArenaId known = session->arenas[arena];
    const SiteId site = state_->arenas_.site(known);
    const bool same = site == memory.site || !state_->lost(site).ok();
    if (same && site != kHostSite && state_->arenas_.bytes(known) == 0) {
      state_->arenas_.refill(known, memory);
      return {};
    }
  }
  return state_->add_arena(id, arena, [&](ArenaTable& arenas) { return arenas.add(memory); });
}

Status Engine::drop_arena(SessionId id, uint32_t arena) {
  const State::Session* const session = state_->find(id);
  if (session == nullptr) return {StatusCode::kNOT_FOUND, "no such session"};
  const std::string name = "arena " + std::to_string(arena);
  if (arena >= session->arenas.size() || state_->arenas_.bytes(session->arenas[arena]) == 0) {
    return invalid_argument(name + " is none of this session's " +
                            std::to_string(session->arenas.size()));
  }
  const ArenaId known = session->arenas[arena];
  if (state_->arenas_.site(known) == kHostSite) {
    return invalid_argument(name + " lies on the host; those on a GPU can be dropped");
  }
  state_->arenas_.empty(known);
  return {};
}

Status Engine::State::add_arena(SessionId id, uint32_t arena,
                                const std::function<ArenaId(ArenaTable&)>& add) {
  Session* const session = find(id);
  if (session == nullptr) return {StatusCode::kNOT_FOUND, "no such session"};
  if (arena < session->arenas.size() || arena >= wire::kArenasMax) {
    return invalid_argument("arena " + std::to_string(arena) + " is none of the next ones (" +
                            std::to_string(session->arenas.size()) + " of at most " +
                            std::to_string(wire::kArenasMax) + " are there)");
  }
  // One that was refused too late for the client to use its number again is one without memory.
  while (session->arenas.size() <= arena) {
    const bool skipped = session->arenas.size() < arena;
    const ArenaId added = skipped ? arenas_.add(std::span<std::byte>()) : add(arenas_);
    if (added == kNoArena) {
      return resource_exhausted("this daemon has " + std::to_string(ArenaTable::kArenasMax) +
                                " arenas already");
    }
    session->arenas.push_back(added);
  }
  return {};
}

Share Engine::State::session_share() const {
  Share share("limits.sessions", options_.limits.sessions);
  for (const Session& session : sessions_) {
    if (session.open) share.add(session.options.holder);
  }
  return share;
}

Share Engine::State::communicator_share() const {
  Share share("limits.communicators", options_.limits.communicators);
  for (const auto& communicator : communicators_) share.add(communicator->members().holder);
  return share;
}

Share Engine::State::plan_share() const {
  Share share("limits.plan_bytes", options_.limits.plan_bytes);
  for (const auto& communicator : communicators_) {
    share.add(communicator->members().holder, communicator->reserved_bytes());
  }
  for (const auto& [id, place] : sites_) {
    for (const SlabStore::Left& left : place.slabs->left()) {
      share.add(left.holder, left.in_use->sum() * place.slabs->slab_bytes());
    }
  }
  return share;
}

Share Engine::State::link_share() const {
  Share share("limits.links", options_.limits.links);
  links_.count_into(share);
  return share;
}

// Communicators of a job share its links.
Status Engine::State::check_links(const Communicator& communicator) const {
  const Members& members = communicator.members();
  const uint32_t missing = links_.missing(communicator);
  const Status status = link_share().check(members.holder, missing);
  if (status.ok()) return {};
  return {status.code(),
          members.title() + " needs " + std::to_string(missing) + " links: " + status.message()};
}

std::vector<Share> Engine::State::shares() const {
  Share arenas("arenas", ArenaTable::kArenasMax),
      bytes("limits.shared_bytes", options_.limits.shared_bytes);
  for (const Session& session : sessions_) {
    if (!session.open) continue;
    arenas.add(session.options.holder, session.arenas.size());
    for (const ArenaId arena : session.arenas) {
      const bool shared = arenas_.site(arena) == kHostSite;  // a GPU's memory is not the machine's
      if (shared) bytes.add(session.options.holder, arenas_.bytes(arena));
    }
  }
  return {session_share(), communicator_share(), plan_share(), link_share(), arenas, bytes};
}

}  // namespace cgx::scheduler
