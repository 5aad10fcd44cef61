#include "daemon/gpu/held_jobs.h"

#include <algorithm>
#include <utility>

namespace cgx::daemon::gpu {

Status HeldJobs::push(std::vector<std::byte> message) {
  CGX_ASSIGN_OR_RETURN(JobMessage job, parse_job(message));
  const uint8_t stream = job.head.stream;
  streams_[stream].push_back({.message = std::move(message), .job = std::move(job)});
  return {};
}

const JobMessage* HeldJobs::next() {
  for (uint32_t i = 0; i < kStreams; ++i, turn_ = (turn_ + 1) % kStreams) {
    std::deque<Held>& jobs = streams_[turn_];
    if (!jobs.empty() && may_begin(jobs.front())) return &jobs.front().job;
  }
  return nullptr;
}

void HeldJobs::pop() {
  streams_[turn_].pop_front();
  turn_ = (turn_ + 1) % kStreams;
}

// Once a word is there it stays.
bool HeldJobs::may_begin(Held& held) const {
  for (; held.slices < held.job.slices.size(); ++held.slices, held.inputs = 0) {
    const std::span<const DevicePlace> inputs = held.job.slices[held.slices].inputs;
    for (; held.inputs < inputs.size(); ++held.inputs) {
      if (!memory_.is_written(inputs[held.inputs])) return false;
    }
  }
  return true;
}

std::vector<uint64_t> HeldJobs::end(const JobHead& operation) {
  std::vector<uint64_t> tickets;
  if (operation.stream >= kStreams) return tickets;
  std::erase_if(streams_[operation.stream], [&](const Held& each) {
    const bool ends = each.job.head.operation == operation.operation;
    if (ends) tickets.push_back(each.job.head.ticket);
    return ends;
  });
  return tickets;
}

bool HeldJobs::empty() const {
  return std::all_of(streams_.begin(), streams_.end(),
                     [](const std::deque<Held>& jobs) { return jobs.empty(); });
}

}  // namespace cgx::daemon::gpu
