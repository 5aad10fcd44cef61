// Who reaches a listening socket behind a filter, over loopback's many addresses.
#include "transport/address_filter.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <string>
#include <vector>

#include "transport/tcp_sockets.h"

namespace cgx::transport {
namespace {

constexpr int kDroppedMs = 200;  // a SYN over loopback is answered at once, or not at all

AddressRange range(const char* address, unsigned bits) {
  AddressRange result{.bits = bits};
  if (::inet_pton(AF_INET6, address, result.address.data()) != 1) ADD_FAILURE() << address;
  return result;
}

AddressRange range4(const std::string& address, unsigned bits) {
  return range(("::ffff:" + address).c_str(), 96 + bits);
}

class AddressFilterTest : public ::testing::Test {
 protected:
  void listen(const std::string& host, const std::vector<AddressRange>& ranges) {
    auto made = listen_at(host, 0, 0, {});
    ASSERT_TRUE(made.ok()) << made.status().to_string();
    listener = *std::move(made);
    ASSERT_EQ(admit_only(listener.get(), ranges), 0);
  }
  // Whether a connection from there comes about.
  bool reaches(const std::string& from) {
    const SocketAddress to = own_address(listener.get());
    Socket caller(::socket(to.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK, 0));
    const SocketAddress source = SocketAddress::parse(from, 0).value();
    if (::bind(caller.get(), source.get(), source.bytes) != 0) ADD_FAILURE() << from;
    if (::connect(caller.get(), to.get(), to.bytes) == 0) return true;
    pollfd writable{.fd = caller.get(), .events = POLLOUT, .revents = 0};
    return ::poll(&writable, 1, kDroppedMs) == 1 && pending_error(caller.get()) == 0;
  }

  Socket listener;
};

TEST_F(AddressFilterTest, AdmitsWhoLiesInARange) {
  listen("127.0.0.1", {range4("10.0.0.0", 8), range4("127.1.0.0", 16), range4("127.0.0.6", 31)});
  for (const char* inside : {"127.1.0.0", "127.1.255.255", "127.0.0.6", "127.0.0.7"}) {
    EXPECT_TRUE(reaches(inside)) << inside;
  }
  for (const char* outside :
       {"127.0.0.1", "127.0.255.255", "127.2.0.0", "127.0.0.5", "127.0.0.8"}) {
    EXPECT_FALSE(reaches(outside)) << outside;
  }
}

TEST_F(AddressFilterTest, AdmitsNobodyWithoutARange) {
  listen("127.0.0.1", {});
  EXPECT_FALSE(reaches("127.0.0.1"));
}

TEST_F(AddressFilterTest, AdmitsEverybodyInTheWidestRanges) {
  for (const AddressRange& all : {range4("0.0.0.0", 0), range("::", 0), range("::", 80)}) {
    listen("127.0.0.1", {all});
    EXPECT_TRUE(reaches("127.0.0.1")) << all.bits;
  }
}

TEST_F(AddressFilterTest, ComparesEveryWordOfAnIpv6Address) {
  if (!listen_at("::1", 0, 0, {}).ok()) GTEST_SKIP() << "no IPv6 here";
  for (const AddressRange& inside : {range("::1", 128), range("::", 64), range("::", 127)}) {
    listen("::1", {range("fd00::", 8), inside});
    EXPECT_TRUE(reaches("::1")) << inside.bits;
  }
  for (const AddressRange& outside : {range("::2", 128), range("1::1", 128), range("0:1::1", 128),
                                      range("::1:0:1", 128), range4("127.0.0.1", 32)}) {
    listen("::1", {outside});
    EXPECT_FALSE(reaches("::1")) << outside.bits;
  }
}

TEST_F(AddressFilterTest, SaysSoWhenThereAreTooManyRanges) {
  listener = listen_at("127.0.0.1", 0, 0, {}).value();
  EXPECT_EQ(admit_only(listener.get(), std::vector<AddressRange>(2000, range("fd00::1", 128))),
            E2BIG);
}

}  // namespace
}  // namespace cgx::transport
