// Looks at the daemon about once a second while a metrics port is configured, and remembers five
// minutes of it: what the status page draws, and what histograms are made of.
//
// Thread rule: create and destroy on one thread; everything else from any thread. It asks the
// engine for snapshots like an operator, and reads the recorder without asking.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <thread>
#include <tuple>
#include <utility>

#include "daemon/operators/operator_port.h"
#include "daemon/operators/tally.h"
#include "proto/wire/mutex.h"

namespace cgx::daemon {

class Watch {
 public:
  static constexpr size_t kSamplesMax = 300;

  struct Sample {  // of one look, about what happened since the one before
    uint64_t time_ns = 0;
    double step_ms = 0, exchange_ms = 0;  // of its steps on average; 0: there was none
    double raw_rate = 0, sent_rate = 0;   // bytes a second
  };
  struct JobPast {
    std::deque<Sample> samples;
    uint64_t steps = 0, gradient_bytes = 0, sent_bytes = 0;  // at the last look
    uint64_t steps_told = 0, step_ns = 0, exchange_ns = 0;   // by events
    bool seen = false;
  };
  struct LinkSample {
    uint64_t time_ns = 0;
    double out_rate = 0, in_rate = 0;  // bytes a second
  };
  struct LinkPast {
    std::deque<LinkSample> samples;
    uint64_t sent = 0, received = 0;
    bool seen = false;
  };
  using JobKey = std::pair<uint16_t, uint64_t>;  // index and creation of a communicator
  // Owner, job, communicator and machine, the GPU here, address: what has counters of its own.
  using LinkKey = std::tuple<uint32_t, std::string, std::string, std::string, std::string>;
  static LinkKey key_of(const scheduler::PeerSnapshot& one) {
    return {one.uid, one.job, one.name, one.device, one.address};
  }

  // Without `job_names` it knows jobs by number only (daemon/operators/concealed.h).
  Watch(OperatorPort& port, bool job_names);
  ~Watch();

  // `use(tally, jobs, links, recorded)` with everything up to now, under the lock; `recorded`:
  // false where nothing is, so that the tally knows nothing.
  template <typename Use>
  auto look(Use use) {
    const MutexLock lock(mutex_);
    const bool recorded = take_events();
    return use(tally_, jobs_, links_, recorded);
  }

 private:
  void run();
  bool take_events() CGX_REQUIRES(mutex_);
  void take_snapshot(const scheduler::Snapshot& snapshot, uint64_t now_ns) CGX_REQUIRES(mutex_);
  bool ended_within(std::chrono::nanoseconds time) CGX_REQUIRES(mutex_);

  OperatorPort& port_;
  const bool job_names_;
  Mutex mutex_;
  Condition ended_;
  bool ending_ CGX_GUARDED_BY(mutex_) = false;
  Tally tally_ CGX_GUARDED_BY(mutex_);
  uint64_t next_event_ CGX_GUARDED_BY(mutex_) = 0;
  uint64_t last_look_ns_ CGX_GUARDED_BY(mutex_) = 0;
  std::map<JobKey, JobPast> jobs_ CGX_GUARDED_BY(mutex_);
  std::map<LinkKey, LinkPast> links_ CGX_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace cgx::daemon
