// What a worker measures of losses, against what the host measures of the same values: cgxd's site
// of a real cgxd-gpu, whose driver the environment chooses.
#include <chrono>
#include <cstring>
#include <limits>
#include <random>
#include <thread>

#include "kernels/floats.h"
#include "tests/gpu/worker_case.h"

namespace cgx::daemon::gpu {
namespace {

using namespace cgx::device;
using namespace cgx::scheduler;

constexpr uint64_t kElements[] = {300'000, 100, 5'003, 33};
constexpr size_t kTensors = std::size(kElements), kNotMeasured = 1;
constexpr uint64_t kAll = 300'000 + 100 + 5'003 + 33;
constexpr uint32_t kRanks = 2;

struct LossCase {
  CodecSpec spec;
  std::vector<CodecSpec> strengths;
  DType dtype = DType::kF32;
  bool nonfinite = false;  // one value
};

class Losses : public SitesTest {
 protected:
  void SetUp() override {
    SitesTest::SetUp();
    if (IsSkipped()) return;
    ASSERT_NO_FATAL_FAILURE(reserve_staged(8));
  }

  // The same values on the host and on the device.
  void fill(const LossCase& about) {
    const uint64_t width = dtype_bytes(about.dtype);
    memory_.assign(kBegin + kRanks * kAll * width, std::byte{0});
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    for (uint64_t i = 0; i < kRanks * kAll; ++i) {
      float x = normal(random) * (i % 3 == 0 ? 8.0f : 0.5f);
      if (about.nonfinite && i == 150'000) x = std::numeric_limits<float>::infinity();
      std::byte* const to = memory_.data() + kBegin + i * width;
      const uint32_t bits = std::bit_cast<uint32_t>(x);
      std::memcpy(to, reinterpret_cast<const std::byte*>(&bits) + (4 - width), width);
    }
    share();
  }

  // Every part of the tensors once, as machine 0 of two does it: the other's shard is encoded, the
  // own one reduced. In a first step without losses, which leaves residuals; then with them.
  std::vector<LossSample> measured(Site& site, SlabStore& slabs, const LossCase& about) {
    TensorTable table;
    Group group;
    for (uint32_t t = 0; t < kTensors; ++t) {
      table.push_back({.name = std::to_string(t), .dtype = about.dtype, .elements = kElements[t]});
      group.segments.push_back({t, about.spec});
    }
    const GroupLayout layout = GroupLayout::create(group, table, 2, {});
    OperationSetup setup{.step = 8, .layout = &layout, .group = &group, .table = &table};
    setup.machines = 2;
    std::vector<std::shared_ptr<SiteResidual>> residuals;
    uint64_t at = kBegin;
    for (uint32_t t = 0; t < kTensors; ++t) {
      LocalSegment& segment = setup.segments.emplace_back();
      const ArenaId arena = &site == here_.get() ? host_arena_ : device_arena_;
      for (uint32_t rank = 0; rank < kRanks; ++rank) {
        segment.inputs.push_back({arena, at + rank * kAll * dtype_bytes(about.dtype)});
      }
      at += kElements[t] * dtype_bytes(about.dtype);
      segment.measured = t != kNotMeasured;
      segment.scale = 0.5f;
      segment.residual_scale = 0.75f;
      if (!about.spec.feedback()) continue;
      residuals.push_back(site.residual_maker()(kElements[t]).value());
      segment.residual = residuals.back().get();
    }
    play(site, slabs, setup);
    for (LocalSegment& segment : setup.segments) segment.confirmed = 1;
    if (about.spec.feedback()) keep_all(site, setup);
    setup.strengths = std::make_shared<const std::vector<CodecSpec>>(about.strengths);
    return play(site, slabs, setup);
  }
  // Into the other slots, from which nothing is read: the confirmed ones stay as they are.
  void keep_all(Site& site, const OperationSetup& setup) {
    const auto work = site.begin(setup);
    for (uint32_t t = 0; t < kTensors; ++t) {
      const SiteAnswer answer =
          run(site, *work, {.kind = SiteJobKind::kKeep, .segment = t, .count = kElements[t]});
      EXPECT_TRUE(answer.status.ok()) << answer.status.to_string();
    }
  }
  std::vector<LossSample> play(Site& site, SlabStore& slabs, const OperationSetup& setup) {
    const auto work = site.begin(setup);
    const Presence all(kTensors, true);
    const SlabId sent = slabs.take(in_use_, false), made = slabs.take(in_use_, false);
    for (uint32_t part = 0; part < setup.layout->parts(); ++part) {
      const bool own = part < setup.layout->shard(0).end();
      SiteJob encode{.kind = SiteJobKind::kEncode, .part = part, .presence = &all, .into = sent};
      const SiteContribution from[] = {{.own_ranks = true}};
      const SiteJob reduce{.kind = SiteJobKind::kReduce,
                           .part = part,
                           .presence = &all,
                           .from = from,
                           .results = false,
                           .into = made};
      const SiteAnswer answer = run(site, *work, own ? reduce : encode);
      EXPECT_TRUE(answer.status.ok()) << answer.status.to_string();
    }
    slabs.release(sent);
    slabs.release(made);
    return work->losses();
  }

  SiteAnswer run(Site& site, SiteOperation& work, const SiteJob& job) {
    if (auto answer = work.ask(++tickets_, job)) return *answer;
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    answer_.reset();
    uint64_t now_ns = 0;
    while (!answer_ && std::chrono::steady_clock::now() < until) {
      site.poll(*this, ++now_ns);
      std::this_thread::yield();
    }
    return answer_.value_or(SiteAnswer{.status = internal_error("no answer")});
  }
  void site_answered(Ticket ticket, const SiteAnswer& answer) override {
    EXPECT_EQ(ticket, tickets_);
    answer_ = answer;
  }

  void compare(const LossCase& about) {
    fill(about);
    const auto host = measured(*here_, *slabs_, about);
    const auto gpu = measured(*there_, *staged_, about);
    ASSERT_EQ(host.size(), kTensors);
    ASSERT_EQ(gpu.size(), kTensors);
    const auto alike = [](double one, double other) {
      EXPECT_NEAR(one, other, 1e-5 * std::abs(other));
    };
    for (size_t t = 0; t < kTensors; ++t) {
      SCOPED_TRACE("tensor " + std::to_string(t));
      alike(gpu[t].values, host[t].values);
      alike(gpu[t].nonfinite, host[t].nonfinite);
      alike(gpu[t].intended, host[t].intended);
      alike(gpu[t].gradient, host[t].gradient);
      alike(gpu[t].residual, host[t].residual);
      for (size_t i = 0; i < kStrengthsMax; ++i) alike(gpu[t].lost[i], host[t].lost[i]);
      EXPECT_EQ(host[t].values > 0, t != kNotMeasured);
      EXPECT_EQ(host[t].lost[about.strengths.size() - 1] > 0, t != kNotMeasured);
      EXPECT_EQ(host[t].gradient > 0, about.spec.feedback() && t != kNotMeasured);
    }
    EXPECT_EQ(host[0].nonfinite > 0, about.nonfinite);
  }

  std::optional<SiteAnswer> answer_;
};

CodecSpec codec(std::string_view text) {
  return kernels::parse_codec_spec(text).value();
}

std::vector<CodecSpec> codecs(std::initializer_list<const char*> texts) {
  std::vector<CodecSpec> made;
  for (const char* text : texts) made.push_back(codec(text));
  return made;
}

TEST_F(Losses, AreThoseOfTheHost) {
  compare({.spec = codec("maxmin:4"), .strengths = codecs({"maxmin:8", "maxmin:4", "maxmin:2"})});
}

TEST_F(Losses, CountWhatResidualsAdd) {
  compare({.spec = codec("maxmin:4,feedback"),
           .strengths = codecs({"maxmin:8,feedback", "maxmin:3,feedback"})});
}

TEST_F(Losses, DrawAsTheHostDraws) {
  compare({.spec = codec("maxmin:4,stochastic"),
           .strengths = codecs({"maxmin:8,stochastic", "maxmin:3,stochastic"})});
}

TEST_F(Losses, AreOfTensorsOf16Bits) {
  compare({.spec = codec("maxmin:4,feedback"),
           .strengths = codecs({"maxmin:8,feedback", "maxmin:4,feedback"}),
           .dtype = DType::kBF16});
}

TEST_F(Losses, LeaveOutPiecesThatAreNotFinite) {
  compare({.spec = codec("maxmin:4"), .strengths = codecs({"maxmin:4"}), .nonfinite = true});
}

TEST_F(Losses, AreOfSharesOfBuckets) {
  ASSERT_TRUE(worker_->reserve_work(64, 16 << 20).ok());
  compare({.spec = codec("topk:0.01,feedback"),
           .strengths = codecs({"topk:0.1,feedback", "topk:0.01,feedback"})});
}

// Uncompressed for now, as a planner leaves it that found every share too strong.
TEST_F(Losses, AreMeasuredWhereNothingIsCompressed) {
  ASSERT_TRUE(worker_->reserve_work(64, 16 << 20).ok());
  compare({.spec = codec("fp32"), .strengths = codecs({"topk:0.1,feedback"})});
}

}  // namespace
}  // namespace cgx::daemon::gpu
