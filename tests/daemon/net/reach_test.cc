#include "daemon/net/reach.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include "daemon/net/interfaces.h"
#include "daemon/net/tcp_listener.h"

namespace cgx::daemon {
namespace {

TcpListener listener_at(const std::string& host) {
  Result<TcpListener> listener = TcpListener::open(address_of(host, 0), "test");
  EXPECT_TRUE(listener.ok()) << listener.status().to_string();
  return *std::move(listener);
}

TEST(OwnListenersTest, AreKnownHoweverTheirAddressIsWritten) {
  const TcpListener listener = listener_at("127.0.0.1");
  const std::string port = std::to_string(listener.port);
  for (const std::string host :
       {"127.0.0.1", "[::ffff:127.0.0.1]", "[0:0:0:0:0:ffff:7f00:1]", "0.0.0.0"}) {
    EXPECT_TRUE(is_own_listener(host + ":" + port)) << host;
  }
  EXPECT_TRUE(is_own_listener("127.0.0.1:0" + port));
  EXPECT_TRUE(is_own_listener("127.0.0.1:" + std::to_string(listener.port + 65536)));
  EXPECT_TRUE(is_own_listener("127.0.0.1:" + port + "x")) << "a port that is no number";
}

TEST(OwnListenersTest, WithoutAnAddressAnswerAtAllOfThisMachines) {
  const TcpListener listener = listener_at("0.0.0.0");
  EXPECT_TRUE(is_own_listener(address_of("127.0.0.2", listener.port)));
  for (const InterfaceAddress& each : interface_addresses()) {
    const bool ipv4 = each.host.find(':') == std::string::npos;
    EXPECT_EQ(is_own_listener(address_of(each.host, listener.port)), ipv4) << each.host;
  }
}

TEST(OwnListenersTest, AreNotThoseOfOthers) {
  const TcpListener listener = listener_at("127.0.0.1");
  EXPECT_FALSE(is_own_listener(address_of("127.0.0.2", listener.port)));
  EXPECT_FALSE(is_own_listener(address_of("192.0.2.7", listener.port)));
  uint16_t free = 0;
  {
    const TcpListener ended = listener_at("127.0.0.1");
    free = ended.port;
    EXPECT_TRUE(is_own_listener(address_of("127.0.0.1", free)));
  }
  EXPECT_FALSE(is_own_listener(address_of("127.0.0.1", free))) << "another process may have it";
}

}  // namespace
}  // namespace cgx::daemon
