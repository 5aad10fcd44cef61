// Faults on purpose: a plan, and transports that carry it out around any other transport.
//
// Thread rule: the plan, its transports and their callers live on one thread.
// Invariants: what happens to a frame depends on (seed, sender, receiver, its number in that
// direction) and the script only, so a seed replays; every frame is reported by on_sent exactly
// once whatever happens to it; without faults the decorator changes nothing.
//
// Real transports give whole frames in order, or a disconnect. Drops, duplicates and flipped bytes
// are here because the layer above must turn anything at all into right bits or a named error.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "transport/transport.h"

namespace cgx::transport {

class FaultyTransport;

enum class Fault : uint8_t {
  kDrop,        // the frame vanishes; its sender hears on_sent(OK)
  kDuplicate,   // it arrives twice
  kCorrupt,     // one byte of header or payload is changed
  kReorder,     // it waits until the next frame of its direction has gone, or delay_ns
  kDelay,       // it and all behind it wait
  kCut,         // silence: frames are kept, on_sent stays out, nobody is told (as TCP does)
  kDisconnect,  // on_peer_down; connecting again fails until healed
  kHeal,        // ends cut and disconnect
};

struct ScriptedFault {
  static constexpr uint64_t kAnyFrame = UINT64_MAX;
  static constexpr int64_t kAnyTime = INT64_MAX;

  Fault fault = Fault::kDrop;
  uint32_t from = 0;  // endpoints, numbered in the order of wrap()
  uint32_t to = 0;
  bool both_ways = false;      // kCut, kDisconnect, kHeal; else only `from` is affected or told
  uint64_t frame = kAnyFrame;  // at this frame of from -> to, counted from 0; or
  int64_t at_ns = kAnyTime;    // at this time (kCut, kDisconnect, kHeal)
  int64_t delay_ns = 0;        // kDelay, kReorder
};

struct FaultPlan {
  uint64_t seed = 0;
  // Chance of each fault per frame.
  double drop = 0, duplicate = 0, corrupt = 0, reorder = 0, delay = 0, cut = 0, disconnect = 0;
  int64_t delay_ns_max = 1'000'000;    // delays and reorderings last 1..delay_ns_max
  int64_t heal_after_ns = 10'000'000;  // random cuts and disconnects, both ways, heal then
  int64_t quiet_from_ns = INT64_MAX;   // from then on no random fault, and everything is healed
  std::vector<ScriptedFault> script;
};

class Faults {
 public:
  static constexpr int64_t kNever = INT64_MAX;
  using MakeInner = std::function<std::unique_ptr<Transport>(Events&)>;

  explicit Faults(FaultPlan plan);

  // `this` and `events` must outlive the transport. Addresses carry the endpoint's number, so both
  // ends of a link must be wrapped (by one Faults, or by several that number them alike).
  std::unique_ptr<Transport> wrap(Events& events, const MakeInner& make_inner);

  void advance_to(int64_t now_ns);
  int64_t now_ns() const { return now_ns_; }
  // Next time at which a frame is let go or the script acts; kNever if none is waiting.
  int64_t next_event_ns() const;

  // How many of each were injected, by number of the enum.
  uint64_t count(Fault fault) const { return counts_[static_cast<size_t>(fault)]; }

 private:
  friend class FaultyTransport;

  struct Direction {
    uint64_t frames = 0;  // asked to send so far
    bool cut = false;
    bool disconnected = false;
  };
  // What happens to one frame.
  struct Fate {
    bool drop = false, duplicate = false, corrupt = false, reorder = false;
    int64_t delay_ns = 0;
    uint64_t random = 0;  // for what else must be chosen
  };

  Direction& direction(uint32_t from, uint32_t to) { return directions_[{from, to}]; }
  Fate decide(uint32_t from, uint32_t to);
  void draw(uint32_t from, uint32_t to, uint64_t frame, Fate& fate);
  void apply(const ScriptedFault& fault);
  void set_state(Fault fault, uint32_t from, uint32_t to, bool both_ways);
  void heal_all();

  FaultPlan plan_;
  int64_t now_ns_ = 0;
  std::multimap<int64_t, ScriptedFault> timed_;
  std::map<std::pair<uint32_t, uint32_t>, Direction> directions_;
  std::vector<FaultyTransport*> transports_;  // nullptr: destroyed
  uint64_t counts_[8] = {};
};

}  // namespace cgx::transport
