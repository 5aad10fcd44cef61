// A site that knows the price of everything: it computes nothing, touches no memory, and answers
// when the machine's one lane has had the time that the job costs. So codecs take time in virtual
// time, at the prices that the timeline has (scheduler/planners/costs.h).
//
// An operation's and its segments' own costs come before its first job. Encoded bytes are those of
// the layout, as every range that its codec must fill. Residuals have no memory. Thread rule: the
// simulator's one thread.
#pragma once

#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "scheduler/exchange/site.h"
#include "scheduler/planners/costs.h"
#include "scheduler/ports.h"
#include "scheduler/sim/daemon_lane.h"

namespace cgx::scheduler::sim {

// What jobs cost, by kind and codec. REQUIRES: the costs outlive it.
class JobPrices {
 public:
  explicit JobPrices(const MachineCosts& costs) : costs_(costs) {}

  double of(const OperationSetup& setup, const SiteJob& job);
  double of_operation(const OperationSetup& setup) const {
    return costs_.operation_ns + costs_.segment_ns * static_cast<double>(setup.segments.size());
  }
  Status knows(const CodecSpec& spec) const { return costs_.curves_of(spec).status(); }

 private:
  const CodecCurves& curves_of(const CodecSpec& spec);

  const MachineCosts& costs_;
  std::deque<CodecCurves> known_;  // of the codecs that were asked about
};

class CostedSite final : public Site {
 public:
  // REQUIRES: all three outlive it.
  CostedSite(const MachineCosts& costs, DaemonLane& lane, const Clock& clock)
      : prices_(costs), lane_(lane), clock_(clock) {}

  bool consumes_inside() const override { return true; }
  bool reads_frames() const override { return false; }
  std::unique_ptr<SiteOperation> begin(const OperationSetup& setup) override;
  ResidualMaker residual_maker() const override;
  Status takes(const CodecSpec& spec, DType dtype) const override;
  int poll(SiteEvents& events, uint64_t now_ns) override;
  uint64_t next_answer_ns() const override;
  bool answers() const { return !done_.empty(); }  // poll() has something

 private:
  class Work;
  void take(const OperationSetup& setup, Ticket ticket, const SiteJob& job);

  JobPrices prices_;
  DaemonLane& lane_;
  const Clock& clock_;
  std::vector<std::pair<Ticket, SiteAnswer>> done_;
};

}  // namespace cgx::scheduler::sim
