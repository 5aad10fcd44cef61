#include "daemon/gpu/byte_ring.h"

#include <gtest/gtest.h>

#include <deque>
#include <random>

namespace cgx::daemon::gpu {
namespace {

constexpr uint64_t kBytes = 1024;

class ByteRing : public ::testing::Test {
 protected:
  static std::vector<std::byte> message(uint32_t bytes, uint8_t filling) {
    std::vector<std::byte> made(bytes, std::byte{filling});
    std::memcpy(made.data(), &bytes, sizeof(bytes));
    return made;
  }

  ByteRingCursors cursors_{};
  alignas(8) std::byte memory_[kBytes];
  ByteProducer producer_{&cursors_, memory_, kBytes};
  ByteConsumer consumer_{&cursors_, memory_, kBytes};
  std::vector<std::byte> got_;
};

TEST_F(ByteRing, MessagesComeOutWholeAndInOrder) {
  std::mt19937 random(7);
  std::deque<std::vector<std::byte>> inside;
  for (int turn = 0; turn < 20'000; ++turn) {
    if (random() % 2 == 0) {
      std::vector<std::byte> next =
          message(8 * (1 + random() % (kBytes / 2 / 8)), static_cast<uint8_t>(turn));
      if (producer_.try_push(next)) inside.push_back(std::move(next));
      producer_.publish();
      continue;
    }
    const auto pop = consumer_.try_pop(got_);
    ASSERT_EQ(pop, inside.empty() ? ByteConsumer::Pop::kEmpty : ByteConsumer::Pop::kMessage);
    if (inside.empty()) continue;
    ASSERT_EQ(got_, inside.front());
    inside.pop_front();
  }
}

TEST_F(ByteRing, WhatFitsHalfAlwaysFitsAnEmptyRing) {
  for (uint32_t before = 8; before < kBytes; before += 8) {
    ASSERT_TRUE(producer_.try_push(message(8, 1)));
    producer_.publish();
    ASSERT_EQ(consumer_.try_pop(got_), ByteConsumer::Pop::kMessage);
    ASSERT_TRUE(producer_.try_push(message(static_cast<uint32_t>(producer_.longest()), 2)));
    producer_.publish();
    ASSERT_EQ(consumer_.try_pop(got_), ByteConsumer::Pop::kMessage);
  }
}

TEST_F(ByteRing, NothingIsSeenBeforeItIsPublished) {
  ASSERT_TRUE(producer_.try_push(message(64, 3)));
  EXPECT_TRUE(consumer_.empty());
  producer_.publish();
  EXPECT_FALSE(consumer_.empty());
}

TEST_F(ByteRing, NonsenseOfTheOtherSideIsNoMessage) {
  cursors_.tail = kBytes + 8;
  EXPECT_EQ(consumer_.try_pop(got_), ByteConsumer::Pop::kViolation);
  for (const uint32_t size : {4u, 12u, 4096u}) {
    cursors_.tail = 64;
    std::memcpy(memory_, &size, sizeof(size));
    EXPECT_EQ(consumer_.try_pop(got_), ByteConsumer::Pop::kViolation) << size;
  }
  constexpr uint32_t kSkip = 0;
  std::memcpy(memory_, &kSkip, sizeof(kSkip));
  EXPECT_EQ(consumer_.try_pop(got_), ByteConsumer::Pop::kViolation) << "a jump past what is there";
}

}  // namespace
}  // namespace cgx::daemon::gpu
