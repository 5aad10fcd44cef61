// A descriptor that takes long to close.
#pragma once

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <vector>

#include "proto/wire/unique_fd.h"

namespace cgx::daemon {

// A TCP socket with unsent data, whose close blocks until its other end is closed.
struct Lingering {
  UniqueFd socket, reader;

  Lingering() {
    const UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    socket = UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t bytes = sizeof(address);
    auto* const plain = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(::bind(listener.get(), plain, bytes), 0);
    EXPECT_EQ(::listen(listener.get(), 1), 0);
    EXPECT_EQ(::getsockname(listener.get(), plain, &bytes), 0);
    EXPECT_EQ(::connect(socket.get(), plain, bytes), 0);
    reader = UniqueFd(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    const std::vector<char> data(1 << 20);
    while (::send(socket.get(), data.data(), data.size(), MSG_DONTWAIT) > 0) {
    }
    const linger long_enough{1, 600};
    EXPECT_EQ(::setsockopt(socket.get(), SOL_SOCKET, SO_LINGER, &long_enough, sizeof(long_enough)),
              0);
  }
};

}  // namespace cgx::daemon
