#include "scheduler/sim/bars.h"

#include "scheduler/sim/run.h"

namespace cgx::scheduler::sim {

std::vector<Bar> bars_of(const Run& run) {
  if (run.engines) return run.engines->bars;
  std::vector<Bar> bars;
  if (run.forward_ns > 0) bars.push_back({0, Bar::kForward, 0, run.forward_ns});
  for (uint32_t g = 0; g < run.timeline.groups.size(); ++g) {
    const GroupSpan& span = run.timeline.groups[g];
    const auto add = [&](uint32_t lane, double begin_ns, double end_ns) {
      bars.push_back({lane, g, run.forward_ns + begin_ns, run.forward_ns + end_ns});
    };
    add(0, span.arrives_ns, span.ready_ns);
    add(1, span.daemon_begin_ns, span.daemon_end_ns);
    if (run.plan.machines > 1) add(2, span.link_begin_ns, span.link_end_ns);
    add(3, span.ready_ns, span.end_ns);
  }
  return bars;
}

}  // namespace cgx::scheduler::sim
