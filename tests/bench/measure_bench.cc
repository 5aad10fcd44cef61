// What it takes to record an event of a step and to measure steps by it, as the coordinator's
// daemon does: the clock is read for spans and frames. Processor time; one line of JSON.
//
//   bench_measure [ROUNDS]
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "scheduler/planners/answer_meter.h"
#include "scheduler/planners/step_meter.h"
#include "scheduler/recorder.h"

namespace cgx::bench {
namespace {

using namespace scheduler;

constexpr uint64_t kEvents = 1 << 16;  // as recorder.events by default
constexpr uint32_t kSteps = 20'000, kParts = 2, kTensors = 1;

uint64_t clock_ns() {
  return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
}

double thread_ns() {  // processor time
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return 1e9 * static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec);
}

struct Measurement {
  void span(EventKind kind, uint32_t step, uint32_t part) {
    const uint64_t began_ns = clock_ns();
    took({.time_ns = began_ns, .step = step, .kind = kind, .a = part, .b = clock_ns() - began_ns});
  }
  void frame(EventKind kind, uint32_t step, uint32_t part) {
    wire::FrameHeader header;
    header.step = step;
    header.part = part;
    took({.time_ns = now_ns, .step = step, .kind = kind, .peer = 1, .b = part});
    kind == EventKind::ksent ? answers.sent(1, header, 1 << 16, clock_ns())
                             : answers.received(1, header, 1 << 16, clock_ns());
  }
  void took(const Event& event) {
    ++events;
    recorder.record(event);
    if (const auto sample = steps.take(event, now_ns)) arithmetic_ns += sample->arithmetic_ns;
  }
  // Of two machines: a share of each part goes there, and its result comes back.
  void play(uint32_t step) {
    now_ns = clock_ns();
    took({.time_ns = now_ns, .step = step, .kind = EventKind::karrival});
    took({.time_ns = now_ns, .step = step, .kind = EventKind::kended});
    took({.time_ns = now_ns, .step = step, .kind = EventKind::kbegun});
    for (uint32_t part = 0; part < kParts; ++part) {
      span(EventKind::kencode, step, part);
      frame(EventKind::ksent, step, part);
      frame(EventKind::kreceived, step, part);
      span(EventKind::kreduce, step, part);
      span(EventKind::kdecode, step, part);
    }
    took({.time_ns = now_ns, .step = step, .kind = EventKind::kcompleted});
    took({.time_ns = now_ns, .step = step, .kind = EventKind::kstep_completed, .b = 1});
  }
  double ns_per_event() {
    steps.begin(kTensors);
    events = 0;
    const double start_ns = thread_ns();
    for (uint32_t step = 0; step < kSteps; ++step) play(step);
    return (thread_ns() - start_ns) / static_cast<double>(events);
  }

  std::vector<uint64_t> memory = std::vector<uint64_t>(recorder_bytes(kEvents) / sizeof(uint64_t));
  Recorder recorder{std::as_writable_bytes(std::span(memory))};
  StepMeter steps;
  AnswerMeter answers;
  uint64_t now_ns = 0, events = 0;
  double arithmetic_ns = 0;
};

int main_of(int rounds) {
  Measurement measurement;
  std::vector<double> ns;
  for (int round = 0; round < rounds; ++round) ns.push_back(measurement.ns_per_event());
  std::sort(ns.begin(), ns.end());
  if (measurement.arithmetic_ns <= 0) return std::fprintf(stderr, "nothing was measured\n"), 1;
  std::printf("{\"ns_per_event\": %.2f}\n", ns[ns.size() / 2]);
  return 0;
}

}  // namespace
}  // namespace cgx::bench

int main(int argc, char** argv) {
  return cgx::bench::main_of(argc > 1 ? std::max(1, std::atoi(argv[1])) : 9);
}
