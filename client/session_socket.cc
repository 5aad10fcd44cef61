#include "client/session_socket.h"

#include <grp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "client/checks.h"
#include "proto/wire/packet_fds.h"
#include "proto/wire/run_directory.h"

namespace cgx::client {
namespace {

constexpr size_t kFdsMax = 3;
constexpr std::chrono::seconds kHealthInterval(1);
constexpr int64_t kSendMs = 10'000;  // a daemon that reads nothing for so long is stopped

std::string errno_text() {
  return std::strerror(errno);
}

std::string host_name() {
  char name[256] = "";
  ::gethostname(name, sizeof(name) - 1);
  return name;
}

timeval to_timeval(int64_t ms) {
  return {.tv_sec = ms / 1000, .tv_usec = (ms % 1000) * 1000};
}

// A connect to a stopped daemon with a full backlog blocks: the send time-out bounds it.
void bound_sends(int fd, int64_t limit_ms) {
  const timeval limit = to_timeval(limit_ms);
  ::setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
}

// Root's group is not one to be a member of.
std::string membership_text(const std::string& path) {
  struct stat info {};
  const bool known = ::stat(path.c_str(), &info) == 0;
  if (known && info.st_gid == 0) return "its socket is root's; ";
  const group* const owner = known ? ::getgrgid(info.st_gid) : nullptr;
  return "be a member of its group" + (owner != nullptr ? " " + std::string(owner->gr_name) : "") +
         ", or ";
}

// Errno says why connect() failed.
Status cannot_connect(const std::string& path) {
  if (errno != EACCES) {
    const std::string why =
        "no daemon answers at " + path + " on " + host_name() + ": " + errno_text();
    const std::string refusal = read_refusal(path);
    return unavailable(refusal.empty() ? why : why + "; the last one did not start: " + refusal);
  }
  return {StatusCode::kPERMISSION_DENIED,
          "user " + std::to_string(::getuid()) + " may not use the daemon at " + path + " on " +
              host_name() + ": " + membership_text(path) +
              "let the daemon's client.socket_group and client.socket_mode admit you"};
}

}  // namespace

Result<std::unique_ptr<SessionSocket>> SessionSocket::connect(const std::string& path,
                                                              Deadline deadline) {
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  if (path.size() >= sizeof(address.sun_path)) {
    return invalid_argument("socket path " + path + " has " + std::to_string(path.size()) +
                            " bytes; a Unix socket's path has at most " +
                            std::to_string(sizeof(address.sun_path) - 1));
  }
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  UniqueFd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return unavailable("socket(AF_UNIX): " + errno_text());
  bound_sends(fd.get(), std::max<int64_t>(ms_until(deadline), 1));
  if (::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
    return cannot_connect(path);
  }
  return std::unique_ptr<SessionSocket>(new SessionSocket(path, std::move(fd)));
}

Result<uint32_t> SessionSocket::daemon_uid() const {
  ucred peer{};
  socklen_t length = sizeof(peer);
  if (::getsockopt(fd_.get(), SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) {
    return unavailable("credentials of the daemon at " + path_ + ": " + errno_text());
  }
  return peer.uid;
}

Result<Handshake> SessionSocket::shake_hands(const wire::Hello& hello, Deadline deadline) {
  const UniqueFd self(static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0)));
  if (!self.valid()) return unavailable("pidfd_open of this process: " + errno_text());
  const uint32_t request = next_request();
  const Status sent = send(wire::encode_packet(hello, request), {.fd = self.get()});
  if (!wait_readable(deadline).ok()) {
    return unavailable("the daemon at " + path_ +
                       " accepted the connection but did not answer; "
                       "is it stopped?");
  }
  std::vector<UniqueFd> fds;
  const auto packet = receive(&fds);
  CGX_RETURN_IF_ERROR(!packet.ok() && !sent.ok() ? sent : packet.status());
  CGX_ASSIGN_OR_RETURN(const wire::PacketHeader header,
                       wire::parse_header(*packet, wire::Side::kClient));
  const auto body = std::span(*packet).subspan(sizeof(header));
  if (header.type == static_cast<uint16_t>(wire::SessionMessageType::kReply)) {
    CGX_ASSIGN_OR_RETURN(wire::Reply refusal, wire::decode_body<wire::Reply>(body));
    if (refusal.code != StatusCode::kOK) return Status(refusal.code, refusal.message);
  }
  if (header.type != static_cast<uint16_t>(wire::SessionMessageType::kWelcome) ||
      fds.size() != kFdsMax) {
    return protocol_error("the daemon at " + path_ + " answered Hello with message type " +
                          std::to_string(header.type) + " and " + std::to_string(fds.size()) +
                          " descriptors instead of Welcome and 3");
  }
  CGX_ASSIGN_OR_RETURN(wire::Welcome welcome, wire::decode_body<wire::Welcome>(body));
  bound_sends(fd_.get(), kSendMs);  // no longer what was left of the time to connect
  return Handshake{std::move(welcome), std::move(fds[0]), std::move(fds[1]), std::move(fds[2])};
}

