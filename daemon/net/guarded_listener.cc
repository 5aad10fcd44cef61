#include "daemon/net/guarded_listener.h"

#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "daemon/base/clock.h"
#include "daemon/base/holder.h"
#include "daemon/base/open_files.h"
#include "daemon/base/user_threads.h"
#include "daemon/net/pump.h"

namespace cgx::daemon {
namespace {

// A connection whose first bytes have arrived only in part is looked at again after this.
constexpr uint64_t kPartialRetry = 20 * kMillisecond;
constexpr int kAcceptsPerRound = 64;

Opening compare(const std::string& expected, std::string_view seen) {
  if (std::string_view(expected).substr(0, seen.size()) != seen) return Opening::kWrong;
  return seen.size() == expected.size() ? Opening::kRight : Opening::kIncomplete;
}

// Nothing: it was closed by somebody who only looked whether anyone listens.
std::optional<Opening> look_at(int fd, const ListenerOptions& options, bool& some) {
  std::string bytes(options.judge ? options.judged_bytes : options.opening.size(), '\0');
  const ssize_t got = ::recv(fd, bytes.data(), bytes.size(), MSG_PEEK | MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return Opening::kIncomplete;
  if (got < 0) return std::nullopt;
  if (got == 0) return some ? std::optional(Opening::kWrong) : std::nullopt;
  some = true;
  const auto seen = std::string_view(bytes).substr(0, static_cast<size_t>(got));
  const Opening opening = options.judge ? options.judge(seen) : compare(options.opening, seen);
  const bool all = seen.size() == bytes.size();
  return opening == Opening::kIncomplete && all ? Opening::kWrong : opening;
}

}  // namespace

namespace {

bool is_local(int fd) {
  int family = AF_UNSPEC;
  socklen_t bytes = sizeof family;
  return ::getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &family, &bytes) == 0 && family == AF_UNIX;
}

// Of those who came while the process was stopped many have gone again; they cost nothing more.
bool has_gone(int fd, short end) {
  pollfd one{fd, end, 0};
  return ::poll(&one, 1, 0) > 0 && (one.revents & (end | POLLHUP | POLLERR)) != 0;
}

// "uid 1000", as holder_name() has it, or "10.0.0.2".
std::string origin_of(int fd) {
  sockaddr_storage address{};
  socklen_t bytes = sizeof(address);
  char host[NI_MAXHOST] = "";
  if (is_local(fd)) return holder_behind(fd);
  if (::getpeername(fd, reinterpret_cast<sockaddr*>(&address), &bytes) != 0) return {};
  ::getnameinfo(reinterpret_cast<const sockaddr*>(&address), bytes, host, sizeof(host), nullptr, 0,
                NI_NUMERICHOST);
  return host;
}

// The oldest of those whose origin has most.
template <typename Connections>
typename Connections::iterator oldest_of_most(Connections& connections) {
  std::map<std::string, size_t> count;
  for (const auto& one : connections) ++count[one.origin];
  const auto most = std::max_element(
      count.begin(), count.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  return std::find_if(connections.begin(), connections.end(),
                      [&](const auto& one) { return one.origin == most->first; });
}

}  // namespace

class GuardedListener::Loop {
 public:
  Loop(int listening_fd, const ListenerOptions& options, const ListenerEvents& events,
       UniqueFd stop, UniqueFd ended)
      : listening_fd_(listening_fd),
        options_(options),
        events_(events),
        stop_(std::move(stop)),
        ended_(std::make_shared<UniqueFd>(std::move(ended))) {
    thread_ = std::thread([this] { run(); });
  }
  ~Loop() {
    ::eventfd_write(stop_.get(), 1);
    thread_.join();
    for (Waiting& one : waiting_) turn_away(std::move(one.fd), one.origin);
  }

 private:
  struct Waiting {
    UniqueFd fd;
    std::string origin;
    uint64_t deadline_ns;
    bool some = false;  // a part of the opening is there: poll() would return at once
  };
  struct Alive {
    UniqueFd watch;  // our own descriptor of a connection over TCP that was handed over
    std::string origin;
    std::shared_ptr<std::atomic<bool>> pumped;  // of a local one: whether its pump runs
    bool half_closed = false;                   // by them
  };

