// Sites beside the host's: a communicator computes at the one that its ranks' arenas are of, and
// never reaches into another's memory.
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "scheduler/communicator/call_runner.h"
#include "scheduler/engine/engine.h"

namespace cgx::scheduler {
namespace {

struct SitePort final : SessionPort {
  void complete(cgx_completion_record record, std::string_view text) override {
    completions.push_back({static_cast<StatusCode>(record.status), std::string(text)});
  }
  void reply(uint32_t request, const wire::Reply& reply) override {
    replies[request] = {reply.code, reply.message};
  }
  std::vector<Status> completions;
  std::map<uint32_t, Status> replies;
};

// Says yes to everything; notes what it was asked about.
class Yes final : public Site {
 public:
  static constexpr uint32_t kEncodedBytes = 64;  // of the 16 values of each call here
  struct Seen {
    std::vector<Place> inputs;
    Status lost;
    bool gone = false;
  };
  explicit Yes(Seen& seen) : seen_(seen) {}
  ~Yes() override { seen_.gone = true; }
  bool consumes_inside() const override { return false; }
  std::unique_ptr<SiteOperation> begin(const OperationSetup& setup) override {
    for (const LocalSegment& each : setup.segments) {
      seen_.inputs.insert(seen_.inputs.end(), each.inputs.begin(), each.inputs.end());
    }
    return std::make_unique<Work>();
  }
  ResidualMaker residual_maker() const override { return {}; }
  Status takes(const CodecSpec&, DType dtype) const override {
    if (dtype == DType::kF32) return {};
    return {StatusCode::kUNIMPLEMENTED, "nothing but fp32"};
  }
  Status lost() const override { return seen_.lost; }

 private:
  struct Work final : SiteOperation {
    std::optional<SiteAnswer> ask(Ticket, const SiteJob& job) override {
      return SiteAnswer{.status = {}, .bytes = job.into == kNoSlab ? 0u : kEncodedBytes};
    }
    const std::vector<Norms>& norms() const override { return none; }
    const std::vector<LossSample>& losses() const override { return no_losses; }
    std::vector<Norms> none;
    std::vector<LossSample> no_losses;
  };
  Seen& seen_;
};

class Sites : public ::testing::Test {
 protected:
  static constexpr uint64_t kBytes = 4096;
  enum Arena : uint32_t { kHost, kDevice };
  static constexpr wire::DeviceId kGpu{std::byte{7}};

