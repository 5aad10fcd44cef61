#include "daemon/base/user_threads.h"

#include <pthread.h>

#include <cstdint>
#include <deque>
#include <iterator>
#include <map>
#include <system_error>
#include <thread>
#include <tuple>
#include <utility>

#include "proto/wire/mutex.h"

namespace cgx::daemon {

struct UserThreads::Lanes {
  enum class Kind : uint8_t { kTasks, kClosing };
  using Name = std::tuple<std::string, Kind, std::string>;  // whose, for what, and which of those
  struct Lane {
    std::deque<Task> tasks;
    size_t waiting = 0;  // with the one that runs
  };

  static void close(const std::shared_ptr<Lanes>& lanes, const std::string& holder, UniqueFd fd) {
    run(lanes, {holder, Kind::kClosing, {}}, [fd = std::move(fd)]() mutable { fd.reset(); });
  }

  static void run(const std::shared_ptr<Lanes>& lanes, Name name, Task task) {
    MutexLock lock(lanes->mutex);
    if (lanes->is_one_too_many(name)) std::get<2>(name).clear();
    Lane& lane = lanes->by_name[name];
    lane.tasks.push_back(std::move(task));
    if (++lane.waiting > 1) return;
    try {
      std::thread([lanes, name] { work(lanes, name); }).detach();
    } catch (const std::system_error&) {  // no thread to be had: here, then
      lock.unlock();
      work(lanes, name);
    }
  }

  // Until the lane is empty; then it is gone, and so is the thread.
  static void work(const std::shared_ptr<Lanes>& lanes, const Name& name) {
    ::pthread_setname_np(::pthread_self(), "cgxd-user");
    MutexLock lock(lanes->mutex);
    for (;;) {
      Lane& lane = lanes->by_name[name];
      if (lane.tasks.empty()) break;
      {
        Task task = std::move(lane.tasks.front());
        lane.tasks.pop_front();
        lock.unlock();
        task();
      }
      lock.lock();
      --lanes->by_name[name].waiting;
    }
    lanes->by_name.erase(name);
  }

  using ByName = std::map<Name, Lane>;
  std::pair<ByName::const_iterator, ByName::const_iterator> of(const std::string& holder) const
      CGX_REQUIRES(mutex) {
    return {by_name.lower_bound({holder, Kind::kTasks, {}}),
            by_name.lower_bound({holder + '\0', Kind::kTasks, {}})};
  }
  bool is_one_too_many(const Name& name) const CGX_REQUIRES(mutex) {
    if (std::get<2>(name).empty() || by_name.count(name) > 0) return false;
    const auto [first, last] = of(std::get<0>(name));
    return std::distance(first, last) >= static_cast<ptrdiff_t>(kLanesMax);
  }

  mutable Mutex mutex;
  ByName by_name CGX_GUARDED_BY(mutex);
};

UserThreads::UserThreads() : lanes_(std::make_shared<Lanes>()) {}
UserThreads::~UserThreads() = default;

void UserThreads::run(const std::string& holder, Task task) {
  Lanes::run(lanes_, {holder, Lanes::Kind::kTasks, {}}, std::move(task));
}

void UserThreads::run(const std::string& holder, std::vector<UniqueFd> fds, FdTask task,
                      const std::string& lane) {
  auto run_and_close = [lanes = lanes_, holder, fds = std::move(fds),
                        task = std::move(task)]() mutable {
    task(fds);
    for (UniqueFd& fd : fds) Lanes::close(lanes, holder, std::move(fd));
  };
  Lanes::run(lanes_, {holder, Lanes::Kind::kTasks, lane}, std::move(run_and_close));
}

void UserThreads::close(const std::string& holder, UniqueFd fd) {
  if (!fd) return;
  Lanes::close(lanes_, holder, std::move(fd));
}

size_t UserThreads::waiting(const std::string& holder) const {
  const MutexLock lock(lanes_->mutex);
  size_t waiting = 0;
  const auto [first, last] = lanes_->of(holder);
  for (auto each = first; each != last; ++each) waiting += each->second.waiting;
  return waiting;
}

}  // namespace cgx::daemon
