// Who has the data thread when several want it. Jobs of the site here take time by the engine's
// clock, as arithmetic inside the call does.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "scheduler/engine/engine.h"
#include "scheduler/engine/turns.h"

namespace cgx::scheduler {
namespace {

constexpr uint64_t kLargeBytes = 64 << 20, kSmallBytes = 64;
constexpr uint64_t kLargeNs = 60'000, kSmallNs = 1'000;  // of one job

struct OwnClock final : Clock {
  uint64_t now_ns() const override { return ns; }
  void spend_on_large() { ns += kLargeNs, large_ns += kLargeNs; }
  uint64_t ns = 1, large_ns = 0;
};

// Jobs of large parts take kLargeNs, others kSmallNs, and nothing is computed.
class SlowArithmetic final : public Site {
 public:
  explicit SlowArithmetic(OwnClock& clock) : clock_(clock) {}
  bool consumes_inside() const override { return true; }
  std::unique_ptr<SiteOperation> begin(const OperationSetup& setup) override {
    return std::make_unique<Work>(clock_, *setup.layout);
  }
  ResidualMaker residual_maker() const override { return {}; }

 private:
  struct Work final : SiteOperation {
    Work(OwnClock& on, const GroupLayout& of) : clock(on), layout(of) {}
    std::optional<SiteAnswer> ask(Ticket, const SiteJob& job) override {
      const bool large = layout.part(job.part).raw_bytes > kSmallBytes;
      large ? clock.spend_on_large() : void(clock.ns += kSmallNs);
      return SiteAnswer{};
    }
    const std::vector<Norms>& norms() const override { return none; }
    const std::vector<LossSample>& losses() const override { return no_losses; }
    OwnClock& clock;
    const GroupLayout& layout;
    std::vector<Norms> none;
    std::vector<LossSample> no_losses;
  };
  OwnClock& clock_;
};

// A session with communicators, each of which always has a call under way.
class Job final : public SessionPort {
 public:
  Job(Engine& engine, SiteId site, const std::string& name, uint64_t bytes, uint32_t uid = 0)
      : engine_(engine),
        bytes_(bytes),
        session_(engine.open_session({.job = name, .uid = uid}, *this).value()) {
    const SiteMemory memory{.site = site, .name = 1, .bytes = bytes};
    EXPECT_TRUE(engine.add_arena(session_, 0, memory).ok());
  }
  void add_communicator() {
    const auto comm = static_cast<uint32_t>(calls_.size() + 1);
    wire::CreateCommunicator message{.comm = comm, .name = "c" + std::to_string(comm)};
    message.arena = 0;
    message.members.push_back({.instance = {1, 2}, .mesh_address = {}, .device = {std::byte{7}}});
    engine_.create_communicator(session_, comm, message);
    calls_.push_back(0);
  }
  void submit_all() {
    for (uint32_t comm = 1; comm <= calls_.size(); ++comm) submit(comm);
  }
  uint64_t ended() const { return ended_; }

  void complete(cgx_completion_record record, std::string_view text) override {
    ASSERT_EQ(record.status, 0) << text;
    ++ended_;
    again_.push_back(record.comm);
  }
  void reply(uint32_t, const wire::Reply& reply) override {
    EXPECT_EQ(reply.code, StatusCode::kOK) << reply.message;
  }
  // Calls whose communicators have ended one: the next.
  void go_on() {
    for (const uint32_t comm : std::exchange(again_, {})) submit(comm);
  }

 private:
  void submit(uint32_t comm) {
    cgx_submit_record record{};
    record.kind = CGX_SUBMIT_CALL;
    record.comm = comm;
    record.step = calls_[comm - 1]++;
    record.count = bytes_ / sizeof(float);
    EXPECT_TRUE(engine_.submit(session_, record).ok());
  }

