#include "daemon/ending.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>
#include <set>
#include <string>

#include "daemon/serve.h"

namespace cgx::daemon {
namespace {

constexpr uint64_t kAtLeastNs = 500 * kMillisecond;  // a signal may have come before

// The names of threads that have one of their own: "cgxd-data, cgxd-planner".
std::string threads_left() {
  std::set<std::string> names;
  std::error_code vanished;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task", vanished)) {
    std::string name;
    std::getline(std::ifstream(task.path() / "comm"), name);
    if (name.find('-') != std::string::npos) names.insert(name);
  }
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

}  // namespace

void Ending::begin() {
  waits_ = std::thread([this] { wait(); });
}

Ending::~Ending() {
  if (!waits_.joinable()) return;
  in_time_.store(true);
  ::pthread_kill(waits_.native_handle(), SIGTERM);
  waits_.join();
}

// Within a second: the log may be what does not answer.
void Ending::end_now(uint64_t after_ms) const {
  std::promise<void> said;
  std::thread([&] {
    Log(log_).write(LogLevel::kError, "ends without waiting for its threads any longer",
                    {{"threads", threads_left()}, {"after_ms", after_ms}});
    said.set_value();
  }).detach();
  (void)said.get_future().wait_for(std::chrono::seconds(1));
  ::_exit(1);
}

void Ending::wait() const {
  const uint64_t begun_ns = monotonic_ns();
  uint64_t end_ns = begun_ns + kEndNs;
  for (uint64_t now_ns = begun_ns; now_ns < end_ns; now_ns = monotonic_ns()) {
    const auto signal = next_signal(signals_, end_ns - now_ns);
    if (in_time_.load()) return;
    if (signal && another_asks_to_stop(*signal)) end_ns = std::min(end_ns, begun_ns + kAtLeastNs);
  }
  end_now((monotonic_ns() - begun_ns) / kMillisecond);
}

}  // namespace cgx::daemon
