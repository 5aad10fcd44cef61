// A plan log of a test: what took force and what was looked at, in order.
#pragma once

#include <vector>

#include "tests/sim/cluster.h"

namespace cgx::sim {

class EpochLog : public scheduler::PlanLog {
 public:
  void took_force(const scheduler::PlanEntry& entry) override { entries.push_back(entry); }
  void looked_at(const scheduler::PlanRemark& remark) override { remarks.push_back(remark); }
  std::vector<scheduler::PlanEntry> entries;
  std::vector<scheduler::PlanRemark> remarks;
};

}  // namespace cgx::sim
