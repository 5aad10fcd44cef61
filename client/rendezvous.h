// Rendezvous: the ranks of a communicator tell each other where their daemons are and agree on the
// job key, through whatever store the caller has.
//
//   key   := "cgx/" job "/" communicator "#" use "/" ("member/" rank | "key")
//   member:= magic u32 "CGXR", version u32, size u32, instance 16 bytes, mesh address string
//
// `use` counts how often this process has made a communicator of that name, so that a store that is
// kept over time never hands out an old entry. Thread rule: the calling thread, which may block in
// get.
#pragma once

#include <string>
#include <vector>

#include "client/include/cgx/cgx.h"
#include "proto/wire/session_messages.h"

namespace cgx::client {

// A key-value store all ranks reach.
class Store {
 public:
  virtual ~Store() = default;
  virtual Status put(const std::string& key, std::span<const std::byte> value) = 0;
  // Waits until the key exists.
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
  uint32_t rank = 0, size = 1;
  wire::Member self;
  wire::JobKey key_if_first{};  // rank 0's choice; the others receive it
};

struct Agreement {
  std::vector<wire::Member> members;  // in rank order
  wire::JobKey job_key{};
};

// `store` may be null when size is 1. MISMATCH names the rank that disagrees.
Result<Agreement> meet(const Meeting& meeting, Store* store);

Result<wire::JobKey> random_key();

}  // namespace cgx::client