  void run() {
    for (;;) {
      collect();
      ::poll(polled_.data(), polled_.size(), timeout_ms());
      if (polled_[0].revents != 0) return;
      eventfd_t ignored;
      if (polled_[2].revents != 0) ::eventfd_read(ended_->get(), &ignored);
      drop_ended();
      check_openings();
      if (std::exchange(paused_, false) || polled_[1].revents != 0) accept_all();
      show_share();
    }
  }

  // stop, listening socket, ended pumps, then one entry per waiting and per living connection.
  void collect() {
    polled_.assign({{stop_.get(), POLLIN, 0},
                    {paused_ ? -1 : listening_fd_, POLLIN, 0},
                    {ended_->get(), POLLIN, 0}});
    for (const Waiting& one : waiting_) {
      polled_.push_back({one.some ? -1 : one.fd.get(), POLLIN, 0});
    }
    for (const Alive& one : alive_) {
      const short end_of_theirs = POLLRDHUP;
      polled_.push_back({one.watch.get(), one.half_closed ? short{0} : end_of_theirs, 0});
    }
  }

  int timeout_ms() const {
    const uint64_t now = monotonic_ns();
    uint64_t earliest = paused_ ? now + Admission::kLookAgainNs : kNever;
    for (const Waiting& one : waiting_) {
      const uint64_t retry = one.some ? now + kPartialRetry : kNever;
      earliest = std::min({earliest, one.deadline_ns, retry});
    }
    if (earliest == kNever) return -1;
    return earliest <= now ? 0 : static_cast<int>((earliest - now) / kMillisecond + 1);
  }

  void drop_ended() {
    const size_t first = 3 + waiting_.size();
    size_t index = 0;
    std::erase_if(alive_, [&](Alive& one) {
      const short events = polled_[first + index++].revents;
      if (one.pumped) return !one.pumped->load();
      one.half_closed |= events != 0;
      return options_.answers_half_closed ? (events & (POLLHUP | POLLERR)) != 0 : events != 0;
    });
  }

  void check_openings() {
    const uint64_t now = monotonic_ns();
    std::erase_if(waiting_, [&](Waiting& one) {
      if (!decided(one, now)) return false;
      turn_away(std::move(one.fd), one.origin);  // unless it was handed over
      return true;
    });
  }

  bool decided(Waiting& one, uint64_t now) {
    const std::optional<Opening> opening = look_at(one.fd.get(), options_, one.some);
    if (!opening) return true;
    switch (*opening) {
      case Opening::kIncomplete:
        if (now < one.deadline_ns) return false;
        events_.on_junk();
        return true;
      case Opening::kRight:
        hand_over(std::move(one.fd), std::move(one.origin));
        return true;
      case Opening::kWrong:
        events_.on_junk();
        return true;
    }
    return true;
  }

  void hand_over(UniqueFd fd, std::string origin) {
    if (is_local(fd.get())) return hand_over_local(std::move(fd), origin);
    if (has_gone(fd.get(), options_.answers_half_closed ? short{0} : short{POLLRDHUP})) return;
    make_room_for(origin);
    UniqueFd watch(::fcntl(fd.get(), F_DUPFD_CLOEXEC, 0));
    if (!watch || in_reserve(watch.get())) return;
    alive_.push_back({std::move(watch), std::move(origin), nullptr});
    const int peer = fd.get();
    events_.on_connection(std::move(fd), peer);
  }

  void hand_over_local(UniqueFd fd, const std::string& origin) {
    std::optional<PumpEnds> ends;
    const bool room = share_of(alive_, options_.alive_max).check(origin).ok();
    if (room && !has_gone(fd.get(), 0)) ends = make_pump_ends();
    if (!ends || in_reserve(std::max(ends->ours.get(), ends->theirs.get()))) {
      return turn_away(std::move(fd), origin);
    }
    events_.on_connection(std::move(ends->theirs), fd.get());
    const auto pumped = std::make_shared<std::atomic<bool>>(true);
    const bool started = start_pump(fd, ends->ours, [pumped, ended = ended_] {
      pumped->store(false);
      ::eventfd_write(ended->get(), 1);
    });
    if (!started) return turn_away(std::move(fd), origin);
    alive_.push_back({{}, origin, pumped});
  }

  void turn_away(UniqueFd fd, const std::string& origin) {
    if (is_local(fd.get())) closers_.end(origin, std::move(fd));
  }

