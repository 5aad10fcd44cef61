#include "scheduler/plan/collective.h"

namespace cgx::scheduler {

const char* reason_text(WayReason reason) {
  switch (reason) {
    case WayReason::kAlone:
      return "one machine";
    case WayReason::kPolicy:
      return "policy";
    case WayReason::kOneTrip:
      return "so small that one trip is faster";
    case WayReason::kGathersWell:
      return "its codecs gather well";
    case WayReason::kFewerBytes:
      return "fewer bytes";
    case WayReason::kPlanned:
      return "the planner expects the shortest step";
    case WayReason::kFewerBetweenRacks:
      return "fewer bytes between machines with several GPUs";
  }
  return "unknown";
}

}  // namespace cgx::scheduler
