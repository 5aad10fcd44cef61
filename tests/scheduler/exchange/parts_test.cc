// The small parts: slabs, ledgers, control messages.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "proto/wire/machine_profile.h"
#include "scheduler/communicator/control.h"
#include "scheduler/exchange/buffer_pool.h"
#include "scheduler/exchange/step_ledger.h"

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

// A smaller plan replaces a larger one whose slabs of one kind are all in use: those.
std::vector<SlabId> replace_in_use(BufferPool& pool, const SlabCounts& large,
                                   const SlabCounts& small) {
  EXPECT_TRUE(pool.reserve(large).ok());
  std::vector<SlabId> used;
  for (uint32_t i = 0; i < std::max(large.own, large.received); ++i) {
    used.push_back(large.own > large.received ? pool.take_for_own() : pool.take_for_received());
  }
  EXPECT_TRUE(pool.reserve(small).ok());
  pool.unreserve(large);
  return used;
}

// A plan is replaced by a smaller one while a slow peer has not taken the last step's frames in.
TEST(BufferPool, KeepsWhatOwnFramesOfALargerPlanFillBesideTheSmallerOnesShare) {
  constexpr SlabCounts kLarge{.received = 2, .own = 5}, kSmall{.received = 2, .own = 1};
  const auto store = std::make_shared<SlabStore>(4096);
  BufferPool pool(store), other(store);
  const std::vector<SlabId> sending = replace_in_use(pool, kLarge, kSmall);
  EXPECT_EQ(pool.beyond_bytes(), 4 * 4096u);
  EXPECT_EQ(pool.take_for_own(), kNoSlab);
  for (uint32_t i = 0; i < kSmall.received; ++i) EXPECT_NE(pool.take_for_received(), kNoSlab);
  EXPECT_EQ(pool.take_for_received(), kNoSlab);
  ASSERT_TRUE(other.reserve({.own = 3}).ok());
  for (int i = 0; i < 3; ++i) EXPECT_NE(other.take_for_own(), kNoSlab);
  for (const SlabId slab : sending) {
    EXPECT_EQ(pool.take_for_own(), kNoSlab);
    pool.release(slab);
  }
  EXPECT_EQ(pool.beyond_bytes(), 0u);
  EXPECT_NE(pool.take_for_own(), kNoSlab);
  EXPECT_EQ(pool.take_for_own(), kNoSlab);
}