  void SetUp() override {
    engine_ = Engine::create({.instance = {1, 2}, .lane = &kernels::best_lane()}, {}).value();
    session_ = engine_->open_session({.job = "a"}, port_).value();
    site_ = engine_->add_site(private_memory(), [this](auto, const ArenaTable& arenas) {
      arenas_ = &arenas;
      return std::make_unique<Yes>(seen_);
    });
    memory_.resize(kBytes);
    ASSERT_TRUE(engine_->add_arena(session_, kHost, memory_).ok());
    const SiteMemory there{.site = site_, .name = 77, .bytes = kBytes};
    ASSERT_TRUE(engine_->add_arena(session_, kDevice, there).ok());
  }
  Status make_communicator(uint32_t comm, uint32_t arena) {
    wire::CreateCommunicator message{.comm = comm, .name = "c" + std::to_string(comm)};
    message.arena = arena;
    message.members.push_back({.instance = {1, 2}, .mesh_address = {}, .device = {}});
    if (arena == kDevice) message.members[0].device = kGpu;
    engine_->create_communicator(session_, comm, message);
    work();
    return port_.replies[comm];
  }
  Status call(uint32_t comm, uint32_t arena, uint32_t word = 0) {
    cgx_submit_record record{};
    record.kind = CGX_SUBMIT_CALL;
    record.comm = comm;
    record.step = calls_[comm]++;
    record.count = 16;
    record.in_arena = record.out_arena = static_cast<uint8_t>(arena);
    record.in_offset = record.out_offset = 64;
    record.word = word;
    record.word_value = word;
    const size_t before = port_.completions.size();
    EXPECT_TRUE(engine_->submit(session_, record).ok());
    work();
    EXPECT_EQ(port_.completions.size(), before + 1);
    return port_.completions.back();
  }
  void work() {
    for (int i = 0; i < 50; ++i) engine_->do_work(now_ns_ += 1'000);
  }

  SitePort port_;
  Yes::Seen seen_;
  const ArenaTable* arenas_ = nullptr;
  std::vector<std::byte> memory_;
  std::unique_ptr<Engine> engine_;
  SessionId session_;
  SiteId site_ = kHostSite;
  std::map<uint32_t, uint64_t> calls_;
  uint64_t now_ns_ = 1;
};

TEST_F(Sites, DropsAnArenaWhoseNumberOnlyAnotherOfTheSiteGets) {
  ASSERT_TRUE(engine_->drop_arena(session_, kDevice).ok());
  EXPECT_EQ(engine_->drop_arena(session_, kDevice).code(), StatusCode::kINVALID_ARGUMENT);
  EXPECT_FALSE(engine_->add_arena(session_, kDevice, memory_).ok()) << "it is not the host's";
  const SiteMemory elsewhere{.site = site_ + 1, .name = 78, .bytes = kBytes};
  EXPECT_FALSE(engine_->add_arena(session_, kDevice, elsewhere).ok());
  const SiteMemory again{.site = site_, .name = 79, .bytes = kBytes};
  ASSERT_TRUE(engine_->add_arena(session_, kDevice, again).ok());
  ASSERT_TRUE(make_communicator(4, kDevice).ok());
  EXPECT_TRUE(call(4, kDevice).ok());
  ASSERT_EQ(seen_.inputs.size(), 1u);
  EXPECT_EQ(arenas_->name(seen_.inputs[0].arena), 79u);
}

// Who gave a number up, having had no answer, goes on with the next one.
TEST_F(Sites, TakesAnArenaWhoseNumberIsNotTheNextOne) {
  std::vector<std::byte> more(kBytes);
  ASSERT_TRUE(engine_->add_arena(session_, 4, more).ok());
  ASSERT_TRUE(make_communicator(1, wire::kNoArena).ok());
  EXPECT_TRUE(call(1, 4).ok());
  EXPECT_EQ(call(1, 3).code(), StatusCode::kINVALID_ARGUMENT) << "it has no memory";
  EXPECT_EQ(engine_->add_arena(session_, 3, more).code(), StatusCode::kINVALID_ARGUMENT);
  EXPECT_FALSE(engine_->add_arena(session_, wire::kArenasMax, more).ok());
}

TEST_F(Sites, DropsNoArenaOfTheHostAndNoneThatIsNotThere) {
  const Status host = engine_->drop_arena(session_, kHost);
  EXPECT_EQ(host.code(), StatusCode::kINVALID_ARGUMENT);
  EXPECT_NE(host.message().find("arena 0 lies on the host"), std::string::npos);
  const Status none = engine_->drop_arena(session_, 9);
  EXPECT_EQ(none.code(), StatusCode::kINVALID_ARGUMENT);
  EXPECT_NE(none.message().find("arena 9 is none of this session's 2"), std::string::npos);
}

TEST_F(Sites, RefusesTensorsInAnArenaThatWasDropped) {
  ASSERT_TRUE(make_communicator(3, kDevice).ok());
  ASSERT_TRUE(engine_->drop_arena(session_, kDevice).ok());
  EXPECT_EQ(call(3, kDevice).code(), StatusCode::kINVALID_ARGUMENT);
  EXPECT_TRUE(seen_.inputs.empty());
}

TEST_F(Sites, ACommunicatorComputesWhereItsArenaIs) {
  ASSERT_EQ(make_communicator(1, kDevice).code(), StatusCode::kOK);
  EXPECT_EQ(call(1, kDevice, 9).code(), StatusCode::kOK);
  ASSERT_EQ(seen_.inputs.size(), 1u);
  EXPECT_EQ(arenas_->name(seen_.inputs[0].arena), 77u);
  EXPECT_EQ(seen_.inputs[0].offset, 64u);
  EXPECT_EQ(seen_.inputs[0].word, 9u);
  EXPECT_EQ(seen_.inputs[0].word_value, 9u);
}

TEST_F(Sites, MemoryOfAnotherSiteIsRefusedByName) {
  ASSERT_EQ(make_communicator(1, wire::kNoArena).code(), StatusCode::kOK);
  ASSERT_EQ(make_communicator(2, kDevice).code(), StatusCode::kOK);
  Status refused = call(1, kDevice);
  EXPECT_EQ(refused.code(), StatusCode::kMISMATCH);
  EXPECT_NE(refused.message().find("lies in arena 1 on a GPU"), std::string::npos)
      << refused.message();
  refused = call(2, kHost);
  EXPECT_EQ(refused.code(), StatusCode::kMISMATCH);
  EXPECT_NE(refused.message().find("lies in arena 0 on the host"), std::string::npos)
      << refused.message();
  EXPECT_TRUE(seen_.inputs.empty());
  EXPECT_EQ(make_communicator(3, 5).code(), StatusCode::kINVALID_ARGUMENT);
}

TEST_F(Sites, AWordIsForTensorsOnAGpu) {
  ASSERT_EQ(make_communicator(1, wire::kNoArena).code(), StatusCode::kOK);
  const Status refused = call(1, kHost, 3);
  EXPECT_EQ(refused.code(), StatusCode::kINVALID_ARGUMENT);
  EXPECT_NE(refused.message().find("timeline word"), std::string::npos) << refused.message();
}

TEST_F(Sites, WhatASiteCannotTakeIsRefusedWhenItIsCommitted) {
  ASSERT_EQ(make_communicator(1, kDevice).code(), StatusCode::kOK);
  wire::RegisterTensors table{.comm = 1};
  table.tensors.push_back(
      {.name = "w", .dtype = DType::kF64, .elements = 4, .shape = {4}, .home_arena = kDevice});
  engine_->register_tensors(session_, 10, table);
  engine_->commit(session_, 11, {.comm = 1, .tensors = 1});
  work();
  EXPECT_EQ(port_.replies[11].code(), StatusCode::kUNIMPLEMENTED);
  EXPECT_NE(port_.replies[11].message().find("tensor 'w': nothing but fp32"), std::string::npos)
      << port_.replies[11].message();
}

// Two ranks of one machine, each on a GPU.
class TwoSites : public Sites {
 protected:
  static constexpr wire::DeviceId kOtherGpu{std::byte{8}};

