// A machine's arithmetic on two cores, when its engine goes.
#include "daemon/data/pooled_site.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "kernels/codec.h"

namespace cgx::daemon {
namespace {

using scheduler::Engine;
using scheduler::OperationSetup;
using scheduler::Site;
using scheduler::SiteAnswer;
using scheduler::SiteJob;
using scheduler::SiteOperation;
using scheduler::Ticket;

struct Seen {
  std::atomic<bool> begun{false}, gone{false}, gone_while_computing{false};
};

// Takes its time over a job, unless the operation goes meanwhile.
class SlowTwin final : public Site {
 public:
  explicit SlowTwin(Seen& seen) : seen_(seen) {}
  bool consumes_inside() const override { return true; }
  std::unique_ptr<SiteOperation> begin(const OperationSetup&) override {
    return std::make_unique<Work>(seen_);
  }
  scheduler::ResidualMaker residual_maker() const override { return {}; }

 private:
  struct Work final : SiteOperation {
    explicit Work(Seen& of) : seen(of) {}
    ~Work() override { seen.gone = true; }
    std::optional<SiteAnswer> ask(Ticket, const SiteJob&) override {
      Seen& watched = seen;
      watched.begun = true;
      const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(50);
      while (!watched.gone && std::chrono::steady_clock::now() < until) std::this_thread::yield();
      watched.gone_while_computing = watched.gone.load();
      return SiteAnswer{};
    }
    const std::vector<scheduler::Norms>& norms() const override { return no_norms; }
    const std::vector<scheduler::LossSample>& losses() const override { return no_losses; }
    Seen& seen;
    std::vector<scheduler::Norms> no_norms;
    std::vector<scheduler::LossSample> no_losses;
  };
  Seen& seen_;
};

struct Silent final : scheduler::SessionPort {
  void complete(cgx_completion_record, std::string_view) override {}
  void reply(uint32_t, const wire::Reply&) override {}
};

TEST(PooledSite, IsWaitedForBeforeWhatItComputesGoes) {
  constexpr uint64_t kElements = 1 << 20;  // many parts
  Seen seen;
  Silent port;
  std::vector<std::byte> arena(kElements * sizeof(float));
  const auto pooled = [&seen](std::unique_ptr<Site> here) {
    return std::make_unique<PooledSite>(std::move(here), std::make_unique<SlowTwin>(seen));
  };
  auto engine =
      Engine::create({.instance = {1, 2}, .lane = &kernels::best_lane()}, {.site = pooled}).value();
  const scheduler::SessionId session = engine->open_session({.job = "a"}, port).value();
  ASSERT_TRUE(engine->add_arena(session, 0, arena).ok());
  wire::CreateCommunicator message{.comm = 7, .name = "c"};
  message.members.push_back({.instance = {1, 2}, .mesh_address = {}, .device = {}});
  engine->create_communicator(session, 1, message);
  cgx_submit_record record{};
  record.kind = CGX_SUBMIT_CALL;
  record.comm = 7;
  record.count = kElements;
  ASSERT_TRUE(engine->submit(session, record).ok());
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!seen.begun && std::chrono::steady_clock::now() < until) engine->do_work(1);
  ASSERT_TRUE(seen.begun);
  engine.reset();
  EXPECT_TRUE(seen.gone);
  EXPECT_FALSE(seen.gone_while_computing) << "its thread had it in hand";
}

}  // namespace
}  // namespace cgx::daemon
