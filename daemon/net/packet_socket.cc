#include "daemon/net/packet_socket.h"

#include <sys/socket.h>

#include <algorithm>

#include "proto/wire/packet_fds.h"

namespace cgx::daemon {
namespace {

constexpr size_t kSendFdsMax = 4;

// All that one packet can carry (SCM_MAX_FD): what does not fit the kernel closes here and now.
constexpr size_t kReceiveFdsMax = 253;

}  // namespace

NextPacket next_packet(int socket) {
  msghdr message{};  // without room for descriptors: none is installed, and none is closed
  const ssize_t got = ::recvmsg(socket, &message, MSG_PEEK | MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return NextPacket::kNone;
  return message.msg_flags & MSG_CTRUNC ? NextPacket::kWithDescriptors : NextPacket::kPlain;
}

Result<ReceiveOutcome> receive_packet(int socket, size_t bytes_max, Packet& packet,
                                      size_t fds_max) {
  packet.fds.clear();
  packet.bytes.resize(bytes_max);
  iovec part{packet.bytes.data(), bytes_max};
  wire::FdRoom<kReceiveFdsMax> room;
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = room.bytes;
  message.msg_controllen = sizeof(room.bytes);
  const ssize_t got = ::recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return ReceiveOutcome::kNothing;
  if (got < 0) return ReceiveOutcome::kClosed;
  wire::take_fds(message, packet.fds);
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
  wire::FdRoom<kSendFdsMax> room;
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  wire::attach_fds(message, room.bytes, {fds.begin(), fds.size()});
  if (::sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0) return {};
  return errno_status(StatusCode::kUNAVAILABLE, "sending to the client");
}

}  // namespace cgx::daemon
