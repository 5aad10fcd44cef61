#include "client/session_socket.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>

namespace cgx::client {
namespace {

// The system says first that a packet was left unread.
TEST(SessionSocket, LastWordsAreHeardThoughTheDaemonHasNotReadAll) {
  char directory[] = "/tmp/cgx-test-XXXXXX";
  ASSERT_NE(::mkdtemp(directory), nullptr);
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  std::strcpy(address.sun_path, (directory + std::string("/sock")).c_str());
  const UniqueFd door(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  ASSERT_EQ(::bind(door.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(::listen(door.get(), 1), 0);
  const Deadline deadline = Clock::now() + std::chrono::seconds(10);
  const auto client = SessionSocket::connect(address.sun_path, deadline);
  ASSERT_TRUE(client.ok()) << client.status().to_string();
  const auto request = (*client)->post(wire::DropArena{.arena = 0});
  ASSERT_TRUE(request.ok());
  {
    const UniqueFd daemon(::accept(door.get(), nullptr, nullptr));
    const auto words = wire::encode_packet(wire::Reply{.message = "it is full"}, 0);
    ASSERT_EQ(::send(daemon.get(), words.data(), words.size(), 0), ssize_t(words.size()));
  }
  const auto reply = (*client)->await(*request, deadline);
  EXPECT_EQ(reply.status().code(), StatusCode::kDAEMON_LOST);
  EXPECT_THAT(reply.status().message(), ::testing::HasSubstr("it is full"));
  ::unlink(address.sun_path);
  ::rmdir(directory);
}

}  // namespace
}  // namespace cgx::client