  Engine& engine_;
  const uint64_t bytes_;
  const SessionId session_;
  std::vector<uint64_t> calls_;  // of each communicator
  std::vector<uint32_t> again_;
  uint64_t ended_ = 0;
};

class TakingTurns : public ::testing::Test {
 protected:
  void SetUp() override {
    engine_ =
        Engine::create({.instance = {1, 2}, .lane = &kernels::best_lane()}, {.clock = &clock_})
            .value();
    site_ = engine_->add_site(private_memory(), [this](auto, const ArenaTable&) {
      return std::make_unique<SlowArithmetic>(clock_);
    });
  }
  void work() {
    clock_.ns += 500;  // what a round costs
    engine_->do_work(clock_.ns);
  }
  // How long each of so many calls of `small` takes, while `large` has calls under way.
  std::vector<uint64_t> latencies(Job& small, Job& large, size_t calls) {
    std::vector<uint64_t> took;
    while (took.size() < calls) {
      small.submit_all();
      const uint64_t since = clock_.ns, before = small.ended();
      while (small.ended() == before && clock_.ns < since + 1'000'000'000) {
        work();
        large.go_on();
      }
      took.push_back(clock_.ns - since);
    }
    return took;
  }

  OwnClock clock_;
  std::unique_ptr<Engine> engine_;
  SiteId site_ = kHostSite;
};

TEST_F(TakingTurns, OfASmallJobDoNotWaitForAPartOfEachLargeOne) {
  Job large(*engine_, site_, "large", kLargeBytes), small(*engine_, site_, "small", kSmallBytes);
  for (int i = 0; i < 20; ++i) large.add_communicator();
  small.add_communicator();
  for (int i = 0; i < 100; ++i) work();
  large.submit_all();
  for (int i = 0; i < 100; ++i) work();
  const uint64_t since = clock_.ns, large_before = clock_.large_ns;
  const std::vector<uint64_t> took = latencies(small, large, 200);
  EXPECT_LE(*std::max_element(took.begin(), took.end()), 2 * (kTurnNs + kLargeNs));
  EXPECT_GT(clock_.large_ns - large_before, (clock_.ns - since) * 9 / 10);
}

TEST_F(TakingTurns, OfManySmallJobsLeaveALargeOneItsOwn) {
  Job large(*engine_, site_, "large", kLargeBytes), small(*engine_, site_, "small", kSmallBytes);
  large.add_communicator();
  for (int i = 0; i < 19; ++i) small.add_communicator();
  for (int i = 0; i < 100; ++i) work();
  large.submit_all();
  small.submit_all();
  const uint64_t since = clock_.ns;
  while (clock_.ns < since + 1'000'000'000) {
    work();
    large.go_on();
    small.go_on();
  }
  EXPECT_GT(clock_.large_ns, (clock_.ns - since) / 20);
}

TEST_F(TakingTurns, OfOneHoldersManyAreNoMoreThanAnothersOne) {
  Job many(*engine_, site_, "many", kLargeBytes, 1), one(*engine_, site_, "one", kLargeBytes, 2);
  for (int i = 0; i < 9; ++i) many.add_communicator();
  one.add_communicator();
  for (int i = 0; i < 100; ++i) work();
  many.submit_all();
  const auto work_for_a_second = [&](bool both) {
    const uint64_t since = clock_.ns;
    while (clock_.ns < since + 1'000'000'000) {
      work();
      many.go_on();
      if (both) one.go_on();
    }
  };
  work_for_a_second(/*both=*/false);
  EXPECT_GT(clock_.large_ns, 900'000'000) << "all of it, where nobody else wants any";
  const uint64_t alone = many.ended();
  one.submit_all();
  for (int i = 0; i < 4; ++i) work_for_a_second(/*both=*/true);
  const uint64_t beside = many.ended() - alone;
  EXPECT_NEAR(static_cast<double>(one.ended()), static_cast<double>(beside), 0.15 * beside);
}

}  // namespace
}  // namespace cgx::scheduler
