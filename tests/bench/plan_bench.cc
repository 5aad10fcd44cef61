// What a full search for a plan takes: processor time of one thread, for tables as large as models
// have. One line of JSON a case.
//
//   bench_plan [ROUNDS]
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "scheduler/planners/choose.h"
#include "scheduler/planners/survey.h"
#include "scheduler/sim/cost_file.h"

namespace cgx::bench {
namespace {

using namespace scheduler;

double thread_seconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// Layers of a transformer: large matrices with a vector each, which arrive at an even pace.
struct Job {
  explicit Job(uint32_t tensors) {
    TensorTable made;
    for (uint32_t i = 0; i < tensors; ++i) {
      const bool vector = i % 2 == 1;
      const uint64_t elements = vector ? 1024 : uint64_t{1024} << (i / 2 % 3 + 9);
      std::vector<uint64_t> shape = {elements};
      if (!vector) shape = {elements / 1024, 1024};
      made.push_back({.name = "layer" + std::to_string(i), .elements = elements, .shape = shape});
    }
    table = std::make_shared<TensorTable>(std::move(made));
    order = reverse_registration(tensors);
    measured.arrival_ns.resize(tensors);
    for (uint32_t i = 0; i < tensors; ++i) {
      measured.arrival_ns[order[i]] = 200e3f * static_cast<float>(i / 2);
    }
    measured.step_ns = 250e6;
    measured.period_ns = 300e6;
    measured.arithmetic_ns = 20e6;
  }
  std::shared_ptr<const TensorTable> table;
  std::vector<uint32_t> order;
  StepSample measured;
};

// Five codecs, two collectives: ten options a tensor.
std::vector<CodecSpec> ten_options() {
  std::vector<CodecSpec> menu = default_menu();
  menu.push_back({.codec = 3, .bits = 6, .bucket = 512});
  menu.push_back({.codec = 3, .bits = 5, .bucket = 512});
  return menu;
}

// A survey as mode auto asks for it: the timeline fitted, codecs, ways and boundaries searched.
Result<double> search(const Job& job, const MachineCosts& costs) {
  Policy policy;
  policy.mode = PlanMode::kAuto;
  policy.menu = ten_options();
  CGX_ASSIGN_OR_RETURN(const FactsPtr running, make_facts({.table = job.table,
                                                           .policy = policy,
                                                           .epoch = 1,
                                                           .policy_version = 1,
                                                           .order = job.order,
                                                           .machines = 2,
                                                           .slab_bytes = 256 * 1024}));
  SurveyQuestion question{.running = running,
                          .measured = job.measured,
                          .order = job.order,
                          .machines = 2,
                          .slab_bytes = 256 * 1024,
                          .trip_ns = 50'000,
                          .costs = std::make_shared<const MachineCosts>(costs)};
  const double start = thread_seconds();
  CGX_RETURN_IF_ERROR(make_survey(std::move(question)).status());
  return thread_seconds() - start;
}

int main_of(int rounds) {
  const Result<MachineCosts> costs =
      sim::parse_costs(sim::builtin_costs(), "the built-in table", "");
  if (!costs.ok()) return std::fprintf(stderr, "%s\n", costs.status().message().c_str()), 1;
  for (const uint32_t tensors : {161u, 314u}) {
    const Job job(tensors);
    std::vector<double> seconds;
    for (int round = 0; round < rounds; ++round) {
      const Result<double> took = search(job, *costs);
      if (!took.ok()) return std::fprintf(stderr, "%s\n", took.status().message().c_str()), 1;
      seconds.push_back(*took);
    }
    std::sort(seconds.begin(), seconds.end());
    std::printf("{\"tensors\": %u, \"options\": 10, \"cpu_ms\": %.3f}\n", tensors,
                1e3 * seconds[seconds.size() / 2]);
  }
  return 0;
}

}  // namespace
}  // namespace cgx::bench

int main(int argc, char** argv) {
  return cgx::bench::main_of(argc > 1 ? std::max(1, std::atoi(argv[1])) : 5);
}
