#include "scheduler/communicator/peers.h"

#include <algorithm>
#include <utility>

#include "proto/wire/bytes.h"

namespace cgx::scheduler {
namespace {

constexpr uint64_t kWaitsMax = 8;  // times the limit: a word behind other things

}  // namespace

Peers::Peers(const Members& members)
    : members_(members), peers_(members.machines()), ranks_of_(members.machines()) {
  for (const uint32_t machine : members.machine_of_rank) ++ranks_of_[machine];
}

bool Peers::all_up() const {
  for (uint32_t k = 0; k < peers_.size(); ++k) {
    if (k != members_.machine && !peers_[k].up) return false;
  }
  return true;
}

void Peers::link_up(uint32_t machine, transport::PeerId id, uint64_t now_ns) {
  Peer& peer = peers_[machine];
  peer.id = id;
  peer.up = true;
  peer.last_heard_ns = peer.last_data_ns = now_ns;
}

void Peers::sent(uint32_t machine, uint64_t bytes) {
  ++peers_[machine].frames_sent;
  peers_[machine].bytes_sent += bytes;
}

void Peers::heard(uint32_t machine, uint64_t bytes, uint64_t now_ns) {
  Peer& peer = peers_[machine];
  peer.last_heard_ns = now_ns;
  ++peer.frames_received;
  peer.bytes_received += bytes;
}

void Peers::take_marks(const wire::FrameHeader& header) {
  Peer& peer = peers_[header.source];
  peer.started_end = std::max(peer.started_end, header.started_step_end);
  peer.completed_end = std::max(peer.completed_end, header.complete_step_end);
  peer.calls_end = std::max(peer.calls_end, header.complete_call_end);
}

void Peers::begin_term(uint64_t first_step, uint64_t now_ns) {
  for (Peer& peer : peers_) {
    peer.started_end = first_step;
    peer.awaits = kNobody;
    peer.last_data_ns = now_ns;
  }
}

bool Peers::may_answer_join(uint32_t machine, uint64_t now_ns) {
  uint64_t& answered_ns = peers_[machine].join_answered_ns;
  if (answered_ns != 0 && now_ns - answered_ns < kJoinRetryNs) return false;
  answered_ns = now_ns;
  return true;
}

void Peers::forgive_silence(uint64_t now_ns) {
  for (Peer& peer : peers_) {
    if (peer.up) peer.last_heard_ns = peer.last_data_ns = now_ns;
  }
}

std::vector<std::byte> Peers::beat_for(uint32_t machine, const Beat& own, uint64_t now_ns,
                                       uint64_t padded_bytes) {
  Peer& peer = peers_[machine];
  if (padded_bytes > 0) now_ns = std::max(now_ns, peer.padded_sent_ns + 1);  // each has its own
  wire::Writer writer;
  writer.put(own.step);
  writer.put(own.call);
  writer.put(now_ns);
  writer.put(peer.beat_sent_ns);
  writer.put(peer.beat_sent_ns == 0 ? 0 : now_ns - peer.beat_heard_ns);
  writer.put(own.awaits);
  for (const std::vector<uint32_t>* missing :
       {&own.missing_step, &own.missing_call, &own.missing_commit}) {
    writer.put<uint32_t>(static_cast<uint32_t>(missing->size()));
    for (const uint32_t rank : *missing) writer.put(rank);
  }
  std::vector<std::byte> beat = writer.take();
  if (beat.size() < padded_bytes) {
    beat.resize(padded_bytes);
    if (!std::exchange(peer.padded_open, true)) peer.padded_from_ns = now_ns;
    peer.padded_sent_ns = now_ns;
  }
  return beat;
}

uint64_t Peers::Peer::least_rtt_ns() const {
  const auto count = static_cast<ptrdiff_t>(std::min<size_t>(echoes, rtts_ns.size()));
  return count == 0 ? 0 : *std::min_element(rtts_ns.begin(), rtts_ns.begin() + count);
}

Peers::News Peers::take_beat(uint32_t machine, uint32_t progress,
                             std::span<const std::byte> payload, uint64_t now_ns) {
  Peer& peer = peers_[machine];
  peer.progress = progress;
  wire::Reader reader(payload);
  peer.step = reader.get<uint64_t>();
  peer.call = reader.get<uint64_t>();
  peer.beat_sent_ns = reader.get<uint64_t>();
  peer.beat_heard_ns = now_ns;
  const auto echo_ns = reader.get<uint64_t>();
  const auto held_ns = reader.get<uint64_t>();
  const bool plausible = echo_ns != 0 && echo_ns <= now_ns && held_ns <= now_ns - echo_ns;
  const bool behind_zeros = echo_ns >= peer.padded_from_ns && echo_ns < peer.padded_sent_ns;
  News news;
  peer.awaits = reader.get<uint32_t>();
  if (!reader.ok() || peer.awaits >= peers_.size()) {
    news.sound = !reader.ok() || peer.awaits == kNobody;
    peer.awaits = kNobody;
  }
  if (plausible && echo_ns == peer.padded_sent_ns) {
    news.padded_rtt_ns = now_ns - echo_ns - held_ns;
    peer.padded_open = false;
  } else if (plausible && !behind_zeros) {
    peer.rtt_ns = now_ns - echo_ns - held_ns;
    peer.rtts_ns[peer.echoes++ % peer.rtts_ns.size()] = peer.rtt_ns;
  }
  for (std::vector<uint32_t>* list :
       {&peer.missing_step, &peer.missing_call, &peer.missing_commit}) {
    std::optional<std::vector<uint32_t>> ranks;
    if (news.sound) ranks = read_ranks(machine, reader);
    news.sound = ranks.has_value();
    *list = std::move(ranks).value_or(std::vector<uint32_t>());
  }
  news.padded = reader.ok() && !reader.done();
  return news;
}

// Nothing: some are not ranks of that machine, or are more than it has.
std::optional<std::vector<uint32_t>> Peers::read_ranks(uint32_t machine,
                                                       wire::Reader& reader) const {
  const std::vector<uint32_t>& machines = members_.machine_of_rank;
  const uint32_t count = reader.get_count(sizeof(uint32_t));
  if (count > ranks_of_[machine]) return {};
  std::vector<uint32_t> ranks(count);
  for (uint32_t& rank : ranks) {
    rank = reader.get<uint32_t>();
    if (rank >= machines.size() || machines[rank] != machine) return {};
  }
  return ranks;
}

std::optional<uint32_t> Peers::silent(uint64_t now_ns, uint64_t limit_ns,
                                      const CarriedNs& carried_ns) const {
  for (uint32_t k = 0; k < peers_.size(); ++k) {
    const Peer& peer = peers_[k];
    if (k == members_.machine || peer.departed || !peer.up) continue;
    const uint64_t silence_ns = now_ns - peer.last_heard_ns;
    if (silence_ns < limit_ns) continue;
    if (silence_ns >= kWaitsMax * limit_ns || now_ns - carried_ns(k) >= limit_ns) return k;
  }
  return std::nullopt;
}

bool Peers::waits_elsewhere(uint32_t machine) const {
  const uint32_t awaits = peers_[machine].awaits;
  return awaits != kNobody && awaits != machine && awaits != members_.machine;
}

uint64_t Peers::last_data_ns() const {
  uint64_t last = 0;
  for (const Peer& peer : peers_) last = std::max(last, peer.last_data_ns);
  return last;
}

void Peers::add_missing(bool of_step, uint64_t number, std::vector<uint32_t>& ranks) const {
  for (uint32_t k = 0; k < peers_.size(); ++k) {
    const Peer& peer = peers_[k];
    if (k == members_.machine || (of_step ? peer.step : peer.call) > number) continue;
    const std::vector<uint32_t>& missing = of_step ? peer.missing_step : peer.missing_call;
    ranks.insert(ranks.end(), missing.begin(), missing.end());
  }
}

void Peers::add_not_committing(std::vector<uint32_t>& ranks) const {
  for (const Peer& peer : peers_) {
    ranks.insert(ranks.end(), peer.missing_commit.begin(), peer.missing_commit.end());
  }
}

void Peers::show(uint64_t now_ns, std::vector<PeerSnapshot>& list) const {
  for (uint32_t k = 0; k < peers_.size(); ++k) {
    if (k == members_.machine) continue;
    const Peer& peer = peers_[k];
    PeerSnapshot& shown = list.emplace_back();
    shown.job = members_.job;
    shown.uid = members_.uid;
    shown.name = members_.name + "/" + std::to_string(k);
    shown.address = members_.addresses[k];
    shown.device = members_.device_name(members_.machine);
    shown.machine = k;
    shown.state = peer.up ? "up" : peer.last_heard_ns != 0 ? "lost" : "connecting";
    shown.heartbeat_age_ns = peer.last_heard_ns ? now_ns - peer.last_heard_ns : 0;
    shown.rtt_ns = peer.rtt_ns;
    shown.frames_sent = peer.frames_sent;
    shown.frames_received = peer.frames_received;
    shown.bytes_sent = peer.bytes_sent;
    shown.bytes_received = peer.bytes_received;
    shown.progress = peer.progress;
  }
}

}  // namespace cgx::scheduler
