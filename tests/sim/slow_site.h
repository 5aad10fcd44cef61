// A site that takes virtual time: it answers when it has done a job, not inside the call.
//
// Either it reads a job's frames at once, as a machine does whose arithmetic costs time, or it lets
// them be held and computes at the last moment, as a worker may: whoever lets go of what a job
// names too early is found out. Jobs may take any time each, so answers come in any order, or one
// after the other, as on one core.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "scheduler/exchange/site.h"

namespace cgx::sim {

struct SlowSiteOptions {
  std::function<int64_t(const scheduler::OperationSetup&, const scheduler::SiteJob&)> takes_ns;
  bool consumes = false;
  bool one_core = false;
  bool waits_for_ranks = false;  // all that time, where a job reads what they have submitted
  uint64_t fails_at = 0;  // this job and all behind it are answered with DEVICE_LOST; 0: none
};

class SlowSite final : public scheduler::Site {
 public:
  SlowSite(std::unique_ptr<scheduler::Site> host, SlowSiteOptions options,
           std::function<uint64_t()> now_ns);
  ~SlowSite() override;

  bool consumes_inside() const override { return options_.consumes; }
  std::unique_ptr<scheduler::SiteOperation> begin(const scheduler::OperationSetup& setup) override;
  scheduler::ResidualMaker residual_maker() const override { return host_->residual_maker(); }
  uint32_t decoded_pieces() const override { return host_->decoded_pieces(); }
  int poll(scheduler::SiteEvents& events, uint64_t now_ns) override;
  uint64_t next_answer_ns() const override;

  void close() { waiting_.clear(); }  // its engine goes: nothing is answered any more
  uint64_t jobs() const { return jobs_; }
  size_t under_way() const { return waiting_.size(); }

 private:
  class Work;
  struct Waiting {
    Work* work = nullptr;
    scheduler::Ticket ticket = 0;
    scheduler::SiteJob job;
    std::vector<scheduler::SiteContribution> from;  // of the job
    std::optional<scheduler::SiteAnswer> answer;    // computed already
  };
  void take(Work& work, scheduler::Ticket ticket, const scheduler::SiteJob& job);
  scheduler::SiteAnswer run(Waiting& waiting);
  const Waiting* first_reading(const Work& work) const;
  std::optional<scheduler::AwaitedInput> awaited(const Work& work) const;
  void hurry(const Work& work);
  void give_way(const Work& work);

  std::unique_ptr<scheduler::Site> host_;
  SlowSiteOptions options_;
  std::function<uint64_t()> now_ns_;
  uint64_t jobs_ = 0, busy_until_ns_ = 0;
  std::multimap<uint64_t, Waiting> waiting_;  // by when they are answered
};

// Of one core that codes at a GB/s, which is slower than any; of a job's raw bytes.
int64_t price_ns(const scheduler::OperationSetup& setup, const scheduler::SiteJob& job);

}  // namespace cgx::sim
