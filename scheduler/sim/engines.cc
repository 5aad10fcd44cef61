#include "scheduler/sim/engines.h"

#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <string>

#include "kernels/codec.h"
#include "scheduler/sim/costed_machine.h"

namespace cgx::scheduler::sim {
namespace {

// Steps of which others come before and after; one with a number that 100 divides may hash results.
constexpr uint64_t kFirstStep = 1, kMeasuredFrom = 2, kEndStep = 3;
constexpr uint64_t kLimitNs = 3'600'000'000'000;  // of virtual time: something stands still

// Addresses that nobody may read or write.
class Untouchable {
 public:
  explicit Untouchable(uint64_t bytes) : bytes_(std::max<uint64_t>(bytes, 4096)) {
    memory_ = mmap(nullptr, bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CGX_ASSERT(memory_ != MAP_FAILED);
  }
  ~Untouchable() { munmap(memory_, bytes_); }
  Untouchable(const Untouchable&) = delete;
  Untouchable& operator=(const Untouchable&) = delete;
  std::span<std::byte> bytes() const { return {static_cast<std::byte*>(memory_), bytes_}; }

 private:
  uint64_t bytes_;
  void* memory_ = nullptr;
};

struct VirtualTime final : public Clock {
  uint64_t ns = 1;
  uint64_t now_ns() const override { return ns; }
};

transport::LoopbackNetwork::Options network_options(const Link& link) {
  const auto trip_ns = static_cast<int64_t>(std::llround(link.trip_ns));
  const double bytes_per_second = link.ns_per_byte > 0 ? 1e9 / link.ns_per_byte : 0;
  return {.latency_ns = [trip_ns](const auto&) { return trip_ns; },
          .port_bytes_per_second = static_cast<uint64_t>(std::llround(bytes_per_second)),
          .size_only = only_ranges,
          .caps = {.header_bytes_max = 1024,
                   .frame_bytes_max = transport::kFrameBytesMax,
                   .frame_bytes_best = 256u << 10,
                   .network = false,
                   .checks_payloads = true}};
}

class Cluster {
 public:
  Cluster(const EngineScene& scene, const Policy& policy, const Plan& plan)
      : scene_(scene),
        plan_(plan),
        network_(network_options(scene.conditions.link)),
        arena_(CostedRank(scene.model, time_).arena_bytes()),
        plans_(std::make_shared<const std::vector<PlanEntry>>(
            std::vector<PlanEntry>{{.job = CostedMachine::kJob,
                                    .communicator = CostedMachine::kCommunicator,
                                    .step = kFirstStep,
                                    .purpose = PlanPurpose::kCommit,
                                    .policy = policy,
                                    .plan = plan}})) {}

  Status open() {
    const auto introduce = [this](const Introductions::Side& side) { this->introduce(side); };
    for (uint32_t m = 0; m < scene_.machines; ++m) {
      CGX_ASSIGN_OR_RETURN(
          std::unique_ptr<CostedMachine> machine,
          CostedMachine::create(m, {scene_.model, scene_.conditions, scene_.machines, plans_},
                                {time_, network_, arena_.bytes(), introduce}));
      machines_.push_back(std::move(machine));
    }
    machines_.front()->keep_bars();
    for (const auto& machine : machines_) machine->meet(kFirstStep);
    CGX_RETURN_IF_ERROR(run_until(
        [](const CostedMachine& one) { return one.rank().answered(CostedMachine::kCreate); }));
    for (const auto& machine : machines_) machine->commit();
    return run_until(
        [](const CostedMachine& one) { return one.rank().answered(CostedMachine::kCommit); });
  }

  Result<EngineStep> step() {
    for (const auto& machine : machines_) machine->train(kFirstStep, kEndStep);
    CGX_RETURN_IF_ERROR(
        run_until([](const CostedMachine& one) { return one.rank().step() >= kMeasuredFrom; }));
    const std::vector<Totals> before = totals();
    CGX_RETURN_IF_ERROR(run_until([](const CostedMachine& one) { return one.rank().done(); }));
    return measured(before, totals());
  }

