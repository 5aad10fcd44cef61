// A client of the session socket in a few calls: whole messages, or any bytes a test wants to send.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <optional>
#include <string>
#include <vector>

#include "daemon/net/packet_socket.h"
#include "proto/wire/session_messages.h"
#include "proto/wire/unique_fd.h"

namespace cgx::daemon {

constexpr int kArenaSeals = F_SEAL_SHRINK | F_SEAL_GROW;

inline UniqueFd make_arena(uint64_t bytes, int seals = kArenaSeals) {
  UniqueFd memfd(::memfd_create("arena", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(::posix_fallocate(memfd.get(), 0, static_cast<off_t>(bytes)), 0);
  EXPECT_EQ(::fcntl(memfd.get(), F_ADD_SEALS, seals), 0);
  return memfd;
}

class RawClient {
 public:
  explicit RawClient(const std::string& path)
      : socket_(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof(address.sun_path) - 1);
    EXPECT_EQ(::connect(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  }

  void send_bytes(std::span<const std::byte> bytes, std::initializer_list<int> fds = {}) {
    (void)send_packet(socket_.get(), bytes, fds);  // the daemon may have hung up: that is the test
  }
  template <typename Message>
  void send(const Message& message, uint32_t request, std::initializer_list<int> fds = {}) {
    send_bytes(wire::encode_packet(message, request), fds);
  }

  struct Received {
    wire::PacketHeader header;
    std::vector<std::byte> body;
    std::vector<UniqueFd> fds;
  };
  // Nothing: the daemon hung up (or was silent for 10 s, which fails the test).
  std::optional<Received> receive() {
    std::vector<std::byte> bytes(wire::kSessionPacketBytesMax);
    alignas(cmsghdr) char control[CMSG_SPACE(4 * sizeof(int))];
    iovec part{bytes.data(), bytes.size()};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    pollfd poll{.fd = socket_.get(), .events = POLLIN, .revents = 0};
    EXPECT_EQ(::poll(&poll, 1, 10'000), 1) << "the daemon neither answered nor hung up";
    ssize_t got;  // that not all was read is told first
    do got = ::recvmsg(socket_.get(), &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    while (got < 0 && errno == ECONNRESET);
    if (got <= 0) return std::nullopt;
    Received received;
    bytes.resize(static_cast<size_t>(got));
    received.header = wire::parse_header(bytes, wire::Side::kClient).value();
    received.body.assign(bytes.begin() + sizeof(wire::PacketHeader), bytes.end());
    if (const cmsghdr* rights = CMSG_FIRSTHDR(&message)) {
      const auto* fds = reinterpret_cast<const int*>(CMSG_DATA(rights));
      const size_t count = (rights->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      for (size_t i = 0; i < count; ++i) received.fds.emplace_back(fds[i]);
    }
    return received;
  }
  // The next message must be a Reply.
  wire::Reply receive_reply() {
    const auto received = receive();
    EXPECT_TRUE(received.has_value()) << "the daemon hung up";
    if (!received) return {};
    return wire::decode_body<wire::Reply>(received->body).value();
  }
  bool hung_up() { return !receive().has_value(); }

  int fd() const { return socket_.get(); }
  void close() { socket_.reset(); }

 private:
  UniqueFd socket_;
};

}  // namespace cgx::daemon
