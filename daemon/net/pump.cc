#include "daemon/net/pump.h"

#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>

#include <array>
#include <memory>
#include <system_error>
#include <thread>

namespace cgx::daemon {
namespace {

// What goes from one end to the other.
class Way {
 public:
  Way(int from, int to) : from_(from), to_(to) {}

  bool ended() const { return ended_; }
  short wants_from() const { return !ended_ && begin_ == end_ ? POLLIN : 0; }
  short wants_to() const { return begin_ < end_ ? POLLOUT : 0; }

  // False: a descriptor came.
  bool move() {
    if (wants_from() != 0 && !read()) return false;
    if (begin_ < end_) write();
    return true;
  }

 private:
  bool read() {
    iovec part{bytes_.data(), bytes_.size()};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    // Descriptors stay where they are while bytes are only looked at.
    ssize_t got = ::recvmsg(from_, &message, MSG_PEEK | MSG_DONTWAIT);
    if (got > 0 && (message.msg_flags & MSG_CTRUNC) != 0) return false;
    if (got > 0) got = ::recv(from_, bytes_.data(), static_cast<size_t>(got), MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return true;
    begin_ = 0;
    end_ = got > 0 ? static_cast<size_t>(got) : 0;
    ended_ = got <= 0;
    if (ended_) ::shutdown(to_, SHUT_WR);
    return true;
  }

  void write() {
    const ssize_t sent =
        ::send(to_, bytes_.data() + begin_, end_ - begin_, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent >= 0) {
      begin_ += static_cast<size_t>(sent);
    } else if (errno != EAGAIN && errno != EINTR) {
      begin_ = end_;
      ended_ = true;
    }
  }

  const int from_, to_;
  std::array<char, 16384> bytes_;
  size_t begin_ = 0, end_ = 0;
  bool ended_ = false;
};

void pump(int connection, int ours) {
  Way in(connection, ours), out(ours, connection);
  const auto look_at = [](int fd, int events, bool always) {
    return pollfd{events != 0 || always ? fd : -1, static_cast<short>(events), 0};
  };
  while (!out.ended()) {
    pollfd polled[] = {look_at(connection, in.wants_from() | out.wants_to(), in.ended()),
                       look_at(ours, out.wants_from() | in.wants_to(), false)};
    ::poll(polled, 2, -1);
    if (in.ended() && (polled[0].revents & POLLHUP) != 0) return;  // nobody reads what is left
    if (!in.move() || !out.move()) return;
  }
}

}  // namespace

std::optional<PumpEnds> make_pump_ends() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0) return {};
  return PumpEnds{UniqueFd(ends[0]), UniqueFd(ends[1])};
}

bool start_pump(UniqueFd& connection, UniqueFd& ours, std::function<void()> on_end) {
  const int fds[] = {connection.get(), ours.get()};
  try {
    std::thread([fds, on_end = std::move(on_end)] {
      ::pthread_setname_np(::pthread_self(), "cgxd-pump");
      {
        const UniqueFd near(fds[1]), far(fds[0]);
        pump(far.get(), near.get());
        ::shutdown(far.get(), SHUT_RDWR);  // they see the end, however long closing takes
        ::shutdown(near.get(), SHUT_RDWR);
      }
      on_end();
    }).detach();
  } catch (const std::system_error&) {
    return false;
  }
  connection.release();
  ours.release();
  return true;
}

}  // namespace cgx::daemon
