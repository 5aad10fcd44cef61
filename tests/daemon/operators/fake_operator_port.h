// An engine that shows what a test put in and remembers what it was asked.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <vector>

#include "daemon/operators/operator_port.h"

namespace cgx::daemon {

class FakeOperatorPort final : public OperatorPort {
 public:
  struct Change {
    CommunicatorName target;
    scheduler::Policy policy;
    bool dry_run = false;
    uint64_t expected_version = 0;
    uint64_t timeout_ns = 0;
  };

  Result<scheduler::Snapshot> snapshot(uint64_t timeout_ns) override {
    std::lock_guard lock(mutex_);
    snapshot_timeout_ns_ = timeout_ns;
    if (!failure_.ok()) return failure_;
    return shown_;
  }

  Result<scheduler::RecorderReader::Reading> events(uint64_t from) override {
    std::lock_guard lock(mutex_);
    if (!failure_.ok()) return failure_;
    const uint64_t first = std::min<uint64_t>(std::max(from, oldest_), oldest_ + events_.size());
    scheduler::RecorderReader::Reading reading{.first = first, .events = {}};
    const auto skipped = static_cast<int64_t>(first - oldest_);
    reading.events.assign(events_.begin() + skipped, events_.end());
    return reading;
  }

  Result<scheduler::PolicyChange> apply_policy(const CommunicatorName& target,
                                               const scheduler::Policy& policy, bool dry_run,
                                               uint64_t expected_version,
                                               const Patience& patience) override {
    std::unique_lock lock(mutex_);
    changes_.push_back({target, policy, dry_run, expected_version, patience.timeout_ns});
    changed_.notify_all();
    released_.wait(lock, [&] { return !hold_; });
    if (!failure_.ok()) return failure_;
    for (auto& communicator : shown_.communicators) {
      const bool changed = show_switches_ && !dry_run && communicator.job == target.job;
      if (changed) communicator.switches.push_back({answer_.epoch, answer_.switch_step});
    }
    return answer_;
  }

  Result<scheduler::Explanation> explain(const CommunicatorName&, const std::string&,
                                         const Patience&) override {
    std::lock_guard lock(mutex_);
    if (!unpriced_.ok()) return unpriced_;
    return explanation_;
  }
  Result<scheduler::JobProfile> profile(const CommunicatorName&, const Patience&) override {
    const std::lock_guard lock(mutex_);
    return profile_;
  }
  void profiled(Result<scheduler::JobProfile> profile) {
    const std::lock_guard lock(mutex_);
    profile_ = std::move(profile);
  }
  Result<scheduler::WhatIf> what_if(const CommunicatorName&, const scheduler::Policy& policy,
                                    uint32_t machines, const Patience&) override {
    std::lock_guard lock(mutex_);
    if (!unpriced_.ok()) return unpriced_;
    scheduler::WhatIf found = what_if_;
    found.plan = kernels::to_string(policy.default_codec) + " on " + std::to_string(machines);
    return found;
  }
  void price(const scheduler::Explanation& explanation, const scheduler::WhatIf& what_if) {
    std::lock_guard lock(mutex_);
    explanation_ = explanation;
    what_if_ = what_if;
  }
  void price_nothing(const Status& why) {
    std::lock_guard lock(mutex_);
    unpriced_ = why;
  }