  // Over TCP a host's oldest connection goes for its newest, and the oldest of the largest crowd
  // where all are too many; first those who may have gone already.
  void make_room_for(const std::string& host) {
    const auto same = [&](const Alive& other) { return other.origin == host; };
    const auto gone = [&](const Alive& other) { return same(other) && other.half_closed; };
    if (std::count_if(alive_.begin(), alive_.end(), same) >= options_.alive_per_host_max) {
      const auto first_gone = std::find_if(alive_.begin(), alive_.end(), gone);
      end(first_gone != alive_.end() ? first_gone
                                     : std::find_if(alive_.begin(), alive_.end(), same));
    }
    if (!alive_.empty() && alive_.size() >= options_.alive_max) end(oldest_of_most(alive_));
  }

  template <typename Connections>
  scheduler::Share share_of(const Connections& connections, uint64_t limit) const {
    scheduler::Share share(options_.name, limit);
    for (const auto& one : connections) share.add(one.origin);
    return share;
  }

  void show_share() {
    if (!events_.on_share) return;
    scheduler::Share share = share_of(alive_, options_.waiting_max + options_.alive_max);
    for (const Waiting& one : waiting_) share.add(one.origin);
    if (share.holders() == shown_) return;
    shown_ = share.holders();
    events_.on_share(share);
  }

  void end(std::vector<Alive>::iterator one) {
    ::shutdown(one->watch.get(), SHUT_RDWR);
    alive_.erase(one);
  }

  void accept_all() {
    for (int i = 0; i < kAcceptsPerRound; ++i) {
      const Admission::Answer answer = admission_.ask(listening_fd_, monotonic_ns());
      if ((paused_ = answer == Admission::Answer::kWait)) return;
      UniqueFd fd(::accept4(listening_fd_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (!fd) return out_of_descriptors();
      std::string origin = origin_of(fd.get());
      if (answer == Admission::Answer::kTurnAway) {
        turn_away(std::move(fd), origin);
        continue;
      }
      if (options_.admits && !options_.admits(origin)) {
        events_.on_junk();
        continue;
      }
      if (waiting_.size() >= options_.waiting_max) make_room_to_wait();
      waiting_.push_back(
          {std::move(fd), std::move(origin), monotonic_ns() + options_.opening_timeout_ns});
    }
  }

  void make_room_to_wait() {
    const auto oldest = oldest_of_most(waiting_);
    turn_away(std::move(oldest->fd), oldest->origin);
    waiting_.erase(oldest);
  }

  // The pending connection stays readable: without a pause the loop would spin until one is freed.
  void out_of_descriptors() const {
    if (errno != EMFILE && errno != ENFILE && errno != ENOMEM && errno != ENOBUFS) return;
    pollfd stop{stop_.get(), POLLIN, 0};
    ::poll(&stop, 1, 100);
  }

  const int listening_fd_;
  const ListenerOptions options_;
  const ListenerEvents events_;
  UniqueFd stop_;
  const std::shared_ptr<UniqueFd> ended_;  // pumps may outlive the listener
  UserThreads closers_;
  Admission admission_;
  bool paused_ = false;  // who comes waits at the door
  std::vector<Waiting> waiting_;
  std::vector<Alive> alive_;
  std::vector<pollfd> polled_;
  std::vector<std::pair<std::string, uint64_t>> shown_;
  std::thread thread_;
};

Result<std::unique_ptr<GuardedListener>> GuardedListener::create(int listening_fd,
                                                                 const ListenerOptions& options,
                                                                 const ListenerEvents& events) {
  CGX_ASSERT((options.judge || !options.opening.empty()) && events.on_connection && events.on_junk);
  UniqueFd stop(::eventfd(0, EFD_CLOEXEC)), ended(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!stop || !ended) return errno_status(StatusCode::kRESOURCE_EXHAUSTED, "eventfd");
  return std::unique_ptr<GuardedListener>(new GuardedListener(
      std::make_unique<Loop>(listening_fd, options, events, std::move(stop), std::move(ended))));
}

GuardedListener::GuardedListener(std::unique_ptr<Loop> loop) : loop_(std::move(loop)) {}
GuardedListener::~GuardedListener() = default;

}  // namespace cgx::daemon
