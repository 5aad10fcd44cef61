// What passes between those who order the daemon to stop and main, which stops it.
//
// Thread rule: any. Until main has begun, each order calls `wake` (a signal to this process), and
// the one that leaves least time counts. From then on an order changes nothing, unless it leaves no
// time: then main is to hurry.
#pragma once

#include <functional>

#include "daemon/base/stop_order.h"
#include "proto/wire/mutex.h"

namespace cgx::daemon {

class Stopper final : public StopPort {
 public:
  explicit Stopper(std::function<void()> wake) : wake_(std::move(wake)) {}

  void stop(const StopOrder& order) override;
  std::optional<std::vector<std::string>> cut_off(uint64_t within_ns) override;
  std::optional<Draining> draining() const override;

  // Main: the daemon drains from now on.
  StopOrder begin();
  void drains(const Draining& now);  // or has another end than it had
  bool hurries() const;              // there is no time left
  // Only the first time counts.
  void drained(const std::vector<std::string>& cut_off);

 private:
  const std::function<void()> wake_;
  mutable Mutex mutex_;
  Condition is_drained_;
  std::optional<StopOrder> order_ CGX_GUARDED_BY(mutex_);
  bool begun_ CGX_GUARDED_BY(mutex_) = false;
  bool hurries_ CGX_GUARDED_BY(mutex_) = false;
  std::optional<Draining> draining_ CGX_GUARDED_BY(mutex_);
  std::optional<std::vector<std::string>> cut_off_ CGX_GUARDED_BY(mutex_);
};

}  // namespace cgx::daemon
