#include "daemon/gpu/held_jobs.h"

#include <algorithm>
#include <utility>

namespace cgx::daemon::gpu {

Status HeldJobs::push(std::vector<std::byte> message) {
  CGX_ASSIGN_OR_RETURN(JobMessage job, parse_job(message));
  const uint32_t operation = job.head.operation;
  operations_[operation].push_back({.message = std::move(message), .job = std::move(job)});
  return {};
}

// Of the operation that began first.
const JobMessage* HeldJobs::next() {
  next_ = std::find_if(operations_.begin(), operations_.end(),
                       [this](auto& each) { return may_begin(each.second.front()); });
  return next_ == operations_.end() ? nullptr : &next_->second.front().job;
}

void HeldJobs::pop() {
  next_->second.pop_front();
  if (next_->second.empty()) operations_.erase(next_);
}

bool HeldJobs::may_begin(Held& held) const {
  const auto before = std::pair(held.slices, held.inputs);
  const bool all = all_written(held);
  if (before != std::pair(held.slices, held.inputs)) held.seen = held.told = false;
  return all;
}

std::vector<HeldJobs::Awaited> HeldJobs::look() {
  std::vector<Awaited> awaited;
  for (auto& [number, jobs] : operations_) {
    Held& first = jobs.front();
    if (may_begin(first) || !std::exchange(first.seen, true) || std::exchange(first.told, true)) {
      continue;
    }
    awaited.push_back({first.job.head.ticket, static_cast<uint32_t>(first.slices),
                       static_cast<uint32_t>(first.inputs)});
  }
  return awaited;
}

// Once a word is there it stays.
bool HeldJobs::all_written(Held& held) const {
  for (; held.slices < held.job.slices.size(); ++held.slices, held.inputs = 0) {
    const std::span<const DevicePlace> inputs = held.job.slices[held.slices].inputs;
    for (; held.inputs < inputs.size(); ++held.inputs) {
      if (!memory_.is_written(inputs[held.inputs])) return false;
    }
  }
  return true;
}

std::vector<uint64_t> HeldJobs::end(const JobHead& operation) {
  const auto found = operations_.find(operation.operation);
  return found == operations_.end() ? std::vector<uint64_t>()
                                    : take_out(found, found->second.begin());
}

std::vector<uint64_t> HeldJobs::give_way(const JobHead& operation) {
  const auto found = operations_.find(operation.operation);
  if (found == operations_.end()) return {};
  return take_out(found, std::find_if(found->second.begin(), found->second.end(),
                                      [this](Held& held) { return !may_begin(held); }));
}

std::vector<uint64_t> HeldJobs::take_out(Operations::iterator operation,
                                         const Jobs::iterator& first) {
  Jobs& jobs = operation->second;
  std::vector<uint64_t> tickets;
  for (auto each = first; each != jobs.end(); ++each) tickets.push_back(each->job.head.ticket);
  jobs.erase(first, jobs.end());
  if (jobs.empty()) operations_.erase(operation);
  return tickets;
}

}  // namespace cgx::daemon::gpu
