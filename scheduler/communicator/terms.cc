#include "scheduler/communicator/terms.h"

#include <algorithm>

namespace cgx::scheduler {
namespace {

constexpr uint64_t kCallsMax = 1024;  // by which one machine may be ahead of another

}  // namespace

bool Terms::all_flushed() const {
  for (uint32_t k = 0; k < machines_.size(); ++k) {
    if (k != members_.machine && !machines_[k].flushed) return false;
  }
  return true;
}

void Terms::report(uint32_t machine, Report report) {
  machines_[machine].report = std::move(report);
  machines_[machine].reported = true;
}

bool Terms::all_reported() const {
  return std::all_of(machines_.begin(), machines_.end(),
                     [](const Machine& machine) { return machine.reported; });
}

bool Terms::all_reported_plan(uint64_t hash) const {
  return std::all_of(machines_.begin(), machines_.end(),
                     [hash](const Machine& machine) { return machine.report.plan_hash == hash; });
}

std::vector<uint32_t> Terms::awaited() const {
  if (has_reported() && !members_.coordinator()) return {0};
  std::vector<uint32_t> awaited;
  for (uint32_t k = 0; k < machines_.size(); ++k) {
    const bool heard = has_reported() ? machines_[k].reported : machines_[k].flushed;
    if (k != members_.machine && !heard) awaited.push_back(k);
  }
  return awaited;
}

// What a machine reports is not believed when the calls up to there could not all be failed.
Status Terms::check_reports() const {
  const uint64_t own = machines_[members_.machine].report.calls_end;
  for (uint32_t k = 0; k < machines_.size(); ++k) {
    const uint64_t calls_end = machines_[k].report.calls_end;
    if (calls_end <= own + kCallsMax) continue;
    return protocol_error(members_.machine_name(k) + " reports call " + std::to_string(calls_end) +
                          ", " + members_.machine_name(members_.machine) + " call " +
                          std::to_string(own) + "; at most " + std::to_string(kCallsMax) +
                          " lie between two machines");
  }
  return {};
}

Result<Start> Terms::conclude(const Status& why, bool has_groups) const {
  CGX_RETURN_IF_ERROR(check_reports());
  Start start{.code = why.code(), .text = why.message()};
  uint64_t results_end = UINT64_MAX, completed_end = 0;  // on all machines, on some machine
  std::vector<uint64_t> open, done;
  for (const Machine& machine : machines_) {
    const Report& report = machine.report;
    results_end = std::min(results_end, report.results_end);
    completed_end = std::max(completed_end, report.completed_end);
    start.calls_end = std::max(start.calls_end, report.calls_end);
    open.insert(open.end(), report.calls_open.begin(), report.calls_open.end());
    done.insert(done.end(), report.calls_done.begin(), report.calls_done.end());
  }
  const auto lost = [&](const std::string& what) {
    return Status(StatusCode::kSTEP_LOST,
                  what +
                      " completed on some machines only and cannot be redone; restore a checkpoint "
                      "(it failed because: " +
                      why.message() + ")");
  };
  if (results_end < completed_end && has_groups) {
    return lost("step " + std::to_string(results_end));
  }
  std::sort(done.begin(), done.end());
  for (const uint64_t call : open) {
    if (!std::binary_search(done.begin(), done.end(), call)) continue;
    return lost("call " + std::to_string(call));
  }
  start.first_step = results_end;
  return start;
}

Status Terms::check(const Start& start, bool has_groups) const {
  const Report& own = machines_[members_.machine].report;
  const bool step_fits =
      start.first_step >= own.completed_end && start.first_step <= own.results_end;
  const bool fits =
      has_reported() && (step_fits || !has_groups) && start.calls_end <= own.calls_end + kCallsMax;
  if (fits) return {};
  return protocol_error(
      "the coordinator starts a term at step " + std::to_string(start.first_step) + ", call " +
      std::to_string(start.calls_end) + "; this machine reported step " +
      std::to_string(own.results_end) + ", call " + std::to_string(own.calls_end));
}

void Terms::begin() {
  ++number_;
  for (Machine& machine : machines_) machine.flushed = machine.told = machine.reported = false;
}

bool Terms::keep_early(const wire::FrameHeader& header, std::span<const std::byte> payload) {
  constexpr size_t kEarlyEach = 4096, kBytesMax = 1 << 20;
  const size_t early_max = kEarlyEach * (machines_.size() - 1);
  const bool fits =
      header.term <= number_ + 1 && early_.size() < early_max && payload.size() <= kBytesMax;
  if (!fits) return false;
  early_.push_back({header, {payload.begin(), payload.end()}});
  early_bytes_ += sizeof(EarlyFrame) + payload.size();
  return true;
}

}  // namespace cgx::scheduler
