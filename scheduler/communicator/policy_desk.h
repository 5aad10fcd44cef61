// What a communicator knows of its policies: the one that its next plan is made from, what an
// operator wants instead, operators here who wait for the coordinator's answer, and those that were
// in force.
//
// Owned by one communicator; told of everything, it asks nobody. Answers are handed back to be
// called: whoever is told may ask for something else at once.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "scheduler/communicator/engine_options.h"
#include "scheduler/communicator/snapshot.h"

namespace cgx::scheduler {

class PolicyDesk {
 public:
  explicit PolicyDesk(Policy configured);

  // What plans are made from. Version 1 is what the coordinator is configured to.
  const Policy& policy() const { return policy_; }
  uint64_t version() const { return version_; }
  const Policy& configured() const { return configured_; }
  void configure(const Policy& policy) { configured_ = policy; }  // as the coordinator says
  void adopt(const Policy& policy, uint64_t version);

  // Coordinator: what an operator wants, until all machines have agreed
  struct Wish {
    Policy policy;
    PolicyAnswer answer;
    std::vector<std::string> warnings;
  };
  void want(Wish wish) { wish_ = std::move(wish); }  // in place of the one before
  const Wish* wish() const { return wish_ ? &*wish_ : nullptr; }
  std::optional<Wish> take_wish() { return std::exchange(wish_, std::nullopt); }

  // Members: what the coordinator was asked for
  uint64_t expect(PolicyAnswer answer, uint64_t deadline_ns);  // the ticket
  PolicyAnswer take(uint64_t ticket);  // empty: nobody waits for it any more
  std::vector<PolicyAnswer> take_late(uint64_t now_ns);
  std::vector<PolicyAnswer> take_all();  // the wish's too: nothing will come of them

  // What was in force, newest last; the first, and at most 16 later ones
  using History = std::vector<std::shared_ptr<const PolicyVersion>>;
  const History& history() const { return history_; }
  // A plan took force. False: its version was known to be.
  bool took_force(const PolicyVersion& version);

 private:
  struct Ticket {
    PolicyAnswer answer;
    uint64_t deadline_ns = 0;
  };
  void note(const PolicyVersion& version);

  Policy configured_, policy_;
  uint64_t version_ = 1;
  std::optional<Wish> wish_;
  std::map<uint64_t, Ticket> tickets_;
  uint64_t next_ticket_ = 1;
  History history_;
};

}  // namespace cgx::scheduler