  void show(const scheduler::Snapshot& snapshot) {
    std::lock_guard lock(mutex_);
    shown_ = snapshot;
  }
  // Those before number `oldest` are forgotten.
  void show_events(const std::vector<scheduler::Event>& events, uint64_t oldest = 0) {
    std::lock_guard lock(mutex_);
    events_ = events;
    oldest_ = oldest;
  }
  void fail(const Status& status) {
    std::lock_guard lock(mutex_);
    failure_ = status;
  }
  void answer(const scheduler::PolicyChange& change) {
    std::lock_guard lock(mutex_);
    answer_ = change;
  }
  // Whether what was applied is seen to take force.
  void show_switches(bool on) {
    std::lock_guard lock(mutex_);
    show_switches_ = on;
  }
  void hold(bool on) {
    std::lock_guard lock(mutex_);
    hold_ = on;
    released_.notify_all();
  }
  void await_change() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !changes_.empty(); });
  }
  std::vector<Change> changes() {
    std::lock_guard lock(mutex_);
    return changes_;
  }
  uint64_t snapshot_timeout_ns() {
    std::lock_guard lock(mutex_);
    return snapshot_timeout_ns_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable released_, changed_;
  scheduler::Snapshot shown_;
  std::vector<scheduler::Event> events_;
  uint64_t oldest_ = 0;
  scheduler::PolicyChange answer_{2, 4, 1201, 1 << 20, {}};
  scheduler::Explanation explanation_;
  scheduler::WhatIf what_if_;
  Result<scheduler::JobProfile> profile_ = scheduler::JobProfile();
  Status failure_, unpriced_;
  bool hold_ = false, show_switches_ = true;
  std::vector<Change> changes_;
  uint64_t snapshot_timeout_ns_ = 0;
};

// Two users: 1000 trains "resnet" (dp and tp), 2000 trains "bert"; rank 3 of resnet/dp is late.
inline scheduler::Snapshot two_users() {
  scheduler::Snapshot snapshot;
  snapshot.uptime_ns = 3'725'000'000'000;
  snapshot.duty = {.rounds = 12,
                   .busy_ns = 372'500'000'000,
                   .cpu_ns = 400'000'000'000,
                   .longest = {9'000'000, 9'500'000, "a commit"},
                   .longest_lately = {1'500'000, 2'000'000, "gradients and frames"}};
  snapshot.counters[static_cast<size_t>(scheduler::Counter::kgradient_bytes)] = 8 << 20;
  snapshot.counters[static_cast<size_t>(scheduler::Counter::kencoded_bytes_sent)] = 1 << 20;
  const auto add = [&](const char* job, const char* name, uint32_t uid, uint64_t id) {
    scheduler::CommunicatorSnapshot one;
    one.job = job;
    one.name = name;
    one.uid = uid;
    one.id = id;
    one.index = static_cast<uint16_t>(id);
    one.ranks = 4;
    one.machines = 2;
    one.state = "running";
    one.step = 1199;
    one.epoch = 3;
    one.policy_version = 1;
    one.operations = 10;
    one.exchange_ns = 50'000'000;
    one.gradient_bytes = 4 << 20;
    one.wire_bytes_sent = 1 << 20;
    one.reserved_bytes = 3 << 20;
    one.groups = {{0, 2, 4 << 20, 1 << 19}};
    one.tensors = {
        {"layer.0.weight", DType::kF32, 4096, {64, 64}, 0, one.policy.default_codec, "default"}};
    one.switches = {{2, 40, 1, 0xdef},
                    {3, 1000, 1, 0xabc, {scheduler::kByPolicy, "alice: \x1b[2Jless"}}};
    snapshot.communicators.push_back(one);
  };
  add("resnet", "dp", 1000, 1);
  add("resnet", "tp", 1000, 2);
  add("bert", "dp", 2000, 3);
  snapshot.communicators[0].rank_list = {{0, 0, 1199, 0, true}, {3, 1, 0, 12'300'000'000, false}};
  snapshot.peers = {
      {"resnet", "node2", "10.0.0.2:7070", 1000, 1, "up", 120'000'000, 90'000, 5, 6, 700, 800, 1},
      {"bert", "node3", "10.0.0.3:7070", 2000, 1, "lost", 9'000'000'000}};
  snapshot.sessions = {{1000, 4711, "resnet", 1 << 30, 3, 3}, {2000, 4712, "bert", 1 << 30, 1, 1}};
  return snapshot;
}

}  // namespace cgx::daemon