uint32_t SessionSocket::next_request() {
  const MutexLock lock(mutex_);
  if (++last_request_ == 0) ++last_request_;
  expected_.insert(last_request_);
  return last_request_;
}

Status SessionSocket::send(const std::vector<std::byte>& packet, const CallWith& with) {
  if (packet.size() > wire::kSessionPacketBytesMax) {
    return resource_exhausted("session message of " + std::to_string(packet.size()) +
                              " bytes exceeds the limit of " +
                              std::to_string(wire::kSessionPacketBytesMax));
  }
  iovec part{const_cast<std::byte*>(packet.data()), packet.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  wire::FdRoom<2> room;
  const int fds[] = {with.fd, with.second_fd};
  const size_t count = with.fd < 0 ? 0 : with.second_fd < 0 ? 1 : 2;
  wire::attach_fds(message, room.bytes, {fds, count});
  ssize_t sent;
  do sent = ::sendmsg(fd_.get(), &message, MSG_NOSIGNAL);
  while (sent < 0 && errno == EINTR);
  if (sent == static_cast<ssize_t>(packet.size())) return {};
  return lost("sending failed: " + errno_text());
}

Status SessionSocket::wait_readable(Deadline deadline) const {
  pollfd entry{.fd = fd_.get(), .events = POLLIN, .revents = 0};
  for (;;) {
    const int64_t left = std::min<int64_t>(ms_until(deadline), 3'600'000);
    const int ready = ::poll(&entry, 1, static_cast<int>(left));
    if (ready > 0) return {};
    if (ready < 0 && errno != EINTR) return lost("poll failed: " + errno_text());
    if (ms_until(deadline) == 0) {
      return Status(StatusCode::kTIMED_OUT, "the daemon at " + path_ + " did not answer in time");
    }
  }
}

Result<std::vector<std::byte>> SessionSocket::receive(std::vector<UniqueFd>* fds, int flags) const {
  std::vector<std::byte> packet(wire::kSessionPacketBytesMax);
  iovec part{packet.data(), packet.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(kFdsMax * sizeof(int))];
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  // A daemon that hangs up may not have read everything: the first receive says so, and what it
  // said itself is behind that.
  ssize_t size;
  do size = ::recvmsg(fd_.get(), &message, MSG_CMSG_CLOEXEC | flags);
  while (size < 0 && (errno == EINTR || errno == ECONNRESET));
  std::vector<UniqueFd> received;
  if (size >= 0) wire::take_fds(message, received);
  if (size < 0) return lost("receiving failed: " + errno_text());
  if (size == 0) return lost("it closed the session");
  if (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) {
    return protocol_error("the daemon at " + path_ + " sent a packet above the limit of " +
                          std::to_string(packet.size()) + " bytes or 3 descriptors");
  }
  packet.resize(static_cast<size_t>(size));
  if (fds) *fds = std::move(received);
  return packet;
}

void SessionSocket::keep_reply(std::span<const std::byte> packet) {
  const auto header = wire::parse_header(packet, wire::Side::kClient);
  if (!header.ok()) {
    failed_ = header.status();
    return;
  }
  auto reply = wire::decode_body<wire::Reply>(packet.subspan(sizeof(wire::PacketHeader)));
  if (header->type != static_cast<uint16_t>(wire::SessionMessageType::kReply) || !reply.ok()) {
    failed_ = protocol_error("the daemon at " + path_ + " sent message type " +
                             std::to_string(header->type) + " where a reply was expected");
    return;
  }
  if (header->request == 0) {  // no answer: why it is about to close the session
    last_words_ = Status(reply->code, reply->message).to_string();
    return;
  }
  // Nobody waits any more for the answer to a call that timed out.
  if (expected_.contains(header->request)) replies_[header->request] = std::move(reply).value();
}

// Reads the socket once on behalf of everybody who waits. Called and left with the lock held.
void SessionSocket::read_one(Deadline deadline) {
  reading_ = true;
  mutex_.unlock();
  Status readable = wait_readable(deadline);
  Result<std::vector<std::byte>> packet = std::vector<std::byte>();
  if (readable.ok()) packet = receive(nullptr);
  mutex_.lock();
  reading_ = false;
  if (!packet.ok()) {
    fail(packet.status());
  } else if (readable.ok()) {
    keep_reply(*packet);
  } else if (readable.code() != StatusCode::kTIMED_OUT) {
    fail(readable);
  }
  changed_.notify_all();
}

// The first cause stands; a daemon that told why it leaves is quoted.
void SessionSocket::fail(const Status& why) {
  if (!failed_.ok()) return;
  failed_ = why;
  if (why.code() == StatusCode::kDAEMON_LOST && !last_words_.empty()) {
    failed_ = lost("it closed the session: " + last_words_);
  }
}

void SessionSocket::check_health(Patience patience) {
  if (!health_check_) return;
  mutex_.unlock();
  const Status health = health_check_(patience);
  mutex_.lock();
  if (!health.ok()) fail(health);
}

Result<wire::Reply> SessionSocket::await(uint32_t request, Deadline deadline, Patience patience) {
  const MutexLock lock(mutex_);
  while (!replies_.contains(request) && failed_.ok() && Clock::now() < deadline) {
    const Deadline slice = std::min<Deadline>(deadline, Clock::now() + kHealthInterval);
    if (reading_) {
      changed_.wait_until(mutex_, slice);
    } else {
      read_one(slice);
    }
    if (Clock::now() >= slice) check_health(patience);
  }
  const std::optional<wire::Reply> reply = take_reply(request);
  if (reply && reply->code == StatusCode::kOK) return *reply;
  if (reply) return Status(reply->code, reply->message);
  if (!failed_.ok()) return failed_;
  return Status(StatusCode::kTIMED_OUT, "the daemon at " + path_ + " did not answer in time");
}

void SessionSocket::cancel(uint32_t request) {
  const MutexLock lock(mutex_);
  if (!expected_.contains(request)) return;
  replies_.try_emplace(request, wire::Reply{.code = StatusCode::kCANCELLED,
                                            .message = "the wait for a reply was given up"});
  changed_.notify_all();
}

Status SessionSocket::error_of(uint32_t request) {
  const MutexLock lock(mutex_);
  const std::optional<wire::Reply> reply = take_reply(request);
  return reply ? Status(reply->code, reply->message) : Status();
}

std::optional<wire::Reply> SessionSocket::take_reply(uint32_t request) {
  expected_.erase(request);
  auto found = replies_.extract(request);
  if (found.empty()) return std::nullopt;
  return std::move(found.mapped());
}

Status SessionSocket::gone() {
  pollfd entry{.fd = fd_.get(), .events = POLLRDHUP, .revents = 0};
  if (::poll(&entry, 1, 0) <= 0) return {};
  const MutexLock lock(mutex_);
  while (!reading_ && failed_.ok()) {
    const auto packet = receive(nullptr, MSG_DONTWAIT);
    if (packet.ok()) {
      keep_reply(*packet);
    } else {
      fail(packet.status());
    }
  }
  return failed_.ok() ? lost("it closed the session or died") : failed_;
}

void SessionSocket::shut_down(const Status& why) {
  {
    const MutexLock lock(mutex_);
    fail(why);
  }
  if (fd_.valid()) ::shutdown(fd_.get(), SHUT_RDWR);
  changed_.notify_all();
}

Status SessionSocket::lost(const std::string& why) const {
  return {StatusCode::kDAEMON_LOST, "the daemon at " + path_ + " is gone: " + why};
}

}  // namespace cgx::client
