#include "daemon/net/packet_socket.h"

#include <sys/socket.h>

#include <algorithm>
#include <cstring>

namespace cgx::daemon {
namespace {

constexpr size_t kSendFdsMax = 4;

// All that one packet can carry (SCM_MAX_FD): what does not fit the kernel closes here and now.
constexpr size_t kReceiveFdsMax = 253;

void adopt_fds(const msghdr& message, std::vector<UniqueFd>& fds) {
  auto* mutable_message = const_cast<msghdr*>(&message);
  for (cmsghdr* control = CMSG_FIRSTHDR(mutable_message); control != nullptr;
       control = CMSG_NXTHDR(mutable_message, control)) {
    if (control->cmsg_level != SOL_SOCKET || control->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (control->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(control) + i * sizeof(int), sizeof(int));
      fds.emplace_back(fd);
    }
  }
}

}  // namespace

Result<ReceiveOutcome> receive_packet(int socket, size_t bytes_max, Packet& packet,
                                      size_t fds_max) {
  packet.fds.clear();
  packet.bytes.resize(bytes_max);
  iovec part{packet.bytes.data(), bytes_max};
  alignas(cmsghdr) char control[CMSG_SPACE(kReceiveFdsMax * sizeof(int))];
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  const ssize_t got = ::recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return ReceiveOutcome::kNothing;
  if (got < 0) return ReceiveOutcome::kClosed;
  adopt_fds(message, packet.fds);
  packet.bytes.resize(std::min(static_cast<size_t>(got), bytes_max));
  if (message.msg_flags & MSG_TRUNC) {
    return protocol_error("a packet is larger than " + std::to_string(bytes_max) + " bytes");
  }
  if (message.msg_flags & MSG_CTRUNC) {  // all that may be sent would have fitted
    return resource_exhausted(
        "the daemon has no descriptor left for one that was sent (ulimit -n)");
  }
  if (packet.fds.size() > fds_max) {
    return protocol_error("a packet carries more than " + std::to_string(fds_max) + " descriptors");
  }
  // An empty packet and the end of the connection look alike; neither is a message.
  return got == 0 ? ReceiveOutcome::kClosed : ReceiveOutcome::kPacket;
}

Status send_packet(int socket, std::span<const std::byte> bytes, std::initializer_list<int> fds) {
  CGX_ASSERT(fds.size() <= kSendFdsMax);
  iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(kSendFdsMax * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (fds.size() > 0) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
    std::memcpy(CMSG_DATA(header), fds.begin(), fds.size() * sizeof(int));
  }
  if (::sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0) return {};
  return errno_status(StatusCode::kUNAVAILABLE, "sending to the client");
}

}  // namespace cgx::daemon
