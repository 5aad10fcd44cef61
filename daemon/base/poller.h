// One epoll set: where an agent sleeps. Each descriptor carries a tag that comes back when it is
// ready. Thread rule: wait() on the owner's thread; add, change and remove there too.
#pragma once

#include <sys/epoll.h>

#include <array>
#include <cstdint>
#include <span>

#include "proto/wire/unique_fd.h"

namespace cgx::daemon {

class Poller {
 public:
  struct Ready {
    uint64_t tag = 0;
    uint32_t events = 0;
  };

  Poller();

  Status add(int fd, uint32_t events, uint64_t tag);
  void change(int fd, uint32_t events, uint64_t tag);
  void remove(int fd);
  // Sleeps until something is ready or `timeout_ns` has passed (kNever: no limit). The span is
  // valid until the next call.
  std::span<const Ready> wait(uint64_t timeout_ns);

 private:
  static constexpr int kReadyMax = 64;
  UniqueFd epoll_;
  std::array<Ready, kReadyMax> ready_{};
};

}  // namespace cgx::daemon
