// Jobs that have come and not begun, by operation: each waits until those in front of it have begun
// and its trainers' streams have written their words. So no stream of the device ever waits for a
// trainer, whatever the driver then waits for a stream with.
//
// Thread rule: the worker's main thread. As many as cgxd has asked for.
#pragma once

#include <deque>
#include <map>
#include <vector>

#include "daemon/gpu/device_memory.h"
#include "daemon/gpu/job_message.h"

namespace cgx::daemon::gpu {

class HeldJobs {
 public:
  explicit HeldJobs(const DeviceMemory& memory) : memory_(memory) {}

  // An error: the message is no job.
  Status push(std::vector<std::byte> message);
  // One that may begin, until it is popped; null: none may.
  const JobMessage* next();
  void pop();
  // Takes out what is left of an operation, or that from the first job on that may not begin, and
  // returns the tickets.
  std::vector<uint64_t> end(const JobHead& operation);
  std::vector<uint64_t> give_way(const JobHead& operation);
  // What each operation's first job waits for, where that is the same as at the last look; once.
  struct Awaited {
    uint64_t ticket = 0;
    uint32_t slice = 0, input = 0;
  };
  std::vector<Awaited> look();
  bool empty() const { return operations_.empty(); }
  void clear() { operations_.clear(); }

 private:
  struct Held {
    std::vector<std::byte> message;
    JobMessage job;                   // in the message
    size_t slices = 0, inputs = 0;    // so many whose words are there, and of the next slice
    bool seen = false, told = false;  // by look(), since another one has come
  };
  using Jobs = std::deque<Held>;
  using Operations = std::map<uint32_t, Jobs>;  // none of them empty
  bool may_begin(Held& held) const;
  bool all_written(Held& held) const;
  std::vector<uint64_t> take_out(Operations::iterator operation, const Jobs::iterator& first);

  const DeviceMemory& memory_;
  Operations operations_;
  Operations::iterator next_;
};

}  // namespace cgx::daemon::gpu
