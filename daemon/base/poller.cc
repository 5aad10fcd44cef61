#include "daemon/base/poller.h"

#include "daemon/base/clock.h"

namespace cgx::daemon {

Poller::Poller() : epoll_(::epoll_create1(EPOLL_CLOEXEC)) {
  CGX_ASSERT(epoll_);
}

Status Poller::add(int fd, uint32_t events, uint64_t tag) {
  epoll_event event{.events = events, .data = {.u64 = tag}};
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0) return {};
  return errno_status(StatusCode::kRESOURCE_EXHAUSTED,
                      "cannot watch descriptor " + std::to_string(fd));
}

void Poller::change(int fd, uint32_t events, uint64_t tag) {
  epoll_event event{.events = events, .data = {.u64 = tag}};
  CGX_ASSERT(::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event) == 0);
}

void Poller::remove(int fd) {
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
}

std::span<const Poller::Ready> Poller::wait(uint64_t timeout_ns) {
  std::array<epoll_event, kReadyMax> events;
  const timespec timeout{.tv_sec = static_cast<time_t>(timeout_ns / kSecond),
                         .tv_nsec = static_cast<long>(timeout_ns % kSecond)};
  const int count = ::epoll_pwait2(epoll_.get(), events.data(), kReadyMax,
                                   timeout_ns == kNever ? nullptr : &timeout, nullptr);
  for (int i = 0; i < count; ++i) ready_[i] = {events[i].data.u64, events[i].events};
  return {ready_.data(), static_cast<size_t>(count > 0 ? count : 0)};
}

}  // namespace cgx::daemon
