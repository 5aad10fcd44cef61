// The small parts: slabs, ledgers, residual slots, control messages.
#include <gtest/gtest.h>

#include "scheduler/buffer_pool.h"
#include "scheduler/control.h"
#include "scheduler/host_site.h"
#include "scheduler/residuals.h"
#include "scheduler/step_ledger.h"

namespace cgx::scheduler {
namespace {

TEST(BufferPool, HandsOutWarmSlabsFirstAndStopsAtTheReservation) {
  BufferPool pool(4096);
  ASSERT_TRUE(pool.reserve({.own = 2}).ok());
  const SlabId first = pool.take_for_own();
  const SlabId second = pool.take_for_own();
  EXPECT_NE(first, second);
  EXPECT_EQ(pool.take_for_own(), kNoSlab);
  pool.release(first);
  EXPECT_EQ(pool.take_for_own(), first);
  ASSERT_TRUE(pool.reserve({.own = 3}).ok());
  pool.release(second);
  EXPECT_EQ(pool.take_for_own(), second) << "fresh slabs lie below warm ones";
}

TEST(BufferPool, KeepsRoomForFramesThatPeersMaySendWhenOwnOnesWaitForTheLink) {
  BufferPool pool(4096);
  ASSERT_TRUE(pool.reserve({.received = 2, .own = 1}).ok());
  const SlabId own = pool.take_for_own();
  EXPECT_EQ(pool.take_for_own(), kNoSlab);
  const SlabId received = pool.take_for_received();
  EXPECT_NE(received, kNoSlab);
  EXPECT_EQ(pool.take_for_own(), kNoSlab) << "one more frame may still come";
  EXPECT_NE(pool.take_for_received(), kNoSlab);
  EXPECT_EQ(pool.take_for_received(), kNoSlab);
  pool.release(received);
  EXPECT_EQ(pool.take_for_own(), kNoSlab) << "a peer's slab went back to the peers' share";
  pool.release(own);
  EXPECT_NE(pool.take_for_own(), kNoSlab);
}

TEST(BufferPool, FreesASlabWithItsLastReference) {
  BufferPool pool(4096);
  ASSERT_TRUE(pool.reserve({.own = 1}).ok());
  const SlabId slab = pool.take_for_own();
  pool.add_reference(slab);
  pool.release(slab);
  EXPECT_EQ(pool.take_for_own(), kNoSlab);
  pool.release(slab);
  EXPECT_EQ(pool.in_use(), 0u);
}

TEST(BufferPool, TakesNothingOfAnotherOnesShare) {
  const auto store = std::make_shared<SlabStore>(4096);
  BufferPool greedy(store), other(store);
  ASSERT_TRUE(greedy.reserve({.received = 1, .own = 2}).ok());
  ASSERT_TRUE(other.reserve({.received = 1, .own = 1}).ok());
  EXPECT_NE(greedy.take_for_own(), kNoSlab);
  EXPECT_NE(greedy.take_for_own(), kNoSlab);
  EXPECT_EQ(greedy.take_for_own(), kNoSlab);
  EXPECT_NE(other.take_for_own(), kNoSlab);
  EXPECT_NE(other.take_for_received(), kNoSlab);
}

TEST(BufferPool, OutlivedByASlabOnItsWayStillLeavesOthersTheirs) {
  const auto store = std::make_shared<SlabStore>(4096);
  auto gone = std::make_unique<BufferPool>(store);
  ASSERT_TRUE(gone->reserve({.own = 1}).ok());
  const SlabId sending = gone->take_for_own();
  gone.reset();
  BufferPool next(store);
  ASSERT_TRUE(next.reserve({.own = 1}).ok());
  const SlabId own = next.take_for_own();
  EXPECT_NE(own, kNoSlab);
  EXPECT_NE(own, sending);
  store->release(sending);
}

TEST(StepLedger, DecidesATensorWhenEveryRankHasSpoken) {
  StepLedger ledger(5, 2, 2);
  ledger.submit(0, 1, {.say = StepLedger::Say::kSubmitted});
  EXPECT_FALSE(ledger.decided(1));
  ledger.end(1, 77, 5);
  EXPECT_TRUE(ledger.decided(1));
  EXPECT_FALSE(ledger.decided(0));
  EXPECT_EQ(ledger.entry(1, 1).say, StepLedger::Say::kAbsent);
  EXPECT_FALSE(ledger.all_ended());
  ledger.end(0, 78, 9);
  EXPECT_EQ(ledger.first_end_ns(), 5u);
  EXPECT_TRUE(ledger.all_ended());
  EXPECT_TRUE(ledger.decided(0));
  EXPECT_EQ(ledger.end_cookie(1), 77u);
}

struct OneHost {
  ArenaTable arenas;
  SlabStore slabs{4096};
  HostSite site{kernels::best_lane(), arenas, slabs};
};

TEST(Residuals, RememberTheUnitOfTheStepThatWroteThem) {
  const TensorTable table = {{.name = "a", .elements = 2}, {.name = "b", .elements = 2}};
  const CodecSpec feedback{.codec = 3, .bits = 4, .flags = CodecSpec::kFeedback, .bucket = 512};
  PlanFacts facts;
  facts.table = std::make_shared<const TensorTable>(table);
  facts.plan.groups = {{.segments = {{0, feedback}, {1, feedback}}}};
  Residuals residuals;
  OneHost host;
  residuals.prepare(facts, host.site);
  EXPECT_EQ(residuals.scale(0, 1.0, 1.0), 1.0f);
  residuals.mark_written(0, 4.0);
  EXPECT_EQ(residuals.scale(0, 8.0, 1.0), 8.0f) << "tentative: not yet";
  residuals.commit();
  residuals.commit();
  EXPECT_EQ(residuals.scale(0, 8.0, 1.0), 2.0f);
  EXPECT_EQ(residuals.scale(0, 4.0, 0.5), 0.5f);
  EXPECT_EQ(residuals.scale(1, 8.0, 1.0), 8.0f) << "a tensor nobody wrote keeps its unit";
  residuals.mark_written(0, 1.0);
  residuals.drop();
  EXPECT_EQ(residuals.scale(0, 8.0, 1.0), 2.0f);
}

TEST(Residuals, FlipOnlyWhatWasWrittenAndOnlyOnCommit) {
  const TensorTable table = {{.name = "a", .elements = 2}, {.name = "b", .elements = 2}};
  const CodecSpec feedback{.codec = 3, .bits = 4, .flags = CodecSpec::kFeedback, .bucket = 512};
  PlanFacts facts;
  facts.table = std::make_shared<const TensorTable>(table);
  facts.plan.groups = {{.segments = {{0, feedback}, {1, feedback}}}};
  Residuals residuals;
  OneHost host;
  residuals.prepare(facts, host.site);
  const SiteResidual* const memory = residuals.memory(0);
  ASSERT_NE(memory, nullptr);
  residuals.mark_written(0, 1.0);
  residuals.drop();
  residuals.commit();
  EXPECT_EQ(residuals.confirmed(0), 0u) << "dropped";
  residuals.mark_written(0, 1.0);
  residuals.commit();
  EXPECT_EQ(residuals.confirmed(0), 1u);
  EXPECT_EQ(residuals.confirmed(1), 0u) << "not written";
  residuals.prepare(facts, host.site);
  EXPECT_EQ(residuals.memory(0), memory) << "survives another plan";
  EXPECT_EQ(residuals.confirmed(0), 1u);
}

TEST(Residuals, TakeTheMemoryThatWasMadeWithThePlan) {
  const auto table = std::make_shared<const TensorTable>(
      TensorTable{{.name = "a", .elements = 5000}, {.name = "b", .elements = 7}});
  Policy policy;
  policy.default_codec.flags = CodecSpec::kFeedback;
  policy.min_elements = 1;
  OneHost host;
  std::vector<uint64_t> made;
  const ResidualMaker maker = [&](uint64_t elements) {
    made.push_back(elements);
    return host.site.residual_maker()(elements);
  };
  PlanQuestion question{.table = table, .policy = policy, .order = {0, 1}};
  question.slab_bytes = 256 * 1024;
  question.make_residual = maker;
  question.has_residual = {false, true};
  question.bytes_free = 8 * 5000 - 1;
  Result<FactsPtr> facts = make_facts(question);
  ASSERT_TRUE(facts.ok()) << facts.status().to_string();
  EXPECT_TRUE(made.empty()) << "no room: whoever reserves refuses";
  question.bytes_free += 1;
  question.dry_run = true;
  facts = make_facts(question);
  EXPECT_TRUE(made.empty()) << "it will not run";
  question.dry_run = false;
  facts = make_facts(question);
  ASSERT_TRUE(facts.ok()) << facts.status().to_string();
  EXPECT_EQ(made, std::vector<uint64_t>{5000}) << "the other one is there";
  EXPECT_EQ((*facts)->made_bytes, 8u * 5000);
  const SiteResidual* const memory = (*facts)->made->by_tensor.at(0).get();
  Residuals residuals;
  residuals.prepare(**facts, host.site);
  EXPECT_EQ(residuals.memory(0), memory);
  EXPECT_EQ(residuals.bytes(), 8u * (5000 + 7));
  question.make_residual = [](uint64_t) { return nullptr; };
  EXPECT_EQ(make_facts(question).status().code(), StatusCode::kRESOURCE_EXHAUSTED);
}

class ControlMessages : public ::testing::TestWithParam<ControlMessage> {};

TEST_P(ControlMessages, SurviveTheWireAndRejectTruncation) {
  const std::vector<std::byte> bytes = encode_control(GetParam());
  const Result<ControlMessage> read = decode_control(bytes);
  ASSERT_TRUE(read.ok()) << read.status().to_string();
  EXPECT_EQ(read->index(), GetParam().index());
  EXPECT_EQ(encode_control(*read), bytes);
  for (size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_FALSE(decode_control(std::span(bytes).first(length)).ok());
  }
  std::vector<std::byte> longer = bytes;
  longer.push_back(std::byte{0});
  EXPECT_FALSE(decode_control(longer).ok());
}

Policy some_policy() {
  Policy policy;
  policy.rules = {{"weight$", {.codec = 3, .bits = 8, .bucket = 128}}, {"", {}}};
  return policy;
}

INSTANTIATE_TEST_SUITE_P(
    All, ControlMessages,
    ::testing::Values(Join{1, 2}, Joined{StatusCode::kMISMATCH, "x"}, Table{{std::byte{1}}},
                      Prepare{PlanPurpose::kPolicy, 1, some_policy(), {std::byte{2}}},
                      Prepared{3, StatusCode::kOK, "", 9},
                      Decided{3, StatusCode::kTIMED_OUT, "late", PlanPurpose::kOrder, 8},
                      Failure{StatusCode::kRANK_LOST, "rank 3", 1},
                      CallFailure{5, StatusCode::kMISMATCH, "sizes"}, Report{4, 2}, Start{4, 2},
                      PolicyAsk{1, 0, some_policy()},
                      PolicyAnswerMessage{1, StatusCode::kOK, "", 2, 3, 4, 5, {"a", "b"}},
                      ReplicaHash{100, 3, 77, "avx2"}, Bye{}));

TEST(ControlMessages, RejectAnUnknownType) {
  const std::vector<std::byte> bytes = {std::byte{200}};
  EXPECT_EQ(decode_control(bytes).status().code(), StatusCode::kPROTOCOL_ERROR);
}

}  // namespace
}  // namespace cgx::scheduler
