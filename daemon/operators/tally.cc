#include "daemon/operators/tally.h"

#include <algorithm>

namespace cgx::daemon {
namespace {

using scheduler::Event;
using scheduler::EventKind;

constexpr size_t kMarksMax = 64;
constexpr size_t kOperationsMax = 16'384;  // of steps that failed and were never over
constexpr size_t kStepsMax = 256;
constexpr double kNews = 0.2;  // weight of the last step in a rank's lateness

}  // namespace

void Histogram::add(uint64_t ns) {
  const auto* const place = std::lower_bound(kBoundsNs.begin(), kBoundsNs.end(), ns);
  ++counts_[static_cast<size_t>(place - kBoundsNs.begin())];
  ++count_;
  sum_ns_ += ns;
}

uint64_t Histogram::up_to(size_t i) const {
  uint64_t count = 0;
  for (size_t bucket = 0; bucket <= i; ++bucket) count += counts_[bucket];
  return count;
}

const Tally::Job* Tally::find(uint16_t index, uint64_t created_ns) const {
  const auto found = open_.find(index);
  const bool same = found != open_.end() && found->second.made_ns >= created_ns;
  return same ? &found->second.job : nullptr;
}

void Tally::take(const Event& event) {
  if (event.kind == EventKind::kmade) {
    open_[event.communicator] =
        Open{.job = {}, .made_ns = event.time_ns, .operations = {}, .steps = {}};
  }
  const auto found = open_.find(event.communicator);
  if (found == open_.end()) return;  // its beginning was forgotten before it was read
  Open& open = found->second;
  Job& job = open.job;
  const auto phase = [&](Phase one) -> Histogram& { return job.phases[static_cast<size_t>(one)]; };
  const auto operation = [&]() -> Operation& {
    if (open.operations.size() > kOperationsMax) open.operations.clear();
    return open.operations[{event.step, event.group}];
  };
  const auto step = [&]() -> Step& {
    if (open.steps.size() > kStepsMax) open.steps.clear();
    return open.steps[event.step];
  };
  const bool of_call = event.group == Event::kCall;
  switch (event.kind) {
    case EventKind::karrival:
      if (Operation& one = operation(); one.asked_ns == 0) one.asked_ns = event.time_ns;
      break;
    case EventKind::kbegun: {
      Operation& one = operation();
      one.begun_ns = event.time_ns;
      if (one.asked_ns != 0) phase(Phase::kwait).add(event.time_ns - one.asked_ns);
      if (!of_call && step().begun_ns == 0) step().begun_ns = event.time_ns;
      break;
    }
    case EventKind::kencode:
      if (event.b > 0) phase(Phase::kencode).add(event.b);
      break;
    case EventKind::kreduce:
    case EventKind::kcombine:
      if (event.b > 0) phase(Phase::kreduce).add(event.b);
      break;
    case EventKind::kdecode:
      if (event.b > 0) phase(Phase::kdecode).add(event.b);
      break;
    case EventKind::ksent:
      if (Operation& one = operation(); one.sent_ns == 0) one.sent_ns = event.time_ns;
      break;
    case EventKind::kreceived:
      operation().received_ns = event.time_ns;
      break;
    case EventKind::kcompleted:
      if (!of_call) break;
      if (const auto over = open.operations.find({event.step, event.group});
          over != open.operations.end()) {
        operation_over(open, over->second);
        open.operations.erase(over);
      }
      break;
    case EventKind::kended:
      if (!of_call) step().ended_ns.emplace(event.peer, event.time_ns);
      break;
    case EventKind::kstep_completed:
      step_over(open, event);
      break;
    case EventKind::kswitched:
    case EventKind::klate:
    case EventKind::kterm:
      mark(job, event, event.b);
      break;
    case EventKind::kfailed:
    case EventKind::klink_lost:
      mark(job, event, event.a);
      break;
    case EventKind::kclosed:
      open_.erase(found);
      break;
    case EventKind::kmade:
    case EventKind::kready:
    case EventKind::klink_up:
    case EventKind::kCount:
      break;
  }
}

void Tally::operation_over(Open& open, const Operation& operation) {
  if (operation.sent_ns == 0 || operation.received_ns < operation.sent_ns) return;
  open.job.phases[static_cast<size_t>(Phase::kwire)].add(operation.received_ns - operation.sent_ns);
}

void Tally::step_over(Open& open, const Event& event) {
  for (auto one = open.operations.begin(); one != open.operations.end();) {
    const bool of_step = one->first.first == event.step && one->first.second != Event::kCall;
    if (of_step) operation_over(open, one->second);
    one = of_step ? open.operations.erase(one) : std::next(one);
  }
  const auto found = open.steps.find(event.step);
  Job& job = open.job;
  if (job.step_end_ns != 0) {
    ++job.steps;
    job.step_ns += event.time_ns - job.step_end_ns;
  }
  job.step_end_ns = event.time_ns;
  if (found == open.steps.end()) return;
  const Step& step = found->second;
  if (step.begun_ns != 0 && event.time_ns > step.begun_ns) {
    const uint64_t ns = event.time_ns - step.begun_ns;
    job.exchange_ns += ns;
    job.phases[static_cast<size_t>(Phase::kexchange)].add(ns);
  }
  uint64_t first = UINT64_MAX;
  for (const auto& [rank, ns] : step.ended_ns) first = std::min(first, ns);
  for (const auto& [rank, ns] : step.ended_ns) {
    double& late = job.late_ns[rank];
    late += kNews * (static_cast<double>(ns - first) - late);
  }
  open.steps.erase(open.steps.begin(), std::next(found));
}

void Tally::mark(Job& job, const Event& event, uint64_t value) {
  job.marks.push_back({event.time_ns, event.kind, value, event.peer});
  if (job.marks.size() > kMarksMax) job.marks.pop_front();
}

}  // namespace cgx::daemon
