// A machine's arithmetic on two cores: parts that need no frame in hand go to a second thread while
// it has room, everything else is computed on the data thread, which so never waits for the other.
//
//   data thread -> ring of asked jobs -> second thread -> the same ring, done -> poll()
//
// One ring with a writer and a reader each way: a job's slot belongs to the second thread from the
// moment it is asked until it is done. What a job names stays where it is until it is answered
// (PROTOCOL 32). Thread rule: as every site; the second thread is this object's own.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "scheduler/site.h"

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
  int poll(scheduler::SiteEvents& events, uint64_t now_ns) override;
  // Jobs take some 50 us: sleeping would cost as much.
  uint64_t next_answer_ns() const override { return asked_here_ == answered_ ? UINT64_MAX : 0; }

 private:
  class Work;
  struct Slot {
    scheduler::SiteOperation* work = nullptr;  // null: the thread ends
    scheduler::Ticket ticket = 0;
    scheduler::SiteJob job;
    std::vector<scheduler::SiteContribution> from;  // of the job
    scheduler::SiteAnswer answer;
  };
  static constexpr uint64_t kSlots = 2;  // one is computed, one waits

  bool give(scheduler::SiteOperation& work, scheduler::Ticket ticket,
            const scheduler::SiteJob& job);
  void compute();
  uint64_t wait_for_job(uint64_t taken) const;
  Slot& slot(uint64_t number) { return slots_[number % kSlots]; }

  const std::unique_ptr<scheduler::Site> here_, there_;
  std::array<Slot, kSlots> slots_;
  uint64_t asked_here_ = 0, answered_ = 0;  // of the data thread
  std::atomic<uint64_t> asked_{0};          // written by the data thread
  std::atomic<uint64_t> done_{0};           // written by the second thread
  std::thread thread_;
};

}  // namespace cgx::daemon
