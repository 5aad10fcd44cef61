// What operators ask, carried into the engine's thread and back with a time-out.
// Thread rule: from anywhere; the caller's thread waits, the engine's never does.
#pragma once

#include "daemon/data_agent.h"
#include "daemon/operator_port.h"

namespace cgx::daemon {

class MailboxOperator final : public OperatorPort {
 public:
  explicit MailboxOperator(DataAgent& data) : data_(data) {}

  Result<scheduler::Snapshot> snapshot(uint64_t timeout_ns) override;
  Result<scheduler::PolicyChange> apply_policy(const CommunicatorName& target,
                                               const scheduler::Policy& policy, bool dry_run,
                                               uint64_t timeout_ns) override;

 private:
  DataAgent& data_;
};

}  // namespace cgx::daemon