  void SetUp() override {
    Sites::SetUp();
    other_session_ = engine_->open_session({.job = "a"}, other_port_).value();
    other_site_ = engine_->add_site(private_memory(), [this](auto, const ArenaTable&) {
      return std::make_unique<Yes>(other_seen_);
    });
    const SiteMemory there{.site = other_site_, .name = 78, .bytes = kBytes};
    ASSERT_TRUE(engine_->add_arena(other_session_, 0, there).ok());
  }
  void join(uint32_t rank, const wire::DeviceId& second = kOtherGpu) {
    wire::CreateCommunicator message{.comm = 1, .name = "pair", .rank = rank};
    message.arena = rank == 0 ? uint32_t{kDevice} : 0;
    message.members.resize(2, {.instance = {1, 2}, .mesh_address = {}, .device = kGpu});
    message.members[1].device = second;
    engine_->create_communicator(rank == 0 ? session_ : other_session_, 1, message);
    work();
  }
  void submit(uint32_t rank) {
    cgx_submit_record record{};
    record.kind = CGX_SUBMIT_CALL;
    record.comm = 1;
    record.count = 16;
    record.in_arena = record.out_arena = static_cast<uint8_t>(rank == 0 ? uint32_t{kDevice} : 0);
    ASSERT_TRUE(engine_->submit(rank == 0 ? session_ : other_session_, record).ok());
    work();
  }

