// signsgd: the majority's sign, on every lane, whichever way the votes arrive.
#include "tests/kernels/codec_cases.h"

namespace cgx::kernels::testing {
namespace {

constexpr size_t kElements = 3 * 128 + 21;

CodecSpec vote_spec() {
  return parse_codec_spec("signsgd,bucket=128").value();
}

class Votes : public ::testing::TestWithParam<const Lane*> {
 protected:
  // Machine 0 owns: its part is raw; the others' are encoded.
  void cast(const std::vector<Floats>& machines) {
    std::vector<Contribution> parts(machines.size());
    const void* own = machines[0].data();
    parts[0].kind = Contribution::Kind::kRaw;
    parts[0].raw = {.ranks = &own, .rank_count = 1};
    streams_.clear();
    for (const Floats& machine : machines) {
      streams_.push_back(encode(*GetParam(), vote_spec(), machine).bytes);
    }
    for (size_t m = 1; m < machines.size(); ++m) {
      parts[m].kind = Contribution::Kind::kEncoded;
      parts[m].encoded = streams_[m];
    }
    result_ = reduced(parts);
  }

  Floats reduced(std::span<const Contribution> parts) {
    Bytes bytes(encoded_bytes(vote_spec(), DType::kF32, kElements));
    Floats result(kElements);
    void* target = result.data();
    ReduceJob job{.spec = vote_spec(), .contributions = parts, .elements = kElements};
    job.encoded = bytes;
    job.targets = &target;
    job.target_count = 1;
    RangeStats stats;
    EXPECT_TRUE(GetParam()->reduce(job, stats).ok());
    return result;
  }

  Floats combined() {
    std::vector<Contribution> parts(streams_.size());
    for (size_t m = 0; m < parts.size(); ++m) {
      parts[m].kind = Contribution::Kind::kEncoded;
      parts[m].encoded = streams_[m];
    }
    Floats result(result_.size());
    void* target = result.data();
    CombineJob job{.spec = vote_spec(), .contributions = parts, .elements = result.size()};
    job.targets = &target;
    job.target_count = 1;
    RangeStats stats;
    EXPECT_TRUE(GetParam()->combine(job, stats).ok());
    return result;
  }

  std::vector<Bytes> streams_;
  Floats result_;
};

TEST_P(Votes, TheMajorityDecidesHoweverLoudTheMinorityIs) {
  cast({Floats(kElements, 1.0f), Floats(kElements, 2.0f), Floats(kElements, -1000.0f)});
  EXPECT_TRUE(same_bits(result_, Floats(kElements, 1003.0f)));
  EXPECT_TRUE(same_bits(combined(), result_));
}

TEST_P(Votes, EvenVotesAlternate) {
  cast({Floats(kElements, 0.25f), Floats(kElements, -0.5f)});
  for (size_t i = 0; i < kElements; ++i) ASSERT_EQ(result_[i], i % 2 ? -0.75f : 0.75f) << i;
  EXPECT_TRUE(same_bits(combined(), result_));
}

TEST_P(Votes, RawAndEncodedVotesCountAlike) {
  std::mt19937_64 random(test_seed());
  SCOPED_TRACE("CGX_TEST_SEED=" + std::to_string(test_seed()));
  std::vector<Floats> machines;
  for (int m = 0; m < 5; ++m) machines.push_back(gradient(random, kElements));
  cast(machines);
  const Floats mixed = combined();
  EXPECT_TRUE(same_bits(mixed, result_));
  for (size_t i = 0; i < kElements; ++i) {
    int votes = 0;
    for (const Floats& machine : machines) votes += machine[i] < 0 ? -1 : 1;
    ASSERT_EQ(result_[i] < 0, votes < 0) << i;
  }
}

TEST_P(Votes, ZerosVoteByTheirSignsToo) {
  cast({Floats(kElements, -1.0f), Floats(kElements, -0.0f), Floats(kElements, 0.0f)});
  EXPECT_TRUE(same_bits(result_, Floats(kElements, -1.0f)));
  EXPECT_TRUE(same_bits(combined(), result_));
  cast({Floats(kElements, -0.0f), Floats(kElements, -1.0f), Floats(kElements, 0.0f)});
  EXPECT_TRUE(same_bits(result_, Floats(kElements, -1.0f))) << "the owner's, too";
  EXPECT_TRUE(same_bits(combined(), result_));
}

// An owner without the tensor: its zeros are not a vote for "positive".
TEST_P(Votes, WhereNoRankIsNobodyVotes) {
  const Floats down(kElements, -1.0f);
  const Bytes stream = encode(*GetParam(), vote_spec(), down).bytes;
  std::vector<Contribution> parts(2);
  parts[0].kind = Contribution::Kind::kRaw;
  parts[1].kind = Contribution::Kind::kEncoded;
  parts[1].encoded = stream;
  EXPECT_TRUE(same_bits(reduced(parts), down));
  std::swap(parts[0], parts[1]);
  EXPECT_TRUE(same_bits(reduced(parts), down)) << "nor behind others";
}

TEST_P(Votes, OneBadMachineSpoilsItsBucketOnly) {
  std::vector<Floats> machines(3, Floats(kElements, 1.0f));
  machines[1][200] = from_bits(0x7fc00000);
  cast(machines);
  for (size_t i = 0; i < kElements; ++i) ASSERT_EQ(result_[i] == 3.0f, i / 128 != 1) << i;
  EXPECT_TRUE(same_bits(combined(), result_));
}

INSTANTIATE_TEST_SUITE_P(Lanes, Votes, ::testing::ValuesIn(viable_lanes()),
                         [](const auto& info) { return std::string(info.param->name); });

}  // namespace
}  // namespace cgx::kernels::testing
