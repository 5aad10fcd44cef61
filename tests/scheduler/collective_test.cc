#include "scheduler/collective.h"

#include <gtest/gtest.h>

#include "kernels/codec.h"

namespace cgx::scheduler {
namespace {

constexpr CodecSpec kRaw{.codec = 0, .bucket = 512};
const CodecSpec kFourBits{.codec = 3, .bits = 4, .flags = CodecSpec::kStochastic, .bucket = 512};

struct Case {
  std::vector<std::pair<uint64_t, CodecSpec>> tensors;
  uint32_t machines;
};

struct Built {
  TensorTable table;
  Group group;
};

Built build(const Case& c) {
  Built built;
  for (const auto& [elements, spec] : c.tensors) {
    built.group.segments.push_back({static_cast<uint32_t>(built.table.size()), spec});
    built.table.push_back({.name = "t" + std::to_string(built.table.size()), .elements = elements});
  }
  return built;
}

// Every element of every tensor is in exactly one slice, in order, cut at bucket borders.
void expect_covers(const Built& built, const GroupLayout& layout, const Case& c) {
  std::vector<uint64_t> next(built.table.size(), 0);
  for (uint32_t shard = 0; shard < layout.shards(); ++shard) {
    ASSERT_GE(layout.chunks(shard), 1u);
    for (uint32_t chunk = 0; chunk < layout.chunks(shard); ++chunk) {
      const Part& part = layout.part(shard, chunk);
      uint64_t encoded = 0;
      for (const Slice& slice : layout.slices(part)) {
        ASSERT_EQ(slice.first_element, next[slice.segment]);
        ASSERT_EQ(slice.first_element, slice.first_bucket * 512);
        next[slice.segment] += slice.elements;
        ASSERT_EQ(slice.range_bytes, kernels::encoded_bytes(c.tensors[slice.segment].second,
                                                            DType::kF32, slice.elements));
        encoded += slice.encoded_bytes;
      }
      ASSERT_EQ(encoded, part.encoded_bytes);
      ASSERT_LE(part.encoded_bytes + layout.bitmap_bytes(), layout.part_bytes_max());
    }
  }
  for (size_t t = 0; t < next.size(); ++t) EXPECT_EQ(next[t], built.table[t].elements);
}

class Layouts : public ::testing::TestWithParam<Case> {};

TEST_P(Layouts, CoverEveryElementOnceInOrder) {
  const Built built = build(GetParam());
  const GroupLayout layout =
      GroupLayout::scatter_gather(built.group, built.table, GetParam().machines, {});
  ASSERT_EQ(layout.shards(), GetParam().machines);
  expect_covers(built, layout, GetParam());
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, Layouts,
    ::testing::Values(Case{{{1, kRaw}}, 2}, Case{{{0, kRaw}}, 3}, Case{{{512, kFourBits}}, 4},
                      Case{{{513, kFourBits}, {0, kRaw}, {7, kRaw}, {100'000, kFourBits}}, 3},
                      Case{{{16u << 20, kFourBits}}, 2}, Case{{{16u << 20, kRaw}}, 16},
                      Case{std::vector<std::pair<uint64_t, CodecSpec>>(1000, {33, kRaw}), 5},
                      // More than 2^31 elements: addresses only, nothing is allocated.
                      Case{{{5'000'000'003ull, kFourBits}}, 3}));

TEST(Layout, BalancesShardsByEncodedBytes) {
  const Built built = build({{{1 << 20, kFourBits}, {1 << 20, kRaw}}, 4});
  const GroupLayout layout = GroupLayout::scatter_gather(built.group, built.table, 4, {});
  const double fair = static_cast<double>(layout.encoded_bytes()) / 4;
  for (uint32_t shard = 0; shard < 4; ++shard) {
    uint64_t bytes = 0;
    for (uint32_t chunk = 0; chunk < layout.chunks(shard); ++chunk) {
      bytes += layout.part(shard, chunk).encoded_bytes;
    }
    EXPECT_NEAR(static_cast<double>(bytes), fair, fair * 0.01) << "shard " << shard;
  }
}

TEST(Layout, KeepsPartsWithinTheirLimits) {
  const Built built = build({{{16u << 20, kFourBits}, {1u << 20, kRaw}}, 2});
  const PartLimits limits;
  const GroupLayout layout = GroupLayout::scatter_gather(built.group, built.table, 2, limits);
  for (uint32_t shard = 0; shard < 2; ++shard) {
    for (uint32_t chunk = 0; chunk < layout.chunks(shard); ++chunk) {
      EXPECT_LE(layout.part(shard, chunk).raw_bytes, limits.raw_bytes);
      EXPECT_LE(layout.part(shard, chunk).encoded_bytes, limits.encoded_bytes);
    }
  }
}

TEST(Layout, DirectGivesEveryMachineTheWholeGroup) {
  const Built built = build({{{300, kRaw}}, 3});
  const GroupLayout layout = GroupLayout::direct(built.group, built.table, 3);
  EXPECT_EQ(layout.collective(), Collective::kDirect);
  ASSERT_EQ(layout.shards(), 3u);
  for (uint32_t shard = 0; shard < 3; ++shard) {
    ASSERT_EQ(layout.chunks(shard), 1u);
    EXPECT_EQ(layout.slices(layout.part(shard, 0))[0].elements, 300u);
  }
}

TEST(Presence, SurvivesTheBitmap) {
  for (uint32_t segments : {1u, 63u, 64u, 65u, 1000u}) {
    Presence presence(segments);
    for (uint32_t i = 0; i < segments; i += 3) presence.set(i);
    std::vector<std::byte> bitmap(align_range((segments + 7) / 8));
    presence.write(bitmap);
    Presence read(segments);
    read.read(bitmap);
    for (uint32_t i = 0; i < segments; ++i) EXPECT_EQ(read.test(i), i % 3 == 0);
    EXPECT_EQ(read.count(), presence.count());
    EXPECT_TRUE(Presence(segments, true).all());
    EXPECT_TRUE(Presence(segments).none());
  }
}

TEST(Presence, IgnoresBitsBeyondTheLastSegment) {
  Presence presence(3);
  const std::vector<std::byte> hostile(64, std::byte{0xff});
  presence.read(hostile);
  EXPECT_EQ(presence.count(), 3u);
  EXPECT_TRUE(presence.all());
}

}  // namespace
}  // namespace cgx::scheduler
