// ForkGuard: what a forked child inherits is marked dead before the child runs a line of its own.
//
// Each guard belongs to one session. In the child its flag is set and its descriptors are closed,
// so the daemon sees the parent's end of life although children live on. Thread rule: any thread;
// the list of guards is locked around fork, so a child never sees it half changed.
#pragma once

#include <atomic>
#include <vector>

namespace cgx::client {

class ForkGuard {
 public:
  ForkGuard();
  ~ForkGuard();
  ForkGuard(const ForkGuard&) = delete;
  ForkGuard& operator=(const ForkGuard&) = delete;

  // True in a child of the process that made this guard.
  bool forked() const { return forked_.load(std::memory_order_relaxed); }
  // Descriptors to close in a child; the owner stays responsible for them in the parent.
  void close_in_child(int fd);
  void forget(int fd);

 private:
  friend struct ForkHandlers;

  std::atomic<bool> forked_{false};
  std::vector<int> descriptors_;
};

}  // namespace cgx::client
