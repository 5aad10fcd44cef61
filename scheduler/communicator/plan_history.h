// The plans that took force, as a file that another run can follow: results depend on
// data, ranks and this history only, so equal runs under equal histories give equal bits.
//
//   history := "cgx-plans 1\n" (line | remark)*
//   line    := job TAB communicator TAB step TAB body [TAB who TAB why] LF
//   body    := the plan's Prepare message (communicator/control.h) in hexadecimal digits
//   remark  := "# " job TAB communicator TAB step TAB epoch TAB text LF    for people: not followed
//
// Bytes of a name below 33, '%' and 127 are written as %XX; who, why and text keep their spaces.
// Older histories have neither who and why nor remarks; what newer ones say behind them is left
// out.
//
// Kept by coordinators, in the order in which plans took force.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "scheduler/communicator/control.h"
#include "scheduler/plan/plan.h"
#include "scheduler/plan/plan_origin.h"
#include "scheduler/planners/plan_note.h"

namespace cgx::scheduler {

struct PlanEntry {
  std::string job, communicator;
  uint64_t step = 0;  // the first one under this plan
  PlanPurpose purpose = PlanPurpose::kCommit;
  Policy policy;
  Plan plan;
  PlanOrigin origin = {};
};

constexpr std::string_view kPlanHistoryHead = "cgx-plans 1\n";
std::string format_plan_entry(const PlanEntry& entry);
// What a search or a ceiling has found about a plan: predicted, measured, verdict.
struct PlanRemark {
  std::string job, communicator;
  PlanNote note;
};
std::string format_plan_remark(const PlanRemark& remark);
Result<PlanEntry> parse_plan_entry(std::string_view line);  // without its LF
// An error names the line and what is wrong with it.
Result<std::vector<PlanEntry>> parse_plan_history(std::string_view text);

// Where a daemon that keeps a history writes it.
class PlanLog {
 public:
  virtual ~PlanLog() = default;
  virtual void took_force(const PlanEntry& entry) = 0;
  virtual void looked_at(const PlanRemark& remark) = 0;
};

// What is left to follow for one communicator.
class PlanReplay {
 public:
  // `earlier`: communicators of that name whose plans have been repeated; the next one's are taken,
  // and after the last one's the first one's again.
  PlanReplay(const std::vector<PlanEntry>* history, std::string_view job,
             std::string_view communicator, size_t earlier);

  bool on() const { return history_ != nullptr; }
  const PlanEntry* next() const { return entries_.empty() ? nullptr : entries_.front(); }
  // The next entry is a commit of this table at this step, or why it is not.
  Result<const PlanEntry*> next_commit(uint64_t table_hash, uint64_t step) const;
  void advance() { entries_.erase(entries_.begin()); }

 private:
  const std::vector<PlanEntry>* history_;
  std::vector<const PlanEntry*> entries_;
};

}  // namespace cgx::scheduler
