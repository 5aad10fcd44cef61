// Two UCX transports in one thread and the links between them.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <tuple>
#include <vector>

#include "tests/transport/side.h"
#include "transport/ucx.h"

namespace cgx::transport {

using Clock = std::chrono::steady_clock;

class UcxTest : public ::testing::Test {
 protected:
  UcxTest() { prepare_process(); }

  void open(Side& side, const UcxOptions& options = {}) {
    side.open(make_ucx_transport(options, side.events));
  }
  // A new link, with tags that no link had before.
  void join() {
    const uint64_t to_a = ++last_tag, to_b = ++last_tag;
    for (auto [from, to, in, out] :
         {std::tuple{&a, &b, to_a, to_b}, std::tuple{&b, &a, to_b, to_a}}) {
      auto peer = from->transport->connect({.remote = *to->transport->local_endpoint(),
                                            .inbound_tag = in,
                                            .outbound_tag = out,
                                            .name = "peer"});
      ASSERT_TRUE(peer.ok()) << peer.status().to_string();
      from->peer = *peer;
    }
  }
  void open_pair(const UcxOptions& options = {}) {
    open(a, options);
    open(b, options);
    join();
  }
  bool until(const std::function<bool()>& done) {
    const auto deadline = Clock::now() + std::chrono::seconds(120);
    while (!done()) {
      if (Clock::now() >= deadline) return false;
      if (a.transport) a.transport->progress();
      if (b.transport) b.transport->progress();
    }
    return true;
  }
  // Until what was sent has long been taken in and answered.
  void settle() {
    for (int round = 0; round < 2000; ++round) {
      a.transport->progress();
      b.transport->progress();
    }
  }
  // One frame there and one back.
  void exchange(size_t payload_bytes) {
    const std::vector<std::byte> payload(payload_bytes, std::byte{1});
    const size_t to_a = a.events.frames.size() + 1, to_b = b.events.frames.size() + 1;
    const size_t sent = a.events.sent.size() + 1;
    ASSERT_TRUE(a.transport->send(a.peer, {to_bytes("h"), payload}, 1).ok());
    ASSERT_TRUE(b.transport->send(b.peer, {to_bytes("h"), {}}, kNoToken).ok());
    ASSERT_TRUE(until([&] {
      return a.events.frames.size() == to_a && b.events.frames.size() == to_b &&
             a.events.sent.size() == sent;
    }));
  }

  static Status refusal(const UcxOptions& options) {
    Recorder events;
    auto transport = make_ucx_transport(options, events);
    return transport.ok() ? Status() : transport.status();
  }

  Side a, b;
  uint64_t last_tag = 0;
};

}  // namespace cgx::transport
