// Two tcp transports in one thread and the links between them, straight or through a relay.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <memory>

#include "tests/transport/side.h"
#include "tests/transport/tcp_relay.h"
#include "transport/tcp.h"

namespace cgx::transport {

using Clock = std::chrono::steady_clock;

class TcpTest : public ::testing::Test {
 protected:
  void open(Side& side, const TcpOptions& options = {}) {
    side.open(make_tcp_transport(options, side.events));
  }
  SocketAddress door(Side& side) { return address_in(side.transport->local_endpoint()->address); }
  // A new link, dialed by a; through the relay if there is one.
  void join(Side& from, Side& to) {
    const uint64_t to_from = ++last_tag_, to_to = ++last_tag_;
    const LinkSecret secret{std::byte{1}, static_cast<std::byte>(last_tag_)};
    Endpoint there = *to.transport->local_endpoint();
    if (relay && &to == &b) there.address = relay->address();
    if (!doors.empty() && &to == &b) there.address = address_of(doors);
    auto back = to.transport->connect({.remote = *from.transport->local_endpoint(),
                                       .inbound_tag = to_to,
                                       .outbound_tag = to_from,
                                       .secret = secret,
                                       .name = "machine 1"});
    auto forth = from.transport->connect({.remote = there,
                                          .inbound_tag = to_from,
                                          .outbound_tag = to_to,
                                          .secret = secret,
                                          .dials = true,
                                          .name = "machine 2"});
    ASSERT_TRUE(back.ok()) << back.status().to_string();
    ASSERT_TRUE(forth.ok()) << forth.status().to_string();
    to.peer = *back;
    from.peer = *forth;
  }
  void open_pair(const TcpOptions& options = {}) {
    open(a, options);
    open(b, options);
    join(a, b);
  }
  void open_pair_with_relay(const TcpOptions& options = {}) {
    open(a, options);
    open(b, options);
    relay = std::make_unique<TcpRelay>(door(b));
    join(a, b);
  }
  void tick() {
    for (Side* side : {&a, &b}) {
      if (side->transport) side->transport->progress();
    }
    if (relay) relay->pump();
  }
  template <typename Done>
  bool until(Done done, std::chrono::milliseconds limit = std::chrono::seconds(120)) {
    const auto deadline = Clock::now() + limit;
    while (!done()) {
      if (Clock::now() >= deadline) return false;
      tick();
    }
    return true;
  }
  // One frame each way.
  void exchange() {
    const size_t at_a = a.events.frames.size() + 1, at_b = b.events.frames.size() + 1;
    ASSERT_TRUE(a.transport->send(a.peer, {to_bytes("there"), {}}, kNoToken).ok());
    ASSERT_TRUE(b.transport->send(b.peer, {to_bytes("back"), {}}, kNoToken).ok());
    ASSERT_TRUE(
        until([&] { return a.events.frames.size() == at_a && b.events.frames.size() == at_b; }));
  }

  Side a, b;
  std::unique_ptr<TcpRelay> relay;
  std::vector<SocketAddress> doors;  // at which b is dialed, if not at its own or the relay's

 private:
  uint64_t last_tag_ = 0;
};

}  // namespace cgx::transport
