// Order: frames of a peer reach on_frame as they were sent, whatever their sizes and wherever
// send() was called from.
#include <cstring>
#include <random>

#include "tests/conformance/transport_suite.h"

namespace cgx::transport {
namespace {

TEST_P(TransportConformance, KeepsOrderUnderRandomSizesBothWays) {
  join();
  constexpr int kFrames = 400;
  std::mt19937 random(7);
  std::vector<std::vector<std::byte>> payloads;
  for (int i = 0; i < kFrames; ++i) {
    const size_t bound = i % 16 == 0 ? 600'000 : 20'000;
    payloads.push_back(pattern(random() % bound + 1, i));
  }
  for (int i = 0; i < kFrames; ++i) {
    for (Side* side : {&a, &b}) {
      ASSERT_TRUE(send(*side, std::to_string(i), payloads[i], i + 1).ok());
    }
    if (i % 8 == 0) tick();
  }
  ASSERT_TRUE(until(
      [&] { return a.events.frames.size() == kFrames && b.events.frames.size() == kFrames; }));
  for (int i = 0; i < kFrames; ++i) {
    for (Side* side : {&a, &b}) {
      ASSERT_EQ(side->events.frames[i].header, std::to_string(i));
      ASSERT_TRUE(side->events.frames[i].payload == to_text(payloads[i])) << "frame " << i;
    }
  }
}

TEST_P(TransportConformance, KeepsOrderWhenSendingFromInsideOnSent) {
  join();
  const std::vector<std::byte> payload = pattern(150'000, 1);
  constexpr SendToken kFrames = 100;
  SendToken next = 1;
  const auto send_next = [&] {
    if (next > kFrames) return;
    EXPECT_TRUE(send(a, std::to_string(next), payload, next).ok());
    ++next;
  };
  a.events.when_sent = [&](SendToken) { send_next(); };
  for (int i = 0; i < 6; ++i) send_next();
  ASSERT_TRUE(until([&] { return b.events.frames.size() == kFrames; }));
  for (SendToken i = 1; i <= kFrames; ++i) {
    EXPECT_EQ(b.events.frames[i - 1].header, std::to_string(i));
  }
}

// Frames of every size, from nothing to one of the longest, sent in bursts, from inside on_frame
// and from inside on_sent.
class Stream {
 public:
  Stream(Transport& transport, PeerId to, uint64_t seed)
      : transport_(transport), to_(to), random_(seed), bytes_(transport.caps().frame_bytes_max) {
    std::memcpy(bytes_.data(), &seed, sizeof seed);
  }

  static constexpr uint32_t kFrames = 2000;
  bool sent_all() const { return next_ == kFrames; }
  bool heard_all() const { return heard_ == kFrames && in_flight_bytes_ == 0; }
  void burst() {
    for (uint64_t count = random_() % 12; count > 0; --count) send_one();
  }
  void on_sent(SendToken token) {
    in_flight_bytes_ -= sizes_[token - 1];
    if (random_() % 4 == 0) send_one();
  }
  void on_frame(const Frame& frame, const Stream& sender) {
    ASSERT_EQ(frame.header.size(), sizeof heard_);
    uint32_t number = 0;
    std::memcpy(&number, frame.header.data(), sizeof number);
    ASSERT_EQ(number, heard_);
    ASSERT_EQ(frame.payload.size(), sender.sizes_[number]);
    const size_t bytes = frame.payload.size();  // 0: no address to compare at
    ASSERT_TRUE(bytes == 0 || std::memcmp(frame.payload.data(), sender.bytes_.data(), bytes) == 0);
    ++heard_;
    if (random_() % 4 == 0) send_one();
  }

 private:
  size_t next_size() {
    const Caps caps = transport_.caps();
    switch (random_() % 64) {
      case 0:
        return caps.frame_bytes_best * 8;
      case 1 ... 9:
        return caps.frame_bytes_best + random_() % caps.frame_bytes_best;
      case 10 ... 14:
        return caps.frame_bytes_best - random_() % 2;
      case 15 ... 30:
        return random_() % caps.frame_bytes_best;
      default:
        return random_() % 100;
    }
  }
  void send_one() {
    if (sent_all() || in_flight_bytes_ > (24u << 20)) return;
    const size_t bytes = next_ == kFrames / 2 ? bytes_.size() : next_size();
    const uint32_t number = next_++;
    sizes_.push_back(bytes);
    in_flight_bytes_ += bytes;
    const Frame frame{std::as_bytes(std::span(&number, 1)), std::span(bytes_).first(bytes)};
    const Status status = transport_.send(to_, frame, number + 1);
    ASSERT_TRUE(status.ok()) << status.to_string();
  }

  Transport& transport_;
  const PeerId to_;
  std::mt19937_64 random_;
  std::vector<std::byte> bytes_;
  std::vector<size_t> sizes_;  // by number
  size_t in_flight_bytes_ = 0;
  uint32_t next_ = 0, heard_ = 0;
};

TEST_P(TransportConformance, KeepsOrderWhateverTheSizesAndWhereverTheyAreSentFrom) {
  const uint64_t seed = 1;
  SCOPED_TRACE("seed " + std::to_string(seed));
  join();
  Stream from_a(*a.transport, a.peer, seed), from_b(*b.transport, b.peer, seed + 1);
  a.events.keeps_frames = b.events.keeps_frames = false;
  a.events.when_sent = [&](SendToken token) { from_a.on_sent(token); };
  b.events.when_sent = [&](SendToken token) { from_b.on_sent(token); };
  a.events.when_frame = [&](PeerId, const Frame& frame) { from_a.on_frame(frame, from_b); };
  b.events.when_frame = [&](PeerId, const Frame& frame) { from_b.on_frame(frame, from_a); };
  EXPECT_TRUE(until([&] {
    from_a.burst();
    from_b.burst();
    return HasFatalFailure() || (from_a.heard_all() && from_b.heard_all());
  }));
}

TEST_P(TransportConformance, KeepsOrderWhileLinksComeUpAndGo) {
  constexpr int kLinks = 40, kFrames = 30;
  const std::vector<std::byte> payload = pattern(a.transport->caps().frame_bytes_best * 4, 1);
  std::mt19937 random(11);
  a.events.keeps_frames = b.events.keeps_frames = false;
  for (uint64_t link = 0; link < kLinks; ++link) {
    int heard_a = 0, heard_b = 0;
    a.events.when_frame = [&](PeerId, const Frame& frame) {
      EXPECT_EQ(to_text(frame.header), std::to_string(heard_a++));
    };
    b.events.when_frame = [&](PeerId, const Frame& frame) {
      EXPECT_EQ(to_text(frame.header), std::to_string(heard_b++));
    };
    const Result<PeerId> to_b = a.transport->connect(options(a, b, link));
    const Result<PeerId> to_a = b.transport->connect(options(b, a, link));
    ASSERT_TRUE(to_b.ok() && to_a.ok());
    a.peer = *to_b;
    b.peer = *to_a;
    const size_t sent = a.events.sent.size() + b.events.sent.size();
    for (int i = 0; i < kFrames; ++i) {
      const size_t bytes = random() % (i % 3 == 0 ? payload.size() : 200);
      ASSERT_TRUE(send(a, std::to_string(i), std::span(payload).first(bytes), i + 1).ok());
      ASSERT_TRUE(send(b, std::to_string(i), std::span(payload).first(bytes), i + 1).ok());
      for (uint32_t ticks = random() % 3; ticks > 0; --ticks) tick();
    }
    ASSERT_TRUE(until([&] {
      return heard_a == kFrames && heard_b == kFrames &&
             a.events.sent.size() + b.events.sent.size() == sent + 2 * kFrames;
    })) << "link "
        << link << ": " << heard_a << " and " << heard_b << " frames";
    a.transport->close(a.peer);
    b.transport->close(b.peer);
    if (link % 8 == 7) {  // a new process each
      a.transport.reset();
      b.transport.reset();
      for (Side* side : {&a, &b}) side->transport = rig->make(side->events);
    }
  }
}

}  // namespace
}  // namespace cgx::transport
