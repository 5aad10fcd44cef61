// Rendezvous: the ranks of a communicator tell each other where their daemons are and agree on the
// job key, through whatever store the caller has.
//
//   prefix := "cgx/" job "/" communicator
//   prefix "/member/" rank         head, incarnation, refused incarnation   by each rank
//   prefix "/list"                 head, list, store answers u8,
//                                  incarnations u32 × 16 bytes              by rank 0
//   prefix "/" list "/answer/" rank  head, ranks u32, incarnation, member
//   prefix "/" list "/key"         job key 32 bytes, verdict u8, status u16, text,
//                                  u32 × member                             by rank 0
//   prefix "/lost"                 head, incarnation, text                  by who was told
//   member := instance, mesh address string, device: 16 bytes
//   head := magic u32 "CGXR", version u32; incarnation, list, instance: 16 bytes; in a key in hex
//
// An incarnation is one attempt of one rank, drawn at random, so nobody is taken for who he was
// before: rank 0 lists the incarnations it read; every rank that reads a list answers it, a rank it
// does not name reads again; rank 0 settles the list if all answers are those it named, else it
// writes another one. Entries of the dead may stay in the store for ever. A rank that finds another
// incarnation in its place takes that back and refuses the other, which then ends: who came first
// stays. A rank whose daemon saw another one die says so to all that came before ("lost"); only in
// a store whose get does not wait can they look for it, and a list says so to whoever finds one
// there before it has asked for anything else. Only "member", "list" and "lost" are written more
// than once, from a job's second meeting on or when something of this kind is wrong.
// Thread rule: the calling thread, which may block in get.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "client/deadline.h"
#include "client/include/cgx/cgx.h"
#include "proto/wire/session_messages.h"

namespace cgx::client {

// A key-value store all ranks reach.
class Store {
 public:
  virtual ~Store() = default;
  // A later value takes the place of an earlier one.
  virtual Status put(const std::string& key, std::span<const std::byte> value) = 0;
  // NOT_FOUND while the key does not exist, or waits until it does.
  virtual Result<std::vector<std::byte>> get(const std::string& key) = 0;
};

// The caller's put and get functions.
class CallbackStore final : public Store {
 public:
  explicit CallbackStore(const cgx_rendezvous& callbacks) : callbacks_(callbacks) {}
  Status put(const std::string& key, std::span<const std::byte> value) override;
  Result<std::vector<std::byte>> get(const std::string& key) override;

 private:
  const cgx_rendezvous callbacks_;
};

struct Meeting {
  std::string prefix;  // namespaces the keys of this communicator
  std::string name;    // of the communicator, for messages
  uint32_t rank = 0, size = 1;
  wire::Member self;
  wire::JobKey key_if_first{};  // rank 0's choice; the others receive it
  Deadline deadline;
  std::function<Status()> go_on;  // asked before the first look into the store and between two
};

struct Agreement {
  std::vector<wire::Member> members;  // in rank order
  wire::JobKey job_key{};
  uint32_t number = 0;  // tells this meeting from others of its name; the same on all ranks
};

// `store` may be null when size is 1. MISMATCH names the rank that disagrees, TIMED_OUT the ranks
// that are missing, as far as the store can be asked without waiting, ALREADY_EXISTS means that
// another process is this rank. Where rank 0 gives up the others get its status.
Result<Agreement> meet(const Meeting& meeting, Store* store);

Result<wire::JobKey> random_key();

}  // namespace cgx::client
