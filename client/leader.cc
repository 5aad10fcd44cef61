#include "client/leader.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <utility>

#include "client/checks.h"
#include "client/no_signals.h"
#include "proto/wire/bytes.h"

namespace cgx::client {
namespace {

constexpr uint32_t kLeaderMagic = 0x4c584743;  // "CGXL"
constexpr uint8_t kPut = 1, kGet = 2;
constexpr size_t kRequestHead = 13, kReplyHead = 9;
constexpr uint32_t kKeyBytesMax = 4096, kValueBytesMax = 16 << 20;
constexpr size_t kKeysMax = 1 << 20, kConnectionsMax = 4096;
constexpr size_t kReadBytes = 64 << 10;
constexpr std::chrono::milliseconds kAgain(50), kAgainAtLast(1000);
constexpr std::chrono::milliseconds kLookForOthers(5);
constexpr int64_t kSliceMs = 1'000;
constexpr std::chrono::seconds kUnreachable(60);
constexpr std::chrono::seconds kLastLooks(1);  // behind the deadline: who is missing

struct Resolved {
  addrinfo* list = nullptr;
  ~Resolved() {
    if (list != nullptr) ::freeaddrinfo(list);
  }
};

// A machine that comes up later may have its name from then on.
bool may_be_known_later(int code) {
#ifdef EAI_NODATA
  if (code == EAI_NODATA) return true;
#endif
  return code == EAI_NONAME || code == EAI_AGAIN;
}

// "10.1.0.2:7000", "[fd00::1]:7000", "node1:7000". NOT_FOUND: nobody knows the name yet.
Status resolve(const std::string& address, Resolved& found) {
  const size_t colon = address.rfind(':');
  const std::string port = colon == std::string::npos ? "" : address.substr(colon + 1);
  std::string host = address.substr(0, colon);
  if (host.size() > 2 && host.front() == '[') host = host.substr(1, host.size() - 2);
  if (host.empty() || port.empty()) {
    return invalid_argument("CGX_LEADER=" + address + " is not host:port");
  }
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  const int code = ::getaddrinfo(host.c_str(), port.c_str(), &hints, &found.list);
  if (code == 0) return {};
  if (may_be_known_later(code)) return {StatusCode::kNOT_FOUND, ::gai_strerror(code)};
  return invalid_argument("CGX_LEADER=" + address + ": " + ::gai_strerror(code));
}

std::vector<std::byte> reply(bool found, std::span<const std::byte> value) {
  wire::Writer writer;
  writer.put(kLeaderMagic);
  writer.put<uint8_t>(found ? 1 : 0);
  writer.put(static_cast<uint32_t>(value.size()));
  std::vector<std::byte> bytes = writer.take();
  bytes.insert(bytes.end(), value.begin(), value.end());
  return bytes;
}

// Where only this machine finds what listens there: "127.0.1.1"; else empty.
std::string loopback_of(const UniqueFd& listening) {
  sockaddr_storage own{};
  socklen_t bytes = sizeof own;
  char text[INET6_ADDRSTRLEN] = "";
  if (::getsockname(listening.get(), reinterpret_cast<sockaddr*>(&own), &bytes) != 0) return text;
  const auto& four = reinterpret_cast<const sockaddr_in&>(own);
  const auto& six = reinterpret_cast<const sockaddr_in6&>(own);
  if (own.ss_family == AF_INET && ntohl(four.sin_addr.s_addr) >> 24 == IN_LOOPBACKNET) {
    ::inet_ntop(AF_INET, &four.sin_addr, text, sizeof text);
  } else if (own.ss_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&six.sin6_addr)) {
    ::inet_ntop(AF_INET6, &six.sin6_addr, text, sizeof text);
  }
  return text;
}

Result<UniqueFd> listen_at(const addrinfo& place) {
  UniqueFd fd(::socket(place.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int on = 1;
  const bool open =
      fd.valid() && ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
      ::bind(fd.get(), place.ai_addr, place.ai_addrlen) == 0 && ::listen(fd.get(), 512) == 0;
  if (open) return fd;
  const bool others = errno == EADDRNOTAVAIL || errno == EADDRINUSE;
  return Status(others ? StatusCode::kNOT_FOUND : StatusCode::kUNAVAILABLE, std::strerror(errno));
}

}  // namespace

// Server

struct LeaderServer::Connection {
  UniqueFd fd;
  std::vector<std::byte> in, out;
  bool served = false;  // once at least
};

class LeaderServer::Book {
 public:
  // Takes whole requests off `in` and adds their replies to `out`; false: it breaks the form.
  bool answer(Connection& connection) {
    size_t taken = 0;
    for (;;) {
      const auto left = std::span(connection.in).subspan(taken);
      if (left.size() < kRequestHead) break;
      wire::Reader reader(left);
      const auto magic = reader.get<uint32_t>();
      const auto what = reader.get<uint8_t>();
      const auto key_bytes = reader.get<uint32_t>(), value_bytes = reader.get<uint32_t>();
      const bool right = magic == kLeaderMagic && (what == kPut || what == kGet) &&
                         key_bytes <= kKeyBytesMax && value_bytes <= kValueBytesMax;
      if (!right) return false;
      if (left.size() < kRequestHead + key_bytes + value_bytes) break;
      const auto key = left.subspan(kRequestHead, key_bytes);
      const std::string name(reinterpret_cast<const char*>(key.data()), key.size());
      const auto value = left.subspan(kRequestHead + key_bytes, value_bytes);
      const std::vector<std::byte> said = what == kPut ? put(name, value) : get(name);
      connection.out.insert(connection.out.end(), said.begin(), said.end());
      connection.served = true;
      taken += kRequestHead + key_bytes + value_bytes;
    }
    connection.in.erase(connection.in.begin(),
                        connection.in.begin() + static_cast<ptrdiff_t>(taken));
    return true;
  }

 private:
  std::vector<std::byte> put(const std::string& key, std::span<const std::byte> value) {
    const bool room = values_.size() < kKeysMax || values_.count(key) > 0;
    if (room) values_[key].assign(value.begin(), value.end());
    return reply(room, {});
  }
  std::vector<std::byte> get(const std::string& key) const {
    const auto found = values_.find(key);
    return found == values_.end() ? reply(false, {}) : reply(true, found->second);
  }

  std::map<std::string, std::vector<std::byte>> values_;
};

Result<std::unique_ptr<LeaderServer>> LeaderServer::open(const std::string& address) {
  Resolved found;
  CGX_RETURN_IF_ERROR(resolve(address, found));
  Result<UniqueFd> listening = Status(StatusCode::kNOT_FOUND, "no address");
  for (const addrinfo* one = found.list; one != nullptr && !listening.ok(); one = one->ai_next) {
    listening = listen_at(*one);
  }
  if (!listening.ok()) {
    return Status(listening.status().code(),
                  "CGX_LEADER=" + address + ": " + listening.status().message());
  }
  UniqueFd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.valid()) return unavailable(std::string("eventfd: ") + std::strerror(errno));
  return std::unique_ptr<LeaderServer>(new LeaderServer(*std::move(listening), std::move(wake)));
}

LeaderServer::LeaderServer(UniqueFd listening, UniqueFd wake)
    : listening_(std::move(listening)), wake_(std::move(wake)), loopback_(loopback_of(listening_)) {
  const NoSignals for_the_thread;
  thread_ = std::thread([this] { serve(); });
}

LeaderServer::~LeaderServer() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t rung = ::write(wake_.get(), &one, sizeof one);
  thread_.join();
}

