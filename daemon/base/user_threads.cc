#include "daemon/base/user_threads.h"

#include <pthread.h>

#include <deque>
#include <map>
#include <system_error>
#include <thread>

#include "proto/wire/mutex.h"

namespace cgx::daemon {

namespace {

constexpr uint64_t kClosing = uint64_t{1} << 32;  // beside a uid: the lane of its descriptors

}  // namespace

struct UserThreads::Lanes {
  struct Lane {
    std::deque<Task> tasks;
    size_t waiting = 0;  // with the one that runs
  };

  // Until the lane is empty; then it is gone, and so is the thread.
  static void work(const std::shared_ptr<Lanes>& lanes, uint64_t number) {
    ::pthread_setname_np(::pthread_self(), "cgxd-user");
    MutexLock lock(lanes->mutex);
    for (;;) {
      Lane& lane = lanes->by_number[number];
      if (lane.tasks.empty()) break;
      {
        Task task = std::move(lane.tasks.front());
        lane.tasks.pop_front();
        lock.unlock();
        task();
      }
      lock.lock();
      --lanes->by_number[number].waiting;
    }
    lanes->by_number.erase(number);
  }

  mutable Mutex mutex;
  std::map<uint64_t, Lane> by_number CGX_GUARDED_BY(mutex);
};

UserThreads::UserThreads() : lanes_(std::make_shared<Lanes>()) {}
UserThreads::~UserThreads() = default;

void UserThreads::run(uint32_t uid, Task task) {
  run_in(uid, std::move(task));
}

void UserThreads::close(uint32_t uid, UniqueFd fd) {
  if (!fd) return;
  run_in(uid | kClosing, [fd = std::move(fd)]() mutable { fd.reset(); });
}

void UserThreads::run_in(uint64_t number, Task task) {
  MutexLock lock(lanes_->mutex);
  Lanes::Lane& lane = lanes_->by_number[number];
  lane.tasks.push_back(std::move(task));
  if (++lane.waiting > 1) return;
  try {
    std::thread([lanes = lanes_, number] { Lanes::work(lanes, number); }).detach();
  } catch (const std::system_error&) {  // no thread to be had: here, then
    lock.unlock();
    Lanes::work(lanes_, number);
  }
}

size_t UserThreads::waiting(uint32_t uid) const {
  const MutexLock lock(lanes_->mutex);
  size_t waiting = 0;
  for (const uint64_t number : {uint64_t{uid}, uid | kClosing}) {
    const auto found = lanes_->by_number.find(number);
    if (found != lanes_->by_number.end()) waiting += found->second.waiting;
  }
  return waiting;
}

}  // namespace cgx::daemon
