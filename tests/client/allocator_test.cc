#include "client/allocator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

namespace cgx::client {
namespace {

TEST(AllocatorTest, GivesAlignedRangesThatDoNotTouchACacheLineTwice) {
  Allocator allocator(4096);
  EXPECT_EQ(allocator.allocate(1, 64), 0u);
  EXPECT_EQ(allocator.allocate(65, 64), 64u);
  EXPECT_EQ(allocator.allocate(1, 1024), 1024u);
  EXPECT_EQ(allocator.allocate(1, 64), 192u);  // the hole before the aligned one is used
}

TEST(AllocatorTest, PrefersTheSmallestHoleThatFits) {
  Allocator allocator(4096);
  const auto large = allocator.allocate(1024, 64);
  const auto keep1 = allocator.allocate(64, 64);
  const auto small = allocator.allocate(128, 64);
  const auto keep2 = allocator.allocate(64, 64);
  ASSERT_TRUE(large && keep1 && small && keep2);
  ASSERT_TRUE(allocator.release(*large));
  ASSERT_TRUE(allocator.release(*small));
  EXPECT_EQ(allocator.allocate(100, 64), *small);
}

TEST(AllocatorTest, TakesRangesThatAreFreeAndNoOthers) {
  Allocator allocator(4096);
  EXPECT_TRUE(allocator.take(1024, 1000));
  EXPECT_FALSE(allocator.take(1024, 1000));
  EXPECT_FALSE(allocator.take(960, 65));  // its line is taken
  EXPECT_FALSE(allocator.take(2000, 8));
  EXPECT_TRUE(allocator.take(960, 64));
  EXPECT_TRUE(allocator.take(2048, 2048));
  EXPECT_FALSE(allocator.take(0, 961));
  EXPECT_FALSE(allocator.take(4096, 1));
  EXPECT_FALSE(allocator.take(0, UINT64_MAX));
  Allocator::Block* const block = allocator.find(1030);
  ASSERT_NE(block, nullptr);
  allocator.hold(*block);
  EXPECT_TRUE(allocator.release(1024));
  EXPECT_FALSE(allocator.take(1024, 64)) << "somebody holds it";
  allocator.drop(*block);
  EXPECT_TRUE(allocator.take(1024, 64));
  EXPECT_TRUE(allocator.take(0, 960));
  EXPECT_EQ(allocator.allocated_count(), 4u);
}

TEST(AllocatorTest, RefusesWhatDoesNotFitAndUnknownOffsets) {
  Allocator allocator(256);
  EXPECT_FALSE(allocator.allocate(257, 64));
  EXPECT_TRUE(allocator.allocate(256, 64));
  EXPECT_FALSE(allocator.allocate(0, 64));
  EXPECT_FALSE(allocator.release(64));
  EXPECT_TRUE(allocator.release(0));
  EXPECT_FALSE(allocator.release(0));
  EXPECT_FALSE(allocator.allocate(UINT64_MAX, 64));
}

TEST(AllocatorTest, HeldBlockComesBackWithItsLastHold) {
  Allocator allocator(1024);
  ASSERT_EQ(allocator.allocate(100, 64), 0u);
  Allocator::Block* const block = allocator.find(99);
  ASSERT_NE(block, nullptr);
  allocator.hold(*block);
  allocator.hold(*block);
  EXPECT_TRUE(allocator.release(0));
  EXPECT_FALSE(allocator.release(0));
  EXPECT_EQ(allocator.find(0), nullptr);
  EXPECT_EQ(allocator.waiting_bytes(), 128u);
  allocator.drop(*block);
  EXPECT_EQ(allocator.allocate(100, 64), 128u);
  allocator.drop(*block);
  EXPECT_EQ(allocator.waiting_bytes(), 0u);
  EXPECT_EQ(allocator.allocate(100, 64), 0u);
}

TEST(AllocatorTest, CountsRegionsBeyondFourGigabytes) {
  const uint64_t region = 40'000'000'000ull;
  Allocator allocator(2 * region);
  ASSERT_EQ(allocator.allocate(region, 64), 0u);
  const auto second = allocator.allocate(region, 4096);
  ASSERT_TRUE(second);
  EXPECT_GE(*second, region);
  EXPECT_EQ(allocator.find(region - 1)->bytes, region);
  EXPECT_EQ(allocator.find(*second + region - 1)->offset, *second);
  EXPECT_FALSE(allocator.allocate(region, 64));
  EXPECT_TRUE(allocator.release(*second) && allocator.release(0));
  EXPECT_EQ(allocator.largest_free(), 2 * region);
}

TEST(AllocatorTest, NeverOverlapsAndCoalescesEverythingInTheEnd) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  constexpr uint64_t kBytes = 1 << 16;
  Allocator allocator(kBytes);
  std::map<uint64_t, uint64_t> live;
  for (int round = 0; round < 20'000; ++round) {
    if (random() % 2 == 0) {
      const uint64_t bytes = random() % 3000, alignment = 64ull << random() % 5;
      const auto offset = allocator.allocate(bytes, alignment);
      if (!offset) continue;
      ASSERT_EQ(*offset % alignment, 0u);
      ASSERT_LE(*offset + bytes, kBytes);
      const auto next = live.lower_bound(*offset);
      ASSERT_TRUE(next == live.end() || *offset + bytes <= next->first);
      ASSERT_TRUE(next == live.begin() ||
                  std::prev(next)->first + std::prev(next)->second <= *offset);
      live.emplace(*offset, std::max<uint64_t>(bytes, 1));
    } else if (!live.empty()) {
      const auto victim = std::next(live.begin(), static_cast<long>(random() % live.size()));
      ASSERT_TRUE(allocator.release(victim->first));
      live.erase(victim);
    }
    ASSERT_EQ(allocator.allocated_count(), live.size());
  }
  for (const auto& [offset, bytes] : live) ASSERT_TRUE(allocator.release(offset));
  EXPECT_EQ(allocator.largest_free(), kBytes);
  EXPECT_EQ(allocator.free_bytes(), kBytes);
}

}  // namespace
}  // namespace cgx::client
