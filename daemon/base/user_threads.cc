#include "daemon/base/user_threads.h"

#include <pthread.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <iterator>
#include <map>
#include <system_error>
#include <thread>
#include <tuple>
#include <utility>

#include "daemon/base/open_files.h"
#include "proto/wire/mutex.h"
#include "proto/wire/packet_fds.h"

namespace cgx::daemon {
namespace {

constexpr size_t kBundleMax = 253;  // what one packet can carry (SCM_MAX_FD)

// Puts the last ones into the queue of a socket, whose close closes them: none of ours is the last
// reference then, so closing ours here does not block. They stay where the kernel refuses that.
void bundle(std::vector<UniqueFd>& connections, std::vector<UniqueFd>& bundles) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, ends) != 0) return;
  const UniqueFd entrance(ends[0]);
  UniqueFd bundled(ends[1]);
  const auto first = connections.end() - kBundleMax;
  std::vector<int> numbers;
  std::transform(first, connections.end(), std::back_inserter(numbers),
                 [](const UniqueFd& each) { return each.get(); });
  char byte = 0;
  iovec part{&byte, 1};
  wire::FdRoom<kBundleMax> room;
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  wire::attach_fds(message, room.bytes, numbers);
  if (::sendmsg(entrance.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) return;
  connections.erase(first, connections.end());
  bundles.push_back(std::move(bundled));
}

}  // namespace

struct UserThreads::Lanes {
  enum class Kind : uint8_t { kTasks, kClosing, kConnections };
  using Name = std::tuple<std::string, Kind, std::string>;  // whose, for what, and which of those
  struct Lane {
    std::deque<Task> tasks;
    size_t waiting = 0;  // with the one that runs
    bool has_thread = false;
  };
  struct Ended {
    std::vector<UniqueFd> connections, bundles;
  };

  static void close(const std::shared_ptr<Lanes>& lanes, const std::string& holder, UniqueFd fd) {
    run(lanes, {holder, Kind::kClosing, {}}, [fd = std::move(fd)]() mutable { fd.reset(); });
  }

  static void end(const std::shared_ptr<Lanes>& lanes, const std::string& holder, UniqueFd fd) {
    {
      const MutexLock lock(lanes->mutex);
      const auto [ended, first] = lanes->ended.try_emplace(holder);
      std::vector<UniqueFd>& connections = ended->second.connections;
      connections.push_back(std::move(fd));
      if (connections.size() % kBundleMax == 0) bundle(connections, ended->second.bundles);
      // A task is on its way for them, unless there was no thread for it.
      if (!first && lanes->works({holder, Kind::kConnections, {}})) return;
    }
    run(lanes, {holder, Kind::kConnections, {}}, [lanes, holder] {
      std::map<std::string, Ended>::node_type ended;  // closed without the lock
      const MutexLock lock(lanes->mutex);
      ended = lanes->ended.extract(holder);
    });
  }

  static void run(const std::shared_ptr<Lanes>& lanes, Name name, Task task) {
    MutexLock lock(lanes->mutex);
    if (lanes->is_one_too_many(name)) std::get<2>(name).clear();
    Lane& lane = lanes->by_name[name];
    lane.tasks.push_back(std::move(task));
    ++lane.waiting;
    if (std::exchange(lane.has_thread, true)) return;
    try {
      std::thread([lanes, name] { work(lanes, name); }).detach();
    } catch (const std::system_error&) {  // no thread to be had: here, then, or with the next one
      if (std::get<1>(name) != Kind::kTasks) {
        lane.has_thread = false;
        return;
      }
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
  bool works(const Name& name) const CGX_REQUIRES(mutex) {
    const auto lane = by_name.find(name);
    return lane != by_name.end() && lane->second.has_thread;
  }
  bool is_one_too_many(const Name& name) const CGX_REQUIRES(mutex) {
    if (std::get<2>(name).empty() || by_name.count(name) > 0) return false;
    const auto [first, last] = of(std::get<0>(name));
    return std::distance(first, last) >= static_cast<ptrdiff_t>(kLanesMax);
  }

  mutable Mutex mutex;
  ByName by_name CGX_GUARDED_BY(mutex);
  std::map<std::string, Ended> ended CGX_GUARDED_BY(mutex);  // by holder; a task waits for each
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

void UserThreads::end(const std::string& holder, UniqueFd connection) {
  if (!connection) return;
  ::shutdown(connection.get(), SHUT_RDWR);  // nothing is sent to it any more
  if (unread_descriptors(connection.get()) != 0u) Lanes::end(lanes_, holder, std::move(connection));
}

size_t UserThreads::waiting(const std::string& holder) const {
  const MutexLock lock(lanes_->mutex);
  size_t waiting = 0;
  const auto [first, last] = lanes_->of(holder);
  for (auto each = first; each != last; ++each) waiting += each->second.waiting;
  return waiting;
}

}  // namespace cgx::daemon