 private:
  struct Totals {
    double busy_ns = 0;
    uint64_t sent_bytes = 0;
  };
  std::vector<Totals> totals() const {
    std::vector<Totals> all;
    for (const auto& machine : machines_) {
      all.push_back({machine->busy_ns(), machine->sent_bytes()});
    }
    return all;
  }

  // Work and bytes from when the last machine began the first measured step until the last one
  // ended: as much as in so many steps, a little of two of them exchanged.
  EngineStep measured(std::span<const Totals> before, std::span<const Totals> after) const {
    constexpr uint64_t kSteps = kEndStep - kMeasuredFrom;
    EngineStep step{.bars = machines_.front()->bars(plan_)};
    const auto machines = static_cast<double>(machines_.size());
    for (size_t m = 0; m < machines_.size(); ++m) {
      const std::vector<uint64_t>& began_ns = machines_[m]->rank().began_ns();
      const uint64_t took_ns = began_ns.back() - began_ns[kMeasuredFrom - kFirstStep];
      step.step_ns += static_cast<double>(took_ns) / kSteps / machines;
      step.work_ns += (after[m].busy_ns - before[m].busy_ns) / kSteps / machines;
      step.sent_bytes =
          std::max(step.sent_bytes, (after[m].sent_bytes - before[m].sent_bytes) / kSteps);
    }
    return step;
  }

  void introduce(const Introductions::Side& side) {
    const auto done = introductions_.ask(side);
    if (!done) return;
    machines_[side.machine]->link_up(side.link, done->ours);
    machines_[done->other.machine]->link_up(done->other.link, done->theirs);
  }

  Status run_until(const std::function<bool(const CostedMachine&)>& done) {
    const auto all_done = [&] {
      return std::all_of(machines_.begin(), machines_.end(),
                         [&](const auto& machine) { return done(*machine); });
    };
    const uint64_t limit_ns = time_.ns + kLimitNs;
    while (!all_done()) {
      for (const auto& machine : machines_) {
        if (machine->due()) machine->work();
        if (!machine->rank().failed().ok()) return machine->rank().failed();
      }
      time_.ns = next_ns();
      if (time_.ns > limit_ns) return internal_error("the simulated machines stand still");
      network_.advance_to(static_cast<int64_t>(time_.ns));
    }
    return {};
  }

  uint64_t next_ns() const {
    const int64_t network_ns = network_.next_event_ns();
    uint64_t next = static_cast<uint64_t>(network_ns);
    for (const auto& machine : machines_) next = std::min(next, machine->next_ns());
    return std::max(next, time_.ns);
  }

  const EngineScene& scene_;
  const Plan& plan_;
  VirtualTime time_;
  transport::LoopbackNetwork network_;
  Untouchable arena_;
  const std::shared_ptr<const std::vector<PlanEntry>> plans_;
  Introductions introductions_;
  std::vector<std::unique_ptr<CostedMachine>> machines_;
};

}  // namespace

Status can_engines(const Plan& plan) {
  if (plan.machines > kEnginesMax) {
    return invalid_argument("the engines play at most " + std::to_string(kEnginesMax) +
                            " machines, not " + std::to_string(plan.machines));
  }
  for (const Group& group : plan.groups) {
    for (const Segment& segment : group.segments) {
      if (!kernels::find_codec(segment.spec.codec)->variable_size) continue;
      return invalid_argument("the engines cannot play codec " + kernels::to_string(segment.spec) +
                              ": what it sends depends on values, and here are none");
    }
  }
  return {};
}

Result<EngineStep> step_of_engines(const EngineScene& scene, const Policy& policy,
                                   const Plan& plan) {
  CGX_RETURN_IF_ERROR(can_engines(plan));
  Cluster cluster(scene, policy, plan);
  CGX_RETURN_IF_ERROR(cluster.open());
  return cluster.step();
}

}  // namespace cgx::scheduler::sim
