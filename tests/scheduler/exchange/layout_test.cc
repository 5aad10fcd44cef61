#include "scheduler/exchange/layout.h"

#include <gtest/gtest.h>

#include <random>

#include "tests/scheduler/exchange/built_group.h"
#include "tests/scheduler/exchange/every_codec.h"

namespace cgx::scheduler {
namespace {

// Every element of every tensor is in exactly one slice, in order, cut at bucket borders.
void expect_covers(const Built& built, const GroupLayout& layout, const Case& c) {
  std::vector<uint64_t> next(built.table.size(), 0);
  for (uint32_t shard = 0; shard < layout.shards(); ++shard) {
    const PartRange parts = layout.shard(shard);
    ASSERT_GE(parts.count, 1u);
    EXPECT_TRUE(layout.begins_shard(parts.first));
    for (uint32_t index = parts.first; index < parts.end(); ++index) {
      const Part& part = layout.part(index);
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
  const GroupLayout layout = GroupLayout::create(built.group, built.table, GetParam().machines, {});
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
  const GroupLayout layout = GroupLayout::create(built.group, built.table, 4, {});
  const double fair = static_cast<double>(layout.encoded_bytes()) / 4;
  for (uint32_t shard = 0; shard < 4; ++shard) {
    uint64_t bytes = 0;
    const PartRange parts = layout.shard(shard);
    for (uint32_t part = parts.first; part < parts.end(); ++part) {
      bytes += layout.part(part).encoded_bytes;
    }
    EXPECT_NEAR(static_cast<double>(bytes), fair, fair * 0.01) << "shard " << shard;
  }
}

TEST(Layout, KeepsPartsWithinTheirLimits) {
  const Built built = build({{{16u << 20, kFourBits}, {1u << 20, kRaw}}, 2});
  const PartLimits limits;
  const GroupLayout layout = GroupLayout::create(built.group, built.table, 2, limits);
  ASSERT_GT(layout.parts(), 2u);
  for (uint32_t part = 0; part < layout.parts(); ++part) {
    EXPECT_LE(layout.part(part).raw_bytes, limits.raw_bytes);
    EXPECT_LE(layout.part(part).encoded_bytes, limits.encoded_bytes);
  }
}

TEST(Layout, KeepsPartsOfEveryCodecWithinASlab) {
  for (CodecSpec spec : every_codec()) {
    const kernels::CodecRow& row = row_of(spec);
    if (!row.sparse) spec.bucket = kBucketMax;
    if (row.strength == kernels::Strength::kShare) spec.amount = kernels::kShareMax;
    const Built built = build({{{3u << 20, spec}, {70'001, spec}}, 3});
    for (uint32_t shards : {1u, 3u}) {
      const GroupLayout layout = GroupLayout::create(built.group, built.table, shards, {});
      EXPECT_LE(layout.part_bytes_max(), 256u << 10) << kernels::to_string(spec);
      EXPECT_EQ(layout.part(0).variable, row.variable_size) << kernels::to_string(spec);
    }
  }
}

TEST(Ranges, OfFixedSizeEndWhereThePlanSays) {
  const Segment segment{0, kFourBits};
  const uint64_t bytes = kernels::encoded_bytes(kFourBits, DType::kF32, 1000);
  const Slice slice{.elements = 1000, .range_bytes = bytes, .encoded_bytes = align_range(bytes)};
  const std::vector<std::byte> payload(align_range(bytes) + 64, std::byte{0xff});
  std::span<const std::byte> rest = payload;
  const auto range = take_range(segment, DType::kF32, slice, rest);
  ASSERT_TRUE(range.ok());
  EXPECT_EQ(range->size(), bytes);
  EXPECT_EQ(rest.size(), 64u);
  const auto second = take_range(segment, DType::kF32, slice, rest);
  EXPECT_EQ(second.status().code(), StatusCode::kCORRUPT);
  EXPECT_EQ(rest.size(), 64u) << "nothing is taken from bytes that do not hold a range";
}

// Whatever a frame holds: a range ends within the bytes and within its bound, or is refused.
TEST(Ranges, OfVariableSizeNeverLeaveThePayload) {
  std::mt19937_64 random(7);
  for (const CodecSpec& spec : every_codec()) {
    for (int round = 0; round < 200; ++round) {
      const uint64_t elements = random() % 200'000;
      const uint64_t bound = kernels::encoded_bytes(spec, DType::kF32, elements);
      std::vector<std::byte> payload(random() % (bound + 200));
      const uint64_t mask = random() % 3 == 0 ? 0 : random() % 2 == 0 ? 0xff : 0x03;
      for (std::byte& byte : payload) byte = static_cast<std::byte>(random() & mask);
      const Slice slice{.elements = elements,
                        .range_bytes = bound,
                        .encoded_bytes = align_range(bound),
                        .variable = true};
      std::span<const std::byte> rest = payload;
      const auto range = take_range({0, spec}, DType::kF32, slice, rest);
      if (range.ok()) {
        EXPECT_LE(range->size(), bound);
        EXPECT_EQ(rest.size() + align_range(range->size()), payload.size());
      } else {
        EXPECT_EQ(range.status().code(), StatusCode::kCORRUPT);
        EXPECT_EQ(rest.size(), payload.size());
      }
    }
  }
}

// What an encoder wrote is taken back whole, one range behind the other.
TEST(Ranges, OfEveryCodecAreTakenBackAsTheyWereWritten) {
  std::mt19937_64 random(11);
  std::normal_distribution<float> normal;
  for (const CodecSpec& spec : every_codec()) {
    std::vector<std::byte> payload(4 << 20);
    std::vector<Slice> slices;
    std::vector<uint64_t> used;
    uint64_t written = 0;
    for (uint64_t elements : {70'000u, 1u, 0u, 65'536u}) {
      std::vector<float> values(elements);
      for (float& value : values) value = normal(random);
      const void* const rank = values.data();
      const uint64_t bound = kernels::encoded_bytes(spec, DType::kF32, elements);
      kernels::EncodeJob job{.spec = spec, .elements = elements};
      job.source = {.ranks = &rank, .rank_count = 1};
      job.encoded = std::span(payload).subspan(written, bound);
      kernels::RangeStats stats;
      used.push_back(kernels::best_lane().encode(job, stats));
      written += pad_range(std::span(payload).subspan(written), used.back());
      slices.push_back({.elements = elements,
                        .range_bytes = bound,
                        .encoded_bytes = align_range(bound),
                        .variable = row_of(spec).variable_size});
    }
    std::span<const std::byte> rest = std::span(payload).first(written);
    for (size_t i = 0; i < slices.size(); ++i) {
      const auto range = take_range({0, spec}, DType::kF32, slices[i], rest);
      ASSERT_TRUE(range.ok()) << kernels::to_string(spec) << range.status().to_string();
      EXPECT_EQ(range->size(), used[i]) << kernels::to_string(spec);
    }
    EXPECT_TRUE(rest.empty());
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

TEST(Presence, MergesAndComparesAllItsWords) {
  for (uint32_t segments : {1u, 64u, 65u, 128u, 200u}) {
    for (uint32_t one : {0u, segments / 2, segments - 1}) {
      Presence presence(segments), other(segments);
      other.set(one);
      EXPECT_NE(presence, other) << one << " of " << segments;
      EXPECT_FALSE(presence.test(one));
      presence.merge(other);
      EXPECT_EQ(presence, other) << one << " of " << segments;
      EXPECT_TRUE(presence.test(one));
      EXPECT_EQ(presence.count(), 1u);
    }
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
