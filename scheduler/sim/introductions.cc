#include "scheduler/sim/introductions.h"

#include <algorithm>

namespace cgx::scheduler::sim {

std::optional<Introductions::Introduced> Introductions::ask(const Side& side) {
  const auto match = std::find_if(waiting_.begin(), waiting_.end(), [&](const Side& other) {
    return other.instance == side.request.instance && other.request.instance == side.instance &&
           other.request.job_key == side.request.job_key;
  });
  if (match == waiting_.end()) {
    waiting_.push_back(side);
    return std::nullopt;
  }
  Introduced done{.other = *match, .ours = {}, .theirs = {}};
  waiting_.erase(match);
  const uint64_t to_us = next_tag_++, to_them = next_tag_++;
  const auto connect = [](const Side& from, const Side& to, uint64_t inbound, uint64_t outbound) {
    auto peer = from.endpoint->connect({.remote = *to.endpoint->local_endpoint(),
                                        .inbound_tag = inbound,
                                        .outbound_tag = outbound,
                                        .name = "machine " + std::to_string(to.machine)});
    CGX_ASSERT(peer.ok());
    return *peer;
  };
  done.ours = connect(side, done.other, to_us, to_them);
  done.theirs = connect(done.other, side, to_them, to_us);
  return done;
}

}  // namespace cgx::scheduler::sim
