// The file in which a daemon keeps the plans that searches have settled on, for jobs of the same
// name after it has been started again.
//
// Thread rule: opened on main's thread before any other exists; then the planner's, which writes
// the file anew whenever a plan is kept: beside it, then in its place, under a lock, with what
// other daemons of the user have kept there meanwhile. What cannot be read or written is said once,
// and the daemon goes on without.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>

#include "scheduler/engine/engine.h"

namespace cgx::daemon {

class ProfileFile final : public scheduler::ProfileLog {
 public:
  // Reads what is there; a file that is damaged, or not this user's, is left out.
  ProfileFile(std::string path, scheduler::EventSink& events);

  const scheduler::KeptProfiles& profiles() const { return profiles_; }
  void kept(const scheduler::KeptFor& whose, const scheduler::Profile& profile) override;
  void forgotten(const scheduler::KeptFor& whose) override;

 private:
  using Change = std::function<void(scheduler::KeptProfiles&)>;
  void change(Change what);

  std::string path_;
  scheduler::EventSink& events_;
  scheduler::KeptProfiles profiles_;
  std::deque<Change> unwritten_;  // the last one could not be written, and what came before it
};

}  // namespace cgx::daemon