void LeaderServer::wait_for_others(Deadline deadline) const {
  while (connected_ > 0 && Clock::now() < deadline) std::this_thread::sleep_for(kLookForOthers);
}

// Who has been served and asks for nothing makes room for others, and connects again when it does;
// of those the latest, so that most stay. False: nobody does.
bool LeaderServer::make_room(std::vector<Connection>& connections) {
  const auto idle = std::find_if(connections.rbegin(), connections.rend(), [](const auto& one) {
    return one.served && one.in.empty() && one.out.empty();
  });
  if (idle == connections.rend()) return false;
  connections.erase(std::next(idle).base());
  return true;
}

// False: there is no room for who waits.
bool LeaderServer::let_in(std::vector<Connection>& connections) {
  if (connections.size() >= kConnectionsMax) return make_room(connections);
  UniqueFd fd(::accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (fd.valid()) {
    connections.push_back({.fd = std::move(fd), .in = {}, .out = {}});
    return true;
  }
  return (errno != EMFILE && errno != ENFILE) || make_room(connections);
}

void LeaderServer::serve() {
  Book book;
  std::vector<Connection> connections;
  // False: it has ended or broke the form.
  const auto attend = [&](Connection& one, short events) {
    if ((events & (POLLIN | POLLHUP | POLLERR)) != 0) {
      std::byte bytes[kReadBytes];
      const ssize_t got = ::recv(one.fd.get(), bytes, sizeof bytes, MSG_DONTWAIT);
      if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) return false;
      if (got > 0) one.in.insert(one.in.end(), bytes, bytes + got);
      if (!book.answer(one)) return false;
    }
    while (!one.out.empty()) {
      const ssize_t sent =
          ::send(one.fd.get(), one.out.data(), one.out.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
      if (sent < 0) return errno == EAGAIN || errno == EINTR;
      one.out.erase(one.out.begin(), one.out.begin() + sent);
    }
    return true;
  };
  bool room = true;
  for (;;) {
    connected_ = connections.size();
    std::vector<pollfd> watched{{wake_.get(), POLLIN, 0},
                                {listening_.get(), static_cast<short>(room ? POLLIN : 0), 0}};
    for (const Connection& one : connections) {
      watched.push_back({one.fd.get(), static_cast<short>(one.out.empty() ? POLLIN : POLLOUT), 0});
    }
    const int limit_ms = room ? -1 : static_cast<int>(kAgain.count());
    if (::poll(watched.data(), watched.size(), limit_ms) < 0) continue;
    if (watched[0].revents != 0) return;
    for (size_t i = connections.size(); i-- > 0;) {
      const short events = watched[i + 2].revents;
      if (events == 0 || attend(connections[i], events)) continue;
      connections.erase(connections.begin() + static_cast<ptrdiff_t>(i));
    }
    room = watched[1].revents == 0 || let_in(connections);
  }
}

// Store

Result<std::unique_ptr<LeaderStore>> LeaderStore::connect(const std::string& address,
                                                          Deadline deadline, const GoOn& go_on,
                                                          const GoOn& named,
                                                          std::chrono::milliseconds silence) {
  std::unique_ptr<LeaderStore> store(new LeaderStore(address, deadline, go_on, silence));
  std::chrono::milliseconds pause = kAgain;
  bool unknown = false;
  for (;;) {
    Result<UniqueFd> fd = store->dial();
    const std::string why = fd.ok() ? std::strerror(errno) : fd.status().message();
    if (fd.ok() && fd->valid()) {
      store->fd_ = *std::move(fd);
      store->deadline_ += kLastLooks;
      return store;
    }
    if (!fd.ok() && fd.status().code() != StatusCode::kNOT_FOUND) return fd.status();
    if (std::exchange(unknown, !fd.ok()) || unknown) CGX_RETURN_IF_ERROR(named());
    pause = fd.ok() ? kAgain : std::min(2 * pause, kAgainAtLast);
    const Deadline again = std::min(deadline, Clock::now() + pause);
    while (Clock::now() < again) {
      CGX_RETURN_IF_ERROR(go_on());
      std::this_thread::sleep_for(kAgain);
    }
    if (Clock::now() >= deadline) {
      return Status(StatusCode::kTIMED_OUT,
                    "nobody serves at CGX_LEADER=" + address + " (" + why +
                        "); rank 0 does, on the machine with that address, unless that machine "
                        "takes the name for a loopback address");
    }
  }
}

// TIMED_OUT: the leader is silent.
Status LeaderStore::await(int fd, short events) const {
  const Deadline until = std::min<Deadline>(deadline_, Clock::now() + silence_);
  for (;;) {
    pollfd entry{.fd = fd, .events = events, .revents = 0};
    const auto slice_ms = static_cast<int>(std::min(ms_until(until), kSliceMs));
    if (::poll(&entry, 1, slice_ms) > 0) return {};
    if (Clock::now() >= until) return {StatusCode::kTIMED_OUT, "no answer"};
    CGX_RETURN_IF_ERROR(go_on_());
  }
}

// 0, or what errno says of the try.
Result<int> LeaderStore::dial(const addrinfo& place, UniqueFd& fd) const {
  fd.reset(::socket(place.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  int error = ::connect(fd.get(), place.ai_addr, place.ai_addrlen) == 0 ? 0 : errno;
  if (error == EINPROGRESS) {
    const Status answered = await(fd.get(), POLLOUT);
    if (answered.code() == StatusCode::kTIMED_OUT) return ETIMEDOUT;
    CGX_RETURN_IF_ERROR(answered);
    socklen_t bytes = sizeof error;
    ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &bytes);
  }
  const int on = 1;
  if (error == 0) ::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  return error;
}

// At each of its addresses. Nothing: nobody answers there, errno says why.
Result<UniqueFd> LeaderStore::dial() const {
  UniqueFd fd;
  int error = ENOENT;
  {
    Resolved found;
    CGX_RETURN_IF_ERROR(resolve(address_, found));
    for (const addrinfo* one = found.list; one != nullptr && error != 0; one = one->ai_next) {
      CGX_ASSIGN_OR_RETURN(error, dial(*one, fd));
    }
  }
  if (error != 0) fd.reset();
  errno = error;
  return fd;
}

// Until the deadline, but not where the leader's machine says that nobody serves there, or does not
// answer at all: a stopped leader's still would.
Status LeaderStore::dial_again() {
  const Deadline until = std::min<Deadline>(deadline_, Clock::now() + kUnreachable);
  for (;;) {
    CGX_RETURN_IF_ERROR(go_on_());
    Result<UniqueFd> fd = dial();
    const bool refused = fd.ok() && !fd->valid() && errno == ECONNREFUSED;
    if (refused || (!fd.ok() && fd.status().code() != StatusCode::kNOT_FOUND)) return lost();
    if (fd.ok() && fd->valid()) {
      fd_ = *std::move(fd);
      return {};
    }
    if (Clock::now() >= until) {
      return unavailable("CGX_LEADER=" + address_ + " does not answer any more");
    }
    std::this_thread::sleep_for(kAgain);
  }
}

Status LeaderStore::lost() const {
  return unavailable("CGX_LEADER=" + address_ + " is gone, or is none");
}

Status LeaderStore::read_all(std::byte* to, size_t bytes) const {
  while (bytes > 0) {
    const ssize_t got = ::recv(fd_.get(), to, bytes, 0);
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) return lost();
    if (got < 0) CGX_RETURN_IF_ERROR(await(fd_.get(), POLLIN));
    if (got < 0) continue;
    to += got;
    bytes -= static_cast<size_t>(got);
  }
  return {};
}

Status LeaderStore::write_all(std::span<const std::byte> bytes) const {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno != EAGAIN && errno != EINTR) return lost();
    if (sent < 0) CGX_RETURN_IF_ERROR(await(fd_.get(), POLLOUT));
    if (sent > 0) bytes = bytes.subspan(static_cast<size_t>(sent));
  }
  return {};
}

