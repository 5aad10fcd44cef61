// What operators ask, carried into the engine's thread and back with a time-out.
// Thread rule: from anywhere; the caller's thread waits, the engine's never does.
#pragma once

#include <span>

#include "daemon/data/data_agent.h"
#include "daemon/data/share_board.h"
#include "daemon/operators/operator_port.h"

namespace cgx::daemon {

class MailboxOperator final : public OperatorPort {
 public:
  // `recorder`: what the agent was given to record in; outlives this. Empty: nothing is recorded.
  // `shares`: what the edges have given out.
  MailboxOperator(DataAgent& data, std::span<const std::byte> recorder, const ShareBoard& shares)
      : data_(data), recorder_(recorder), shares_(shares) {}

  Result<scheduler::Snapshot> snapshot(uint64_t timeout_ns) override;
  Result<scheduler::RecorderReader::Reading> events(uint64_t from) override;
  Result<scheduler::PolicyChange> apply_policy(const CommunicatorName& target,
                                               const scheduler::Policy& policy, bool dry_run,
                                               uint64_t expected_version,
                                               const Patience& patience) override;
  Result<scheduler::Explanation> explain(const CommunicatorName& target, const std::string& tensor,
                                         const Patience& patience) override;
  Result<scheduler::WhatIf> what_if(const CommunicatorName& target, const scheduler::Policy& policy,
                                    uint32_t machines, const Patience& patience) override;
  Result<scheduler::JobProfile> profile(const CommunicatorName& target,
                                        const Patience& patience) override;

 private:
  DataAgent& data_;
  const std::span<const std::byte> recorder_;
  const ShareBoard& shares_;
};

}  // namespace cgx::daemon
