// A machine's arithmetic on two cores: parts that need no frame in hand go to a second thread while
// it has room, everything else is computed on the data thread, which so never waits for the other.
//
//   data thread -> slots -> second thread -> the same slots -> poll()
//
//   slot: free -> asked -> begun (by the second thread, or taken back by the data thread) -> done
//
// Where no core is idle (second_core.h) the second thread gets nothing more for a while, the longer
// the more often that happens; what it has not begun after 50 us is taken back. What a job names
// stays where it is until it is answered (PROTOCOL 32). Thread rule: as every site; the second
// thread is this object's own, a slot belongs to whoever made it `begun`.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "daemon/data/second_core.h"
#include "scheduler/engine/engine.h"
#include "scheduler/exchange/site.h"

namespace cgx::daemon {

class PooledSite final : public scheduler::Site {
 public:
  // Of two sites that compute inline, each on one thread at a time.
  PooledSite(std::unique_ptr<scheduler::Site> here, std::unique_ptr<scheduler::Site> there);
  ~PooledSite() override;
  PooledSite(const PooledSite&) = delete;
  PooledSite& operator=(const PooledSite&) = delete;

  bool consumes_inside() const override { return true; }
  std::unique_ptr<scheduler::SiteOperation> begin(const scheduler::OperationSetup& setup) override;
  scheduler::ResidualMaker residual_maker() const override { return here_->residual_maker(); }
  uint32_t decoded_pieces() const override {
    return here_->decoded_pieces() + there_->decoded_pieces();
  }
  int poll(scheduler::SiteEvents& events, uint64_t now_ns) override;
  // Jobs take some 50 us: sleeping would cost as much.
  uint64_t next_answer_ns() const override { return asked_here_ == answered_ ? UINT64_MAX : 0; }
  void stop() override;
  uint64_t given() const { return asked_here_; }
  uint64_t taken_back() const { return taken_back_; }

 private:
  class Work;
  enum class State : uint8_t { kFree, kAsked, kBegun, kDone };
  struct Slot {
    std::atomic<State> state{State::kFree};
    Work* work = nullptr;  // null: the thread ends
    uint64_t asked_ns = 0;
    scheduler::Ticket ticket = 0;
    scheduler::SiteJob job;
    std::vector<scheduler::SiteContribution> from;  // of the job
    scheduler::SiteAnswer answer;
  };
  static constexpr uint64_t kSlots = 2;  // one is computed, one waits

  bool give(Work& work, scheduler::Ticket ticket, const scheduler::SiteJob& job);
  bool take_back(Slot& slot);
  void compute();
  void wait_for_job(uint64_t seen) const;
  Slot& slot(uint64_t number) { return slots_[number % kSlots]; }

  const std::unique_ptr<scheduler::Site> here_, there_;
  std::array<Slot, kSlots> slots_;
  // Of the data thread:
  uint64_t asked_here_ = 0, answered_ = 0, taken_back_ = 0;
  uint64_t now_ns_ = 0;
  SecondCore core_;
  std::atomic<uint64_t> asked_{0};  // what the second thread waits for
  std::thread thread_;
};

// For an engine that computes on so many threads; empty: on its own.
scheduler::SiteMaker pooled_site(uint32_t threads);

}  // namespace cgx::daemon
