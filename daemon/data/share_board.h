// Where the daemon's doors write down who holds how much of what they give out, for operators to
// see. Thread rule: from anywhere.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "proto/wire/mutex.h"
#include "scheduler/shares.h"

namespace cgx::daemon {

class ShareBoard {
 public:
  void show(const scheduler::Share& share) {
    const MutexLock lock(mutex_);
    by_name_[share.name()] = share;
  }
  std::vector<scheduler::Share> shown() const {
    const MutexLock lock(mutex_);
    std::vector<scheduler::Share> all;
    for (const auto& [name, share] : by_name_) all.push_back(share);
    return all;
  }

 private:
  mutable Mutex mutex_;
  std::map<std::string, scheduler::Share> by_name_ CGX_GUARDED_BY(mutex_);
};

}  // namespace cgx::daemon
