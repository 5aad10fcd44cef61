#include "scheduler/plan/way.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "scheduler/exchange/layout.h"
#include "scheduler/planners/planner.h"
#include "tests/scheduler/exchange/built_group.h"
#include "tests/scheduler/exchange/every_codec.h"

namespace cgx::scheduler {
namespace {

Collective chosen(const Case& c, CollectiveWish wish = CollectiveWish::kAuto) {
  const Built built = build(c);
  return choose_way({.wish = wish, .machines = c.machines}, built.group, built.table).collective;
}

TEST(Way, IsAllgatherForSmallRawGroupsAndScatterForLargeOnes) {
  for (uint32_t machines : {2u, 4u, 16u}) {
    EXPECT_EQ(chosen({{{8192, kRaw}}, machines}), Collective::kAllgather);
    EXPECT_EQ(chosen({{{8193, kRaw}}, machines}), Collective::kScatter);
  }
  EXPECT_EQ(chosen({{{1, kRaw}}, 1}), Collective::kScatter) << "one machine sends nothing";
}

TEST(Way, IsAllgatherOnFewMachinesIfEveryLossyCodecGathersWell) {
  for (const CodecSpec& spec : every_codec()) {
    if (spec.codec == 0) continue;
    const Collective few = row_of(spec).gathers ? Collective::kAllgather : Collective::kScatter;
    EXPECT_EQ(chosen({{{1 << 20, spec}}, 2}), few) << kernels::to_string(spec);
    EXPECT_EQ(chosen({{{1 << 20, spec}, {5000, kRaw}}, 4}), few) << kernels::to_string(spec);
    EXPECT_EQ(chosen({{{1 << 20, spec}}, 5}), Collective::kScatter);
    EXPECT_EQ(chosen({{{1 << 20, spec}, {2000, kFourBits}}, 2}), Collective::kScatter);
  }
}

// With what is on its way a machine's own slabs stay in a core's cache.
TEST(Way, KeepsFewPartsAheadWhereTheyAreLarge) {
  const auto ahead = [](const CodecSpec& spec, uint32_t machines) {
    const Built built = build({{{1 << 20, spec}, {1 << 20, kRaw}}, machines});
    return choose_way({.machines = machines}, built.group, built.table).ahead;
  };
  for (uint32_t machines : {2u, 3u, 4u, 8u, 16u}) {
    EXPECT_EQ(ahead(kFourBits, machines), scatter_parts(machines)) << machines;
    EXPECT_EQ(ahead(kRaw, machines), std::min(3u, scatter_parts(machines))) << machines;
  }
}

TEST(Way, CutsPartsThatFitASlabWithWhatStandsBeforeThem) {
  const uint64_t slab = 256 << 10, bitmap = kSegmentsMax / 8, descriptor = 64;
  EXPECT_EQ(part_limits(slab).encoded_bytes, 216u << 10);
  EXPECT_LE(part_limits(slab).encoded_bytes + bitmap + descriptor + kRangeAlignment, slab);
  EXPECT_EQ(part_limits(64 << 10).encoded_bytes, 54u << 10) << "of smaller frames";
}

TEST(Way, IsWhatThePolicyWishes) {
  for (const CodecSpec& spec : {kRaw, kFourBits}) {
    for (uint64_t elements : {1u, 1u << 20}) {
      const Case c{{{elements, spec}}, 7};
      EXPECT_EQ(chosen(c, CollectiveWish::kScatter), Collective::kScatter);
      EXPECT_EQ(chosen(c, CollectiveWish::kAllgather), Collective::kAllgather);
    }
  }
}

TEST(Way, GoesInRacksWhereSeveralMachinesHaveSeveralGpus) {
  const auto way = [](const CodecSpec& spec, uint32_t machines, uint32_t sites, uint32_t racks = 0,
                      uint64_t elements = 1 << 20) {
    const Built built = build({{{elements, spec}}, machines});
    return choose_way(
        {.machines = machines, .rack_machines = racks != 0 ? racks : sites, .sites_each = sites},
        built.group, built.table);
  };
  for (const CodecSpec& spec : every_codec()) {
    if (row_of(spec).votes) continue;
    const Way racks = way(spec, 6, 2);
    EXPECT_TRUE(scheduler::row_of(racks.collective).in_racks) << kernels::to_string(spec);
    EXPECT_EQ(racks.reason, WayReason::kFewerBetweenRacks);
    EXPECT_EQ(racks.rack_machines, 2u);
    EXPECT_EQ(racks.exact, spec.codec == 0);
    EXPECT_TRUE(scheduler::row_of(way(spec, 4, 2).collective).in_racks) << "before gathering";
  }
  EXPECT_EQ(way(kRaw, 4, 2, 0, 1000).reason, WayReason::kOneTrip) << "small";
  EXPECT_EQ(way(kFourBits, 4, 4).collective, Collective::kScatter) << "one machine";
  EXPECT_EQ(way(kFourBits, 4, 0).collective, Collective::kScatter) << "one GPU each";
  EXPECT_EQ(way(kFourBits, 6, 0, 2).collective, Collective::kScatter) << "racks of hosts";
  EXPECT_EQ(way(kFourBits, 8, 2, 4).collective, Collective::kScatter) << "racks of machines";
}

TEST(Way, OfTwoLevelsNeedsRacksOfEqualSize) {
  const Group raw = build({{{1000, kRaw}}, 4}).group, lossy = build({{{1000, kFourBits}}, 4}).group;
  const auto why = [](uint32_t rack, const Group& group, uint32_t machines, bool exact = false) {
    const Way way{.collective = Collective::kTwoLevel, .rack_machines = rack, .exact = exact};
    return check_way(way, group, machines).message();
  };
  EXPECT_EQ(why(2, raw, 4), "");
  EXPECT_EQ(why(0, raw, 1), "") << "one machine sends nothing";
  for (uint32_t rack : {0u, 1u, 3u, 4u, 5u}) {
    EXPECT_NE(why(rack, raw, 4).find("rack_machines"), std::string::npos) << rack;
  }
  EXPECT_EQ(why(2, lossy, 4), "");
  EXPECT_EQ(why(2, raw, 4, true), "");
  EXPECT_NE(why(2, lossy, 4, true).find("without loss, with maxmin:4"), std::string::npos)
      << why(2, lossy, 4, true);
}

TEST(Way, DoesNotGoInRacksWhereEveryMachineVotes) {
  const CodecSpec votes = kernels::parse_codec_spec("signsgd").value();
  const Built built = build({{{1 << 20, votes}, {1 << 20, kFourBits}}, 16});
  const WayQuestion gpus{.machines = 16, .rack_machines = 8, .sites_each = 8};
  EXPECT_EQ(choose_way(gpus, built.group, built.table).collective, Collective::kScatter);
  const WayQuestion named{
      .wish = CollectiveWish::kTwoLevel, .machines = 16, .rack_machines = 8, .sites_each = 0};
  const Way way = choose_way(named, built.group, built.table);
  EXPECT_EQ(way.collective, Collective::kScatter);
  EXPECT_TRUE(check_way(way, built.group, 16).ok());
  const Way racks{.collective = Collective::kTwoLevel, .rack_machines = 8};
  EXPECT_NE(check_way(racks, built.group, 16).message().find("one vote"), std::string::npos);
}

TEST(RackCodec, IsRefusedWhereItCannotBeAndNamed) {
  Policy policy;
  policy.rack_codec = kRaw;
  const auto why = [&] {
    std::vector<std::string> warnings;
    const std::string text = check_rack_codec(policy, warnings).message();
    return text.empty() && !warnings.empty() ? warnings[0] : text;
  };
  EXPECT_EQ(why(), "") << "auto may go in racks";
  policy.collective = CollectiveWish::kTwoLevel;
  EXPECT_EQ(why(), "");
  policy.default_codec = {
      .codec = 12, .flags = CodecSpec::kFeedback, .bucket = kSparseBucket, .amount = 0.01f};
  EXPECT_NE(why().find("262144 bytes of a bucket of topk:0.01,feedback"), std::string::npos)
      << why();
  policy.rack_codec = CodecSpec{.codec = 2, .bucket = 512};
  EXPECT_EQ(why(), "") << "sparse sums of all values";
  policy.rack_codec = policy.default_codec;
  EXPECT_NE(why().find("rack_codec topk:0.01"), std::string::npos) << why();
  policy.rack_codec = CodecSpec{.codec = 3, .bits = 8, .flags = 2, .bucket = 512};
  EXPECT_NE(why().find("says feedback"), std::string::npos) << why();
  policy.rack_codec = kFourBits;
  policy.default_codec = {.codec = 3, .bits = 8, .bucket = 512};
  EXPECT_NE(why().find("unused"), std::string::npos) << why();
  policy.rack_codec = CodecSpec{.codec = 3, .bits = 2, .flags = 1, .bucket = 512};
  policy.rules = {{"a", {.codec = 4, .flags = CodecSpec::kFeedback, .bucket = 64}}};
  EXPECT_NE(why().find("beside efsign,bucket=64,feedback"), std::string::npos) << why();
  policy.rack_codec = kernels::parse_codec_spec("terngrad").value();
  EXPECT_NE(why().find("rack_codec terngrad,bucket=64 beside efsign,bucket=64"), std::string::npos)
      << why();
  policy.rules.clear();
  policy.default_codec = kFourBits;
  std::vector<std::string> warnings;
  const CodecSpec chosen = kernels::parse_codec_spec("topk:0.01,feedback").value();
  EXPECT_TRUE(check_rack_codec(policy, warnings).ok());
  EXPECT_FALSE(check_rack_codec(policy, warnings, std::vector{chosen}).ok());
  policy.rack_codec = kRaw;
  policy.collective = CollectiveWish::kScatter;
  EXPECT_NE(why().find("rack_codec fp32 with collective scatter"), std::string::npos) << why();
}

TEST(Way, OfAnotherVersionIsRefusedByName) {
  const Group group = build({{{1000, kRaw}}, 2}).group;
  const Status unknown = check_way({.collective = static_cast<Collective>(77)}, group, 2);
  EXPECT_EQ(unknown.code(), StatusCode::kMISMATCH);
  EXPECT_NE(unknown.message().find("collective 77"), std::string::npos);
  for (uint16_t ahead : {0, 1025}) {
    EXPECT_FALSE(check_way({.ahead = ahead}, group, 2).ok()) << ahead;
  }
}

}  // namespace
}  // namespace cgx::scheduler
