// How a communicator comes together: what its first rank has said of it, which machines have all
// their ranks and links, and what is remembered of a joining that failed.
//
// Owned by one communicator; told of everything, it asks nobody.
#pragma once

#include <string>
#include <vector>

#include "proto/wire/session_messages.h"
#include "scheduler/communicator/control.h"
#include "scheduler/communicator/members.h"
#include "scheduler/communicator/peers.h"
#include "scheduler/exchange/residual_store.h"

namespace cgx::scheduler {

class Joining {
 public:
  Joining(const Members& members, const wire::CreateCommunicator& first);

  const wire::JobKey& job_key() const { return job_key_; }
  uint64_t first_step() const { return first_step_; }
  // Of another rank that comes: it is to the same meeting, and describes what the first one did.
  bool same_meeting(const wire::CreateCommunicator& message) const {
    return message.job_key == job_key_ && message.meeting == meeting_;
  }
  Status compare(const wire::CreateCommunicator& message) const;

  // All local ranks are here, all links are up, and it has not been said yet.
  bool complete_here(const Peers& peers) const;
  void say_joined() { machines_[members_.machine].joined = true; }
  bool said_joined() const { return machines_[members_.machine].joined; }
  Join message(const ResidualMark& kept) const;

  // Coordinator.
  Status take(uint32_t machine, const Join& message);  // an error: it describes something else
  bool all_joined() const;
  // Every machine keeps the residuals of the same step of the same life; `own` are this one's.
  bool all_keep(const ResidualMark& own) const;
  // What that comes to, for people; empty: nobody keeps any.
  std::string feedback_begins(const ResidualMark& own) const;
  // Who has not come, with a space before each.
  std::string missing(const Peers& peers) const;

  // It has failed; who still comes is told until forget_at_ns(), 0 while a local rank is here.
  void fail() { failed_ = true; }
  bool failed() const { return failed_; }
  void forget_at(uint64_t ns) { forget_at_ns_ = ns; }
  uint64_t forget_at_ns() const { return forget_at_ns_; }

 private:
  struct Machine {
    bool joined = false;
    ResidualMark kept;
  };
  uint64_t shape_hash() const;  // of ranks, machines and their order

  const Members& members_;
  const wire::JobKey job_key_;
  const uint32_t meeting_;
  const uint64_t first_step_;
  std::vector<Machine> machines_;
  bool failed_ = false;
  uint64_t forget_at_ns_ = 0;
};

}  // namespace cgx::scheduler
