#include "daemon/net/http_door.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <deque>
#include <thread>
#include <vector>

#include "daemon/base/clock.h"
#include "proto/wire/mutex.h"

namespace cgx::daemon {
namespace {

constexpr const char kName[] = "connections of the metrics page";
constexpr size_t kHeadBytesMax = 8192;
constexpr size_t kMethodBytesMax = 8;
constexpr std::string_view kLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ";
constexpr uint32_t kAliveMax = 64;
constexpr uint32_t kAlivePerHostMax = 32;

// "GET /..." or another method, and all until the empty line.
Opening judge(std::string_view seen) {
  const size_t method = seen.substr(0, kMethodBytesMax).find_first_not_of(kLetters);
  if (method == 0 || (method == seen.npos && seen.size() >= kMethodBytesMax)) {
    return Opening::kWrong;
  }
  if (method == seen.npos) return Opening::kIncomplete;
  constexpr std::string_view kTarget = " /";
  if (kTarget.substr(0, seen.size() - method) != seen.substr(method, kTarget.size())) {
    return Opening::kWrong;
  }
  return seen.find("\r\n\r\n") != seen.npos ? Opening::kRight : Opening::kIncomplete;
}

struct Request {
  std::string path;  // empty: it is none
  std::string method;
};

// REQUIRES: judged right. "GET /metrics?a=b HTTP/1.1".
Request parse(std::string_view head) {
  const std::string_view line = head.substr(0, head.find("\r\n"));
  const size_t first = line.find(' '), last = line.rfind(' ');
  if (first == last || !line.substr(last + 1).starts_with("HTTP/1.")) return {};
  const std::string_view target = line.substr(first + 1, last - first - 1);
  return {std::string(target.substr(0, target.find('?'))), std::string(line.substr(0, first))};
}

const char* reason_of(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 400:
      return "Bad Request";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    default:
      return "Service Unavailable";
  }
}

std::string text_of(const HttpAnswer& answer, bool head_only) {
  std::string text = "HTTP/1.1 " + std::to_string(answer.status) + " " + reason_of(answer.status) +
                     "\r\nContent-Type: " + answer.type +
                     "\r\nContent-Length: " + std::to_string(answer.body.size()) +
                     "\r\nConnection: close\r\n" + answer.headers + "\r\n";
  if (!head_only) text += answer.body;
  return text;
}

}  // namespace

class HttpDoor::Serving {
 public:
  Serving(TcpListener listener, HttpOptions options, Answer answer, UniqueFd wake)
      : listener_(std::move(listener)),
        options_(std::move(options)),
        answer_(std::move(answer)),
        wake_(std::move(wake)) {}
  ~Serving() {
    guard_.reset();
    if (!thread_.joinable()) return;
    {
      const MutexLock lock(mutex_);
      stopping_ = true;
    }
    ::eventfd_write(wake_.get(), 1);
    thread_.join();
  }

  Status start() {
    thread_ = std::thread([this] { run(); });
    const ListenerOptions listening{.name = kName,
                                    .opening = {},
                                    .judge = judge,
                                    .judged_bytes = kHeadBytesMax,
                                    .opening_timeout_ns = options_.request_timeout_ns,
                                    .alive_max = kAliveMax,
                                    .alive_per_host_max = kAlivePerHostMax,
                                    .admits = {},
                                    .answers_half_closed = true};
    CGX_ASSIGN_OR_RETURN(
        guard_,
        GuardedListener::create(listener_.fd.get(), listening,
                                {.on_connection = [this](UniqueFd fd, int) { add(std::move(fd)); },
                                 .on_junk = options_.on_junk,
                                 .on_share = options_.on_share}));
    return {};
  }
  uint16_t port() const { return listener_.port; }

 private:
  struct Leaving {
    UniqueFd fd;
    std::string text;  // what is left of the answer
    uint64_t deadline_ns;
    short events() const { return text.empty() ? 0 : POLLOUT; }
  };

  void add(UniqueFd fd) {  // on the listener's thread
    {
      const MutexLock lock(mutex_);
      if (asking_.size() >= kAliveMax) std::erase_if(asking_, has_gone);
      asking_.push_back(std::move(fd));
    }
    ::eventfd_write(wake_.get(), 1);
  }

  // The listener ends those who are too many, and forgets who is gone.
  static bool has_gone(const UniqueFd& fd) {
    pollfd one{fd.get(), 0, 0};
    return ::poll(&one, 1, 0) > 0;
  }

