// Looks at the daemon about once a second while a metrics port is configured, and remembers five
// minutes of it: what the status page draws, and what histograms are made of.
//
// Thread rule: create and destroy on one thread; everything else from any thread. It asks the
// engine for snapshots like an operator, and reads the recorder without asking.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "daemon/operators/operator_port.h"
#include "daemon/operators/tally.h"

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
  using JobKey = std::pair<uint16_t, uint64_t>;         // index and creation of a communicator
  using LinkKey = std::pair<std::string, std::string>;  // job and address

  // Without `job_names` it knows jobs by number only (daemon/operators/concealed.h).
  Watch(OperatorPort& port, bool job_names);
  ~Watch();

  // `use(tally, jobs, links, recorded)` with everything up to now, under the lock; `recorded`:
  // false where nothing is, so that the tally knows nothing.
  template <typename Use>
  auto look(Use use) {
    const std::lock_guard lock(mutex_);
    const bool recorded = take_events();
    return use(tally_, jobs_, links_, recorded);
  }

 private:
  void run();
  bool take_events();
  void take_snapshot(const scheduler::Snapshot& snapshot, uint64_t now_ns);

  OperatorPort& port_;
  const bool job_names_;
  std::mutex mutex_;
  std::condition_variable ended_;
  bool ending_ = false;
  Tally tally_;
  uint64_t next_event_ = 0, last_look_ns_ = 0;
  std::map<JobKey, JobPast> jobs_;
  std::map<LinkKey, LinkPast> links_;
  std::thread thread_;
};

}  // namespace cgx::daemon
