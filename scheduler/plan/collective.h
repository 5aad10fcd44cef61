// Which way a group goes between machines, and why. A list with one row per collective
// (schedules.def); what machines do for each of them is a schedule (scheduler/exchange/schedule.h).
#pragma once

#include <cstdint>
#include <iterator>

namespace cgx::scheduler {

enum class Collective : uint8_t {
#define X(name, text, help) k##name,
#include "scheduler/plan/schedules.def"
#undef X
};
constexpr const char* kCollectives[] = {
#define X(name, text, help) #text,
#include "scheduler/plan/schedules.def"
#undef X
};
inline const char* collective_name(Collective collective) {
  return kCollectives[static_cast<size_t>(collective)];
}
inline bool collective_known(Collective collective) {
  return static_cast<size_t>(collective) < std::size(kCollectives);
}

// What the operator wants: auto decides per group.
enum class CollectiveWish : uint8_t {
  kAuto,
#define X(name, text, help) k##name,
#include "scheduler/plan/schedules.def"
#undef X
};
constexpr const char* kCollectiveWishes[] = {
    "auto",
#define X(name, text, help) #text,
#include "scheduler/plan/schedules.def"
#undef X
};
inline const char* wish_name(CollectiveWish wish) {
  return kCollectiveWishes[static_cast<size_t>(wish)];
}
inline CollectiveWish wish_for(Collective collective) {
  return static_cast<CollectiveWish>(static_cast<uint8_t>(collective) + 1);
}
inline Collective wished(CollectiveWish wish) {  // REQUIRES: not auto
  return static_cast<Collective>(static_cast<uint8_t>(wish) - 1);
}

enum class WayReason : uint8_t {
  kAlone,
  kPolicy,
  kOneTrip,
  kGathersWell,
  kFewerBytes,
  kPlanned,
  kFewerBetweenRacks,
};
const char* reason_text(WayReason reason);

// How a group goes between machines. With the layout that follows from the plan it says which
// frames there are, so all of it stands in the plan.
struct Way {
  Collective collective = Collective::kScatter;
  WayReason reason = WayReason::kAlone;
  uint16_t ahead = 1;          // parts that a machine begins beyond the lowest that is not done
  uint32_t rack_machines = 0;  // two levels: machines that follow each other and are near
  bool exact = false;  // two levels: all travels raw, so each rack makes its sum and the result
  uint8_t reserved[3] = {};
  friend bool operator==(const Way&, const Way&) = default;
};
constexpr uint32_t kPartsAheadMax = 1024;

// What a part may hold.
struct PartLimits {
  uint64_t raw_bytes = 512 * 1024;
  uint64_t encoded_bytes = 216 * 1024;
  friend bool operator==(const PartLimits&, const PartLimits&) = default;
};

constexpr uint64_t kPartBytesMin = 4096;  // of either

}  // namespace cgx::scheduler
