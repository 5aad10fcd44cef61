// Engine, who has how much of what there is a limited number of.
#include "scheduler/engine/engine_state.h"

namespace cgx::scheduler {

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
