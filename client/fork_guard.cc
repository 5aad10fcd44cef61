#include "client/fork_guard.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <mutex>

namespace cgx::client {
namespace {

struct Registry {
  std::mutex mutex;
  std::vector<ForkGuard*> guards;
};

// Never destroyed: fork may happen during exit.
Registry& registry();

}  // namespace

// The three calls of pthread_atfork. The child's only does what is safe after fork: stores and
// close().
struct ForkHandlers {
  static void before() { registry().mutex.lock(); }
  static void in_parent() { registry().mutex.unlock(); }
  static void in_child() {
    for (ForkGuard* guard : registry().guards) {
      guard->forked_.store(true, std::memory_order_relaxed);
      for (int fd : guard->descriptors_) ::close(fd);
      guard->descriptors_.clear();
    }
    registry().mutex.unlock();
  }
};

namespace {

Registry& registry() {
  static Registry* const instance = [] {
    auto* made = new Registry;
    ::pthread_atfork(ForkHandlers::before, ForkHandlers::in_parent, ForkHandlers::in_child);
    return made;
  }();
  return *instance;
}

}  // namespace

ForkGuard::ForkGuard() {
  const std::lock_guard lock(registry().mutex);
  registry().guards.push_back(this);
}

ForkGuard::~ForkGuard() {
  const std::lock_guard lock(registry().mutex);
  std::erase(registry().guards, this);
}

void ForkGuard::close_in_child(int fd) {
  const std::lock_guard lock(registry().mutex);
  descriptors_.push_back(fd);
}

void ForkGuard::forget(int fd) {
  const std::lock_guard lock(registry().mutex);
  std::erase(descriptors_, fd);
}

}  // namespace cgx::client
