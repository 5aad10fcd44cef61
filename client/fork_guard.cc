#include "client/fork_guard.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>

#include "proto/wire/mutex.h"

namespace cgx::client {
namespace {

struct Registry {
  Mutex mutex;
  std::vector<ForkGuard*> guards CGX_GUARDED_BY(mutex);
};

// Never destroyed: fork may happen during exit.
Registry& registry();

}  // namespace

// The three calls of pthread_atfork: the first takes the mutex, one of the others gives it up
// (clang does not follow that). The child's only does what is safe after fork: stores and
// close().
struct ForkHandlers {
  static void before() CGX_THREAD_RULE(no_thread_safety_analysis) { registry().mutex.lock(); }
  static void in_parent() CGX_THREAD_RULE(no_thread_safety_analysis) { registry().mutex.unlock(); }
  static void in_child() CGX_THREAD_RULE(no_thread_safety_analysis) {
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
  Registry& known = registry();
  const MutexLock lock(known.mutex);
  known.guards.push_back(this);
}

ForkGuard::~ForkGuard() {
  Registry& known = registry();
  const MutexLock lock(known.mutex);
  std::erase(known.guards, this);
}

void ForkGuard::close_in_child(int fd) {
  const MutexLock lock(registry().mutex);
  descriptors_.push_back(fd);
}

void ForkGuard::forget(int fd) {
  const MutexLock lock(registry().mutex);
  std::erase(descriptors_, fd);
}

}  // namespace cgx::client
