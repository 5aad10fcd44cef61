// Channel: the client's side of a session's shared memory: rings, doorbell, waiting words, error
// texts.
//
// Thread rule: the session's mutex guards everything except beat(), completion_tail(), sleep() and
// wake_all(). The mapping is not inherited by forked children. Invariants: nothing read here is a
// bound; a record is copied, then looked at.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "proto/wire/ring.h"
#include "proto/wire/status.h"
#include "proto/wire/unique_fd.h"

namespace cgx::client {

class Channel {
 public:
  static Result<std::unique_ptr<Channel>> map(UniqueFd memory, UniqueFd doorbell,
                                              UniqueFd completion_event);
  ~Channel();
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  // Records that fit in the submit ring now.
  uint32_t submit_room() const;
  // The caller has made sure of room.
  void push(const cgx_submit_record& record);
  // Makes pushed records visible and wakes the daemon if it sleeps.
  void publish();
  // Moves while the daemon's loop turns; 0: this daemon does not beat.
  uint32_t beat() const;
  // The daemon's time-out of communicators whose program gives none; 0: it does not say.
  uint64_t communicator_ms() const;

  using Pop = wire::CompletionConsumer::Pop;
  Pop try_pop(cgx_completion_record& record) { return completions_.try_pop(record); }
  void release() { completions_.release(); }
  // Records the daemon has ever published: a change tells a spinning thread, which needs no lock,
  // that there is something to pop.
  uint64_t completion_tail() const { return wire::load_acquire(memory_.header->completion_tail); }
  // The daemon's text for an error record, or "" if its slot was overwritten or never written.
  std::string text_of(const cgx_completion_record& record) const;

  // Waiting without lost wake-ups: announce(), read word(), look at the ring, sleep(word); at the
  // end withdraw(). The daemon publishes, then reads the announcement, then changes the word, as
  // wake_all() does for other threads of this process.
  void announce();
  void withdraw();
  uint32_t word() const;
  void sleep(uint32_t word, std::chrono::nanoseconds limit) const;
  void wake_all() const;

  // Asks the daemon to signal the eventfd with every batch of completions from now on.
  int arm_event();
  void clear_event() const;

  int doorbell() const { return doorbell_.get(); }
  int completion_event() const { return event_.get(); }
  void abandon_descriptors();  // in a forked child, where they are closed already

 private:
  Channel(void* base, UniqueFd doorbell, UniqueFd completion_event);

  void* const base_;
  const wire::SessionMemory memory_;
  UniqueFd doorbell_, event_;
  wire::SubmitProducer submits_;
  wire::CompletionConsumer completions_;
  uint32_t waiters_ = 0;
};

}  // namespace cgx::client
