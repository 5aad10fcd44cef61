#include "transport/faults.h"

#include <algorithm>

#include "transport/faulty_transport.h"

namespace cgx::transport {
namespace {

// SplitMix64: a good 64-bit mix with a counter as its only state.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  bool chance(double probability) {
    return static_cast<double>(next() >> 11) * 0x1p-53 < probability;
  }
  int64_t up_to(int64_t limit) {
    return limit <= 1 ? limit : 1 + static_cast<int64_t>(next() % static_cast<uint64_t>(limit));
  }

 private:
  uint64_t state_;
};

uint64_t seed_of(uint64_t seed, uint32_t from, uint32_t to, uint64_t frame) {
  Random mix(seed);
  Random pair(mix.next() ^ (uint64_t{from} << 32 | to));
  return pair.next() ^ (frame * 0xd1342543de82ef95u);
}

bool is_state(Fault fault) {
  return fault == Fault::kCut || fault == Fault::kDisconnect || fault == Fault::kHeal;
}

}  // namespace

Faults::Faults(FaultPlan plan) : plan_(std::move(plan)) {
  for (const ScriptedFault& fault : plan_.script) {
    const bool timed = fault.at_ns != ScriptedFault::kAnyTime;
    CGX_ASSERT(timed != (fault.frame != ScriptedFault::kAnyFrame));
    CGX_ASSERT(!timed || is_state(fault.fault));
    if (timed) timed_.emplace(fault.at_ns, fault);
  }
}

std::unique_ptr<Transport> Faults::wrap(Events& events, const MakeInner& make_inner) {
  auto transport = std::make_unique<FaultyTransport>(
      *this, static_cast<uint32_t>(transports_.size()), events, make_inner);
  transports_.push_back(transport.get());
  return transport;
}

void Faults::advance_to(int64_t now_ns) {
  CGX_ASSERT(now_ns >= now_ns_);
  while (!timed_.empty() && timed_.begin()->first <= now_ns) {
    const ScriptedFault fault = timed_.begin()->second;
    now_ns_ = std::max(now_ns_, timed_.begin()->first);
    timed_.erase(timed_.begin());
    apply(fault);
  }
  const bool turns_quiet = now_ns_ < plan_.quiet_from_ns && now_ns >= plan_.quiet_from_ns;
  now_ns_ = now_ns;
  if (turns_quiet) heal_all();
}

int64_t Faults::next_event_ns() const {
  int64_t next = timed_.empty() ? kNever : timed_.begin()->first;
  if (plan_.quiet_from_ns > now_ns_) next = std::min(next, plan_.quiet_from_ns);
  for (const FaultyTransport* transport : transports_) {
    if (transport) next = std::min(next, transport->next_release_ns());
  }
  return next;
}

Faults::Fate Faults::decide(uint32_t from, uint32_t to) {
  Fate fate;
  const uint64_t frame = direction(from, to).frames++;
  if (now_ns_ < plan_.quiet_from_ns) draw(from, to, frame, fate);
  for (const ScriptedFault& fault : plan_.script) {
    if (fault.frame != frame || fault.from != from || fault.to != to) continue;
    if (is_state(fault.fault)) apply(fault);
    fate.drop |= fault.fault == Fault::kDrop;
    fate.duplicate |= fault.fault == Fault::kDuplicate;
    fate.corrupt |= fault.fault == Fault::kCorrupt;
    fate.reorder |= fault.fault == Fault::kReorder;
    if (fault.fault == Fault::kDelay || fault.fault == Fault::kReorder) {
      fate.delay_ns = fault.delay_ns;
    }
  }
  if (fate.drop) fate.duplicate = fate.corrupt = fate.reorder = false;
  counts_[static_cast<size_t>(Fault::kDrop)] += fate.drop;
  counts_[static_cast<size_t>(Fault::kDuplicate)] += fate.duplicate;
  counts_[static_cast<size_t>(Fault::kCorrupt)] += fate.corrupt;
  counts_[static_cast<size_t>(Fault::kReorder)] += fate.reorder;
  counts_[static_cast<size_t>(Fault::kDelay)] += fate.delay_ns > 0 && !fate.reorder;
  return fate;
}

void Faults::draw(uint32_t from, uint32_t to, uint64_t frame, Fate& fate) {
  Random random(seed_of(plan_.seed, from, to, frame));
  fate.random = random.next();
  fate.drop = random.chance(plan_.drop);
  fate.duplicate = random.chance(plan_.duplicate);
  fate.corrupt = random.chance(plan_.corrupt);
  fate.reorder = random.chance(plan_.reorder);
  const bool delay = random.chance(plan_.delay);
  if (delay || fate.reorder) fate.delay_ns = random.up_to(plan_.delay_ns_max);
  const bool cut = random.chance(plan_.cut), disconnect = random.chance(plan_.disconnect);
  if (!cut && !disconnect) return;
  set_state(disconnect ? Fault::kDisconnect : Fault::kCut, from, to, true);
  const int64_t heal_ns = now_ns_ + plan_.heal_after_ns;
  timed_.emplace(
      heal_ns,
      ScriptedFault{
          .fault = Fault::kHeal, .from = from, .to = to, .both_ways = true, .at_ns = heal_ns});
}

void Faults::apply(const ScriptedFault& fault) {
  set_state(fault.fault, fault.from, fault.to, fault.both_ways);
}

void Faults::set_state(Fault fault, uint32_t from, uint32_t to, bool both_ways) {
  ++counts_[static_cast<size_t>(fault)];
  const auto change = [&](uint32_t a, uint32_t b) {
    Direction& way = direction(a, b);
    way.cut = fault == Fault::kCut || (fault == Fault::kDisconnect && way.cut);
    way.disconnected = fault == Fault::kDisconnect || (fault == Fault::kCut && way.disconnected);
    if (a < transports_.size() && transports_[a]) transports_[a]->state_changed(b, both_ways);
  };
  change(from, to);
  if (both_ways) change(to, from);
}

void Faults::heal_all() {
  for (auto& [pair, way] : directions_) {
    if (way.cut || way.disconnected) set_state(Fault::kHeal, pair.first, pair.second, false);
  }
}

}  // namespace cgx::transport
