// What may take long for one holder's sake (holder.h), done where it keeps only that holder
// waiting: closing a descriptor that a client sent (a socket that lingers blocks close() as long as
// it likes), mapping and unmapping an arena of many GiB.
//
// Thread rule: run(), close() and end() from anywhere. A holder's tasks of one lane run one after
// another, in order, on a thread that lives as long as there are any, and its descriptors and its
// connections are closed on two other such threads; different holders' and different lanes' run
// beside each other.
//
// Invariants: a task may block for ever and hurts no other holder; lanes of a holder, and so its
// threads, are limited; nobody waits for the threads, so a task owns all it touches and outlives
// this object if it must; no descriptor that a client sent is closed on a thread of tasks; however
// many connections of a holder wait for being closed, they take some hundreds of descriptors.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "daemon/base/unique_function.h"
#include "proto/wire/unique_fd.h"

namespace cgx::daemon {

class UserThreads {
 public:
  using Task = UniqueFunction<void()>;
  using FdTask = UniqueFunction<void(const std::vector<UniqueFd>&)>;
  static constexpr size_t kLanesMax = 32;  // of a holder; who names none is in the first

  UserThreads();
  ~UserThreads();  // what was given is still done

  void run(const std::string& holder, Task task);
  // With descriptors that a client sent; they are closed as close() does once it has run. A lane
  // that would be one too many is the first one.
  void run(const std::string& holder, std::vector<UniqueFd> fds, FdTask task,
           const std::string& lane = {});
  void close(const std::string& holder, UniqueFd fd);
  // A connection over a Unix socket: the other side sees its end at once. It is closed here unless
  // descriptors wait in it unread.
  void end(const std::string& holder, UniqueFd connection);
  size_t waiting(const std::string& holder) const;  // not done and not closed yet

 private:
  struct Lanes;
  std::shared_ptr<Lanes> lanes_;
};

}  // namespace cgx::daemon