// A leader that had to make room has closed the connection, which says nothing of what was asked;
// a silent one may be stopped, or the way to it cut, for a time.
Result<LeaderStore::Answer> LeaderStore::ask(uint8_t what, const std::string& key,
                                             std::span<const std::byte> value) {
  bool closed = false;
  for (;;) {
    Result<Answer> answer = ask_once(what, key, value);
    const bool silent = answer.status().code() == StatusCode::kTIMED_OUT;
    if (answer.ok() || (!silent && std::exchange(closed, true))) return answer;
    CGX_RETURN_IF_ERROR(dial_again());
  }
}

Result<LeaderStore::Answer> LeaderStore::ask_once(uint8_t what, const std::string& key,
                                                  std::span<const std::byte> value) {
  wire::Writer writer;
  writer.put(kLeaderMagic);
  writer.put(what);
  writer.put(static_cast<uint32_t>(key.size()));
  writer.put(static_cast<uint32_t>(value.size()));
  std::vector<std::byte> request = writer.take();
  const auto key_bytes = std::as_bytes(std::span(key));
  request.insert(request.end(), key_bytes.begin(), key_bytes.end());
  request.insert(request.end(), value.begin(), value.end());
  std::byte head[kReplyHead];
  CGX_RETURN_IF_ERROR(write_all(request));
  CGX_RETURN_IF_ERROR(read_all(head, sizeof head));
  wire::Reader reader(head);
  const auto magic = reader.get<uint32_t>();
  const auto found = reader.get<uint8_t>();
  const auto bytes = reader.get<uint32_t>();
  if (magic != kLeaderMagic || found > 1 || bytes > kValueBytesMax) return lost();
  Answer answer{.found = found == 1, .value = std::vector<std::byte>(bytes)};
  CGX_RETURN_IF_ERROR(read_all(answer.value.data(), bytes));
  return answer;
}

Status LeaderStore::put(const std::string& key, std::span<const std::byte> value) {
  CGX_ASSIGN_OR_RETURN(const Answer answer, ask(kPut, key, value));
  return answer.found ? Status() : resource_exhausted("CGX_LEADER=" + address_ + " is full");
}

Result<std::vector<std::byte>> LeaderStore::get(const std::string& key) {
  CGX_ASSIGN_OR_RETURN(Answer answer, ask(kGet, key, {}));
  if (!answer.found) return Status(StatusCode::kNOT_FOUND, key);
  return std::move(answer.value);
}

}  // namespace cgx::client
