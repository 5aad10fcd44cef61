// What may take long for one user's sake, done where it keeps only that user waiting: closing a
// descriptor that a client sent (a socket that lingers blocks close() as long as it likes), mapping
// and unmapping an arena of many GiB.
//
// Thread rule: run() and close() from anywhere. A user's tasks run one after another, in order, on
// a thread that lives as long as there are any, and its descriptors are closed on another such
// thread; different users' run beside each other.
//
// Invariants: a task may block for ever and hurts no other user; nobody waits for the threads, so
// a task owns all it touches and outlives this object if it must.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "daemon/base/unique_function.h"
#include "proto/wire/unique_fd.h"

namespace cgx::daemon {

class UserThreads {
 public:
  using Task = UniqueFunction<void()>;

  UserThreads();
  ~UserThreads();  // what was given is still done

  void run(uint32_t uid, Task task);
  void close(uint32_t uid, UniqueFd fd);
  size_t waiting(uint32_t uid) const;  // tasks not done and descriptors not closed yet

 private:
  struct Lanes;
  void run_in(uint64_t lane, Task task);
  std::shared_ptr<Lanes> lanes_;
};

}  // namespace cgx::daemon
