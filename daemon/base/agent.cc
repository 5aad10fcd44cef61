#include "daemon/base/agent.h"

#include <pthread.h>
#include <sys/eventfd.h>

#include <string>

#include "daemon/base/clock.h"

namespace cgx::daemon {
namespace {

constexpr uint64_t kStopTag = UINT64_MAX;

void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

AgentThread::AgentThread(Agent& agent, uint64_t spin_ns)
    : agent_(agent), idle_(spin_ns), wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

Result<std::unique_ptr<AgentThread>> AgentThread::start(Agent& agent, uint64_t spin_ns) {
  std::unique_ptr<AgentThread> result(new AgentThread(agent, spin_ns));
  CGX_RETURN_IF_ERROR(agent.poller().add(result->wake_.get(), EPOLLIN, kStopTag));
  std::promise<Status> started;
  std::future<Status> outcome = started.get_future();
  result->thread_ = std::thread(&AgentThread::run, result.get(), std::move(started));
  if (Status status = outcome.get(); !status.ok()) return status;
  return result;
}

void AgentThread::run(std::promise<Status> started) {
  ::pthread_setname_np(::pthread_self(), std::string(agent_.name().substr(0, 15)).c_str());
  const Status status = agent_.on_start();
  started.set_value(status);
  if (!status.ok()) return;
  loop();
  agent_.on_stop();
}

void AgentThread::loop() {
  while (!stop_.load(std::memory_order_acquire)) {
    const uint64_t now = monotonic_ns();
    const int work = agent_.do_work(now);
    if (idle_.after_round(now, work, agent_.spin()) == IdleStrategy::Next::kWork) {
      if (work == 0) pause_cpu();
      continue;
    }
    if (!agent_.prepare_sleep()) continue;
    const uint64_t deadline = agent_.next_deadline_ns();
    const uint64_t timeout = deadline == kNever ? kNever
                             : deadline > now   ? deadline - now
                                                : uint64_t{0};
    agent_.woken(agent_.poller().wait(timeout));
  }
}

void AgentThread::stop() {
  if (!thread_.joinable()) return;
  stop_.store(true, std::memory_order_release);
  ::eventfd_write(wake_.get(), 1);
  thread_.join();
  agent_.poller().remove(wake_.get());
}

}  // namespace cgx::daemon
