#include "daemon/stopper.h"

#include <algorithm>
#include <chrono>

namespace cgx::daemon {

void Stopper::stop(const StopOrder& order) {
  {
    const MutexLock lock(mutex_);
    if (begun_) {
      hurries_ |= order.limit_ns == 0;
      return;
    }
    if (!order_) order_ = order;
    const bool sooner = order.limit_ns && *order.limit_ns < order_->limit_ns.value_or(UINT64_MAX);
    if (sooner) order_->limit_ns = order.limit_ns;
  }
  wake_();
}

StopOrder Stopper::begin() {
  const MutexLock lock(mutex_);
  begun_ = true;
  return order_.value_or(StopOrder());
}

void Stopper::drains(const Draining& now) {
  const MutexLock lock(mutex_);
  draining_ = now;
}

std::optional<Draining> Stopper::draining() const {
  const MutexLock lock(mutex_);
  return draining_;
}

bool Stopper::hurries() const {
  const MutexLock lock(mutex_);
  return hurries_;
}

void Stopper::drained(const std::vector<std::string>& cut_off) {
  const MutexLock lock(mutex_);
  if (!cut_off_) cut_off_ = cut_off;
  is_drained_.notify_all();
}

std::optional<std::vector<std::string>> Stopper::cut_off(uint64_t within_ns) {
  MutexLock lock(mutex_);
  const auto end = std::chrono::steady_clock::now() + std::chrono::nanoseconds(within_ns);
  while (!cut_off_ && is_drained_.wait_until(mutex_, end)) {
  }
  return cut_off_;
}

}  // namespace cgx::daemon