  void run() {
    std::vector<pollfd> polled;
    for (;;) {
      polled.assign({{wake_.get(), POLLIN, 0}});
      for (const Leaving& one : leaving_) polled.push_back({one.fd.get(), one.events(), 0});
      ::poll(polled.data(), polled.size(), timeout_ms());
      eventfd_t ignored;
      if (polled[0].revents != 0) ::eventfd_read(wake_.get(), &ignored);
      UniqueFd asking;
      {
        const MutexLock lock(mutex_);
        if (stopping_) return;
        if (!asking_.empty()) {
          asking = std::move(asking_.front());
          asking_.pop_front();
        }
        more_ask_ = !asking_.empty();
      }
      if (asking) serve(std::move(asking));
      std::erase_if(leaving_, [this](Leaving& one) { return has_left(one); });
    }
  }

  int timeout_ms() const {
    if (more_ask_) return 0;
    uint64_t earliest = kNever;
    for (const Leaving& one : leaving_) earliest = std::min(earliest, one.deadline_ns);
    if (earliest == kNever) return -1;
    const uint64_t now = monotonic_ns();
    return earliest <= now ? 0 : static_cast<int>((earliest - now) / kMillisecond + 1);
  }

  // What it asks is there: reading does not wait.
  void serve(UniqueFd fd) {
    std::string head(kHeadBytesMax, '\0');
    const ssize_t got = ::recv(fd.get(), head.data(), head.size(), MSG_DONTWAIT);
    if (got <= 0 || has_gone(fd)) {
      ::shutdown(fd.get(), SHUT_RDWR);
      return;
    }
    head.resize(static_cast<size_t>(got));
    const Request request = parse(head);
    leaving_.push_back({std::move(fd), text_of(answer_to(request), request.method == "HEAD"),
                        monotonic_ns() + options_.answer_timeout_ns});
  }

  HttpAnswer answer_to(const Request& request) const {
    if (request.path.empty()) {
      options_.on_junk();
      return {.status = 400, .body = "no HTTP/1 request\n"};
    }
    if (request.method == "GET" || request.method == "HEAD") return answer_(request.path);
    return {.status = 405, .body = "pages are only read here\n", .headers = "Allow: GET, HEAD\r\n"};
  }

  // All of the answer first, then its reader, who may take a while to close the connection.
  bool has_left(Leaving& one) const {
    const bool leaves = one.text.empty() ? !has_gone(one.fd) : send_some(one);
    if (leaves && monotonic_ns() < one.deadline_ns) return false;
    ::shutdown(one.fd.get(), SHUT_RDWR);  // the listener holds it, too
    return true;
  }

  // False: the connection is broken.
  bool send_some(Leaving& one) const {
    const ssize_t sent =
        ::send(one.fd.get(), one.text.data(), one.text.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0) return errno == EAGAIN || errno == EINTR;
    one.text.erase(0, static_cast<size_t>(sent));
    if (!one.text.empty()) return true;
    ::shutdown(one.fd.get(), SHUT_WR);
    one.deadline_ns = monotonic_ns() + options_.closing_timeout_ns;
    return true;
  }

  TcpListener listener_;
  const HttpOptions options_;
  const Answer answer_;
  const UniqueFd wake_;
  Mutex mutex_;
  std::deque<UniqueFd> asking_ CGX_GUARDED_BY(mutex_);
  bool stopping_ CGX_GUARDED_BY(mutex_) = false;
  std::vector<Leaving> leaving_;  // the thread's
  bool more_ask_ = false;         // likewise
  std::thread thread_;
  std::unique_ptr<GuardedListener> guard_;
};

Result<std::unique_ptr<HttpDoor>> HttpDoor::create(TcpListener listener, const HttpOptions& options,
                                                   Answer answer) {
  UniqueFd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake) return errno_status(StatusCode::kRESOURCE_EXHAUSTED, "eventfd");
  auto serving =
      std::make_unique<Serving>(std::move(listener), options, std::move(answer), std::move(wake));
  CGX_RETURN_IF_ERROR(serving->start());
  return std::unique_ptr<HttpDoor>(new HttpDoor(std::move(serving)));
}

HttpDoor::HttpDoor(std::unique_ptr<Serving> serving) : serving_(std::move(serving)) {}
HttpDoor::~HttpDoor() = default;

uint16_t HttpDoor::port() const {
  return serving_->port();
}

}  // namespace cgx::daemon