  SitePort other_port_;
  Yes::Seen other_seen_;
  SessionId other_session_;
  SiteId other_site_ = kHostSite;
};

TEST_F(TwoSites, AreMachinesToEachOtherWithoutANetwork) {
  join(0);
  EXPECT_TRUE(port_.replies.empty()) << "the other one has yet to come";
  join(1);
  ASSERT_EQ(port_.replies[1].code(), StatusCode::kOK) << port_.replies[1].message();
  ASSERT_EQ(other_port_.replies[1].code(), StatusCode::kOK) << other_port_.replies[1].message();
  submit(0);
  EXPECT_TRUE(port_.completions.empty());
  submit(1);
  ASSERT_EQ(port_.completions.size(), 1u);
  ASSERT_EQ(other_port_.completions.size(), 1u);
  EXPECT_TRUE(port_.completions[0].ok()) << port_.completions[0].message();
  EXPECT_TRUE(other_port_.completions[0].ok()) << other_port_.completions[0].message();
  EXPECT_EQ(seen_.inputs.size(), 1u);
  EXPECT_EQ(other_seen_.inputs.size(), 1u);
  const Snapshot shown = engine_->snapshot(now_ns_);
  EXPECT_EQ(shown.counters[static_cast<size_t>(Counter::ksite_bytes)],
            2 * Yes::kEncodedBytes + 2 * sizeof(CallDescriptor));
  EXPECT_EQ(shown.counters[static_cast<size_t>(Counter::kframes_sent)], 0u);
  ASSERT_EQ(shown.communicators.size(), 2u);
  EXPECT_EQ(shown.communicators[1].device, wire::to_text(kOtherGpu));
}

TEST_F(TwoSites, GoWhenTheyHaveGivenBackWhatTheyHadOfEachOther) {
  join(0);
  join(1);
  submit(0);
  submit(1);
  engine_->close_session(session_, {});
  engine_->close_session(other_session_, {});
  engine_->close_site(site_);
  engine_->close_site(other_site_);
  work();
  EXPECT_TRUE(engine_->close_site(site_)) << "some slab of its is still held";
  EXPECT_TRUE(engine_->close_site(other_site_));
}

TEST_F(TwoSites, OneThatIsLostEndsTheOthersCommunicator) {
  join(0);
  join(1);
  other_seen_.lost = {StatusCode::kDEVICE_LOST, "it fell off the bus"};
  work();
  submit(0);
  ASSERT_EQ(port_.completions.size(), 1u);
  EXPECT_EQ(port_.completions[0].code(), StatusCode::kDEVICE_LOST);
  EXPECT_NE(port_.completions[0].message().find("it fell off the bus"), std::string::npos);
}

TEST_F(TwoSites, RanksThatDescribeThemDifferentlyAreRefused) {
  join(0);
  join(1, {std::byte{9}});
  EXPECT_EQ(other_port_.replies[1].code(), StatusCode::kMISMATCH);
}

TEST_F(TwoSites, AHostRankBesideOneOnAGpuIsRefusedByName) {
  join(0, {});
  EXPECT_EQ(port_.replies[1].code(), StatusCode::kMISMATCH);
  EXPECT_NE(
      port_.replies[1].message().find("rank 0 of communicator 'pair' of job 'a' has its tensors "
                                      "on a GPU, another rank of this machine on the host: "
                                      "rank 1"),
      std::string::npos)
      << port_.replies[1].message();
}

TEST_F(Sites, ALostSiteEndsItsCommunicatorsAndNoOthers) {
  ASSERT_EQ(make_communicator(1, kDevice).code(), StatusCode::kOK);
  ASSERT_EQ(make_communicator(2, wire::kNoArena).code(), StatusCode::kOK);
  seen_.lost = {StatusCode::kDEVICE_LOST, "it fell off the bus"};
  work();
  const Status lost = call(1, kDevice);
  EXPECT_EQ(lost.code(), StatusCode::kDEVICE_LOST);
  EXPECT_NE(lost.message().find("it fell off the bus"), std::string::npos) << lost.message();
  EXPECT_EQ(call(2, kHost).code(), StatusCode::kOK);
}

TEST_F(Sites, AClosedSiteGoesWithItsLastCommunicator) {
  ASSERT_EQ(make_communicator(1, kDevice).code(), StatusCode::kOK);
  EXPECT_FALSE(engine_->close_site(site_));
  work();
  EXPECT_FALSE(seen_.gone);
  engine_->close_session(session_, {});
  work();
  EXPECT_TRUE(seen_.gone);
  EXPECT_TRUE(engine_->close_site(site_));
}

TEST_F(Sites, AClosedSiteStaysForWhoeverComesBeforeItHasGone) {
  ASSERT_EQ(make_communicator(1, kDevice).code(), StatusCode::kOK);
  EXPECT_FALSE(engine_->close_site(site_));
  EXPECT_TRUE(engine_->keep_site(site_));
  engine_->close_session(session_, {});
  work();
  EXPECT_FALSE(seen_.gone);
  EXPECT_FALSE(engine_->close_site(site_));
  work();
  EXPECT_TRUE(seen_.gone);
  EXPECT_FALSE(engine_->keep_site(site_));
}

}  // namespace
}  // namespace cgx::scheduler
