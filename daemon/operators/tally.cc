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
  const auto add = [&](Phase phase) {
    if (event.b > 0) job.phases[static_cast<size_t>(phase)].add(event.b);
  };
  switch (event.kind) {
    case EventKind::karrival:
      if (Operation& one = operation_of(open, event); one.asked_ns == 0) {
        one.asked_ns = event.time_ns;
      }
      break;
    case EventKind::kbegun:
      begin(open, event);
      break;
    case EventKind::kencode:
      add(Phase::kencode);
      break;
    case EventKind::kreduce:
    case EventKind::kcombine:
      add(Phase::kreduce);
      break;
    case EventKind::kdecode:
      add(Phase::kdecode);
      break;
    case EventKind::ksent:
      if (Operation& one = operation_of(open, event); one.sent_ns == 0) {
        one.sent_ns = event.time_ns;
      }
      break;
    case EventKind::kreceived:
      operation_of(open, event).received_ns = event.time_ns;
      break;
    case EventKind::kcompleted:
      complete(open, event);
      break;
    case EventKind::kended:
      if (event.group != Event::kCall) {
        step_of(open, event).ended_ns.emplace(event.peer, event.time_ns);
      }
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

Tally::Operation& Tally::operation_of(Open& open, const Event& event) {
  if (open.operations.size() > kOperationsMax) open.operations.clear();
  return open.operations[{event.step, event.group}];
}

Tally::Step& Tally::step_of(Open& open, const Event& event) {
  if (open.steps.size() > kStepsMax) open.steps.clear();
  return open.steps[event.step];
}

void Tally::begin(Open& open, const Event& event) {
  Operation& one = operation_of(open, event);
  one.begun_ns = event.time_ns;
  if (one.asked_ns != 0) {
    open.job.phases[static_cast<size_t>(Phase::kwait)].add(event.time_ns - one.asked_ns);
  }
  if (event.group == Event::kCall) return;
  Step& step = step_of(open, event);
  if (step.begun_ns == 0) step.begun_ns = event.time_ns;
}

// A call ends here, an operation of a step with the step.
void Tally::complete(Open& open, const Event& event) {
  if (event.group != Event::kCall) return;
  const auto over = open.operations.find({event.step, event.group});
  if (over == open.operations.end()) return;
  operation_over(open, over->second);
  open.operations.erase(over);
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