// Received frames that are passed on wait for whoever gets them.
TEST(BufferPool, KeepsWhatReceivedFramesOfALargerPlanFillBesideTheSmallerOnesShare) {
  constexpr SlabCounts kLarge{.received = 5, .own = 1}, kSmall{.received = 2, .own = 1};
  BufferPool pool(4096);
  const std::vector<SlabId> passed_on = replace_in_use(pool, kLarge, kSmall);
  EXPECT_EQ(pool.beyond_bytes(), 5 * 4096u);
  for (uint32_t i = 0; i < kSmall.received; ++i) EXPECT_NE(pool.take_for_received(), kNoSlab);
  for (const SlabId slab : passed_on) pool.release(slab);
  EXPECT_NE(pool.take_for_own(), kNoSlab);
  EXPECT_EQ(pool.beyond_bytes(), 2 * 4096u) << "as many as are in use";
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

// As at a peer that acknowledges nothing, communicator after communicator.
TEST(BufferPool, WhatAPeerNeverAcknowledgesCountsForItsHolderAndNobodyElse) {
  constexpr uint32_t kEach = 3, kJobs = 5;
  const auto store = std::make_shared<SlabStore>(4096);
  BufferPool other(store, "uid 2");
  std::vector<SlabId> unheard;
  for (uint32_t job = 0; job < kJobs; ++job) {
    BufferPool greedy(store, "uid 1");
    ASSERT_TRUE(greedy.reserve({.received = 1, .own = kEach}).ok());
    while (true) {
      const SlabId slab = greedy.take_for_own();
      if (slab == kNoSlab) break;
      unheard.push_back(slab);
    }
  }
  EXPECT_EQ(unheard.size(), kEach * kJobs) << "no more than was reserved, each time";
  uint32_t left = 0;
  for (const SlabStore::Left& each : store->left()) {
    EXPECT_EQ(each.holder, "uid 1");
    left += each.in_use->sum();
  }
  EXPECT_EQ(left, unheard.size());
  ASSERT_TRUE(other.reserve({.received = 2, .own = 2}).ok());
  for (int i = 0; i < 2; ++i) {
    EXPECT_NE(other.take_for_own(), kNoSlab);
    EXPECT_NE(other.take_for_received(), kNoSlab);
  }
  for (const SlabId slab : unheard) store->release(slab);
  EXPECT_TRUE(store->left().empty());
}

// Memory that another process has to take: it takes so much, and is asked so often.
class AskedMemory final : public SlabMemory {
 public:
  explicit AskedMemory(uint64_t bytes) : bytes_(bytes) {}
  Result<std::byte*> map(uint64_t bytes) override {
    ++asked;
    if (bytes > bytes_) return resource_exhausted("no more");
    bytes_ -= bytes;
    return new std::byte[bytes]();
  }
  void unmap(std::byte* memory, uint64_t) override { delete[] memory; }
  bool asks() const override { return true; }
  int asked = 0;

 private:
  uint64_t bytes_;
};

TEST(SlabStore, WhatIsPromisedToOneIsNotReservedByAnother) {
  const auto memory = std::make_shared<AskedMemory>(5 * 4096);
  const auto store = std::make_shared<SlabStore>(4096, memory);
  BufferPool first(store), second(store);
  EXPECT_FALSE(first.reserve({.own = 1}).ok()) << "nobody asked for it";
  auto one = SlabStore::promise(store, 2), other = SlabStore::promise(store, 3);
  ASSERT_TRUE(one.ok() && other.ok());
  EXPECT_FALSE(SlabStore::promise(store, 1).ok()) << "there is no more";
  ASSERT_TRUE(second.reserve({.own = 3}).ok());
  other->reset();
  ASSERT_TRUE(first.reserve({.own = 2}).ok());
  one->reset();
  for (int i = 0; i < 2; ++i) EXPECT_NE(first.take_for_own(), kNoSlab);
  for (int i = 0; i < 3; ++i) EXPECT_NE(second.take_for_own(), kNoSlab);
  EXPECT_EQ(memory->asked, 3);
}

TEST(SlabStore, WhatWasReservedOrPromisedAndIsNotAnyMoreIsPromisedAgain) {
  const auto memory = std::make_shared<AskedMemory>(2 * 4096);
  const auto store = std::make_shared<SlabStore>(4096, memory);
  ASSERT_TRUE(SlabStore::promise(store, 2).ok()) << "and dropped";
  SlabId sending = kNoSlab;
  {
    const auto promised = SlabStore::promise(store, 2);
    ASSERT_TRUE(promised.ok());
    BufferPool gone(store);
    ASSERT_TRUE(gone.reserve({.own = 2}).ok());
    sending = gone.take_for_own();
  }
  EXPECT_TRUE(SlabStore::promise(store, 1).ok());
  EXPECT_FALSE(SlabStore::promise(store, 2).ok()) << "one is in use";
  store->release(sending);
  BufferPool next(store);
  ASSERT_TRUE(next.reserve({}).ok());
  EXPECT_TRUE(SlabStore::promise(store, 2).ok());
  EXPECT_EQ(memory->asked, 2);
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
    ::testing::Values(Join{1, 2}, Joined{StatusCode::kMISMATCH, "x"},
                      Table{std::vector(4, std::byte{1})},
                      Prepare{PlanPurpose::kPolicy, 1, some_policy(), {std::byte{2}}},
                      Prepared{3, StatusCode::kOK, "", 9},
                      Decided{3, StatusCode::kTIMED_OUT, "late", PlanPurpose::kPlanner, 8},
                      Failure{StatusCode::kRANK_LOST, "rank 3", Scope::kCommunicator},
                      CallFailure{5, StatusCode::kMISMATCH, "sizes"}, Report{4, 2}, Start{4, 2},
                      PolicyAsk{1, 0, 6, some_policy()},
                      PolicyAnswerMessage{1, StatusCode::kOK, "", 2, 3, 4, 5, {"a", "b"}},
                      ReplicaHash{100, 3, 77, "avx2"}, Losses{7, 100.0, 2.5, {0.5, 0.25}}, Bye{},
                      ProfileAsk{9},
                      ProfileAnswerMessage{9, StatusCode::kUNIMPLEMENTED, "why", {std::byte{1}}}));

TEST(ControlMessages, RejectAFailureWithCodeOk) {
  for (const ControlMessage& message : {ControlMessage(Failure{StatusCode::kOK, "fine"}),
                                        ControlMessage(CallFailure{5, StatusCode::kOK, "fine"}),
                                        ControlMessage(Start{4, 2, StatusCode::kOK, "fine"})}) {
    EXPECT_EQ(decode_control(encode_control(message)).status().code(), StatusCode::kPROTOCOL_ERROR)
        << "message of type " << message.index();
  }
}

// Names of choices are looked up by number; a failure of unknown scope would count for all steps.
TEST(ControlMessages, RejectAChoiceOutsideItsList) {
  constexpr uint8_t kOutside = 200;
  Policy ways, modes, ceilings, solvers;
  ways.collective = static_cast<CollectiveWish>(kOutside);
  modes.mode = static_cast<PlanMode>(kOutside);
  ceilings.ceilings = static_cast<CeilingPlanner>(kOutside);
  solvers.layerwise_solver = static_cast<LayerSolver>(kOutside);
  const auto purpose = static_cast<PlanPurpose>(kOutside);
  const auto scope = static_cast<Scope>(kOutside);
  for (const ControlMessage& message :
       {ControlMessage(Prepare{purpose, 0, some_policy(), {}}),
        ControlMessage(Decided{3, StatusCode::kTIMED_OUT, "late", purpose, 8}),
        ControlMessage(Failure{StatusCode::kRANK_LOST, "rank 3", scope}),
        ControlMessage(Joined{StatusCode::kOK, "", ways}),
        ControlMessage(PolicyAsk{1, 0, 6, modes}), ControlMessage(PolicyAsk{1, 0, 6, ceilings}),
        ControlMessage(Prepare{PlanPurpose::kPolicy, 0, solvers, {}})}) {
    EXPECT_EQ(decode_control(encode_control(message)).status().code(), StatusCode::kPROTOCOL_ERROR)
        << "message of type " << message.index();
  }
}

TEST(ControlMessages, RejectAReportOfMoreCallsThanCanBeUnderWay) {
  const std::vector<uint64_t> some(12, 7), many(100'000, 7);
  EXPECT_TRUE(decode_control(encode_control(Report{.calls_open = some, .calls_done = some})).ok());
  for (const Report& report : {Report{.calls_open = many}, Report{.calls_done = many}}) {
    EXPECT_EQ(decode_control(encode_control(report)).status().code(), StatusCode::kPROTOCOL_ERROR);
  }
}

TEST(ControlMessages, RejectAProfileThatIsLongerThanAny) {
  ProfileAnswerMessage answer{.profile = std::vector<std::byte>(wire::MachineProfile::kBytesMax)};
  EXPECT_TRUE(decode_control(encode_control(answer)).ok());
  answer.profile.push_back({});
  EXPECT_EQ(decode_control(encode_control(answer)).status().code(), StatusCode::kPROTOCOL_ERROR);
}

// What a peer says would be kept, written to the log and said again to everybody.
TEST(ControlMessages, CutTextsThatNobodyReadsToTheEnd) {
  const std::string text =
      std::string(kTextBytesMax - 1, 'x') + "\u00e9" + std::string(300 << 10, 'x');
  Policy policy;
  policy.rules = {{text, {}}};
  const std::vector<std::byte> bytes = encode_control(Joined{StatusCode::kMISMATCH, text, policy});
  const Result<ControlMessage> read = decode_control(bytes);
  ASSERT_TRUE(read.ok()) << read.status().to_string();
  EXPECT_EQ(std::get<Joined>(*read).text, std::string(kTextBytesMax - 1, 'x'));
  EXPECT_EQ(std::get<Joined>(*read).configured.rules[0].match, text) << "it has its meaning";
  std::vector<std::byte> long_failure = encode_control(Failure{StatusCode::kRANK_LOST, ""});
  const auto length = static_cast<uint32_t>(text.size());
  const size_t at = long_failure.size() - sizeof(Scope) - sizeof length;
  std::memcpy(&long_failure[at], &length, sizeof length);
  const auto said = std::as_bytes(std::span(text));
  long_failure.insert(long_failure.end() - sizeof(Scope), said.begin(), said.end());
  const Result<ControlMessage> cut = decode_control(long_failure);
  ASSERT_TRUE(cut.ok()) << cut.status().to_string();
  EXPECT_EQ(std::get<Failure>(*cut).text, std::string(kTextBytesMax - 1, 'x'));
}

// Entries in memory are larger than in a message, and they would be made before anything is known.
TEST(ControlMessages, RejectMoreThanTheirKindHas) {
  Policy ruled;
  ruled.rules.resize(kRulesMax + 1);
  const std::vector<std::string> empty(100'000);
  for (const ControlMessage& message :
       {ControlMessage(PolicyAnswerMessage{.warnings = empty}),
        ControlMessage(PolicyAsk{.policy = ruled}), ControlMessage(Prepare{.policy = ruled})}) {
    const Status status = decode_control(encode_control(message)).status();
    EXPECT_EQ(status.code(), StatusCode::kPROTOCOL_ERROR);
    EXPECT_NE(status.message().find("a longer list"), std::string::npos) << status.message();
  }
  std::vector<std::byte> bytes = encode_control(Bye{});
  bytes.resize(kShortControlBytesMax + 1);
  const Status status = decode_control(bytes).status();
  EXPECT_NE(status.message().find("524289 bytes"), std::string::npos) << status.message();
  EXPECT_TRUE(decode_control(encode_control(Table{std::vector<std::byte>(16 << 20)})).ok());
}

TEST(ControlMessages, CutWarningsToWhatAnAnswerHolds) {
  PolicyAnswerMessage answer{.warnings = std::vector<std::string>(1000, "doubtful")};
  cut_warnings(answer.warnings);
  EXPECT_EQ(answer.warnings.back(), "and 937 more");
  EXPECT_TRUE(decode_control(encode_control(answer)).ok());
}

TEST(ControlMessages, RejectAnUnknownType) {
  const std::vector<std::byte> bytes = {std::byte{200}};
  EXPECT_EQ(decode_control(bytes).status().code(), StatusCode::kPROTOCOL_ERROR);
}

}  // namespace
}  // namespace cgx::scheduler
