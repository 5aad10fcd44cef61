// Looking at daemons from outside a job: what another one is told about this one, and what this one
// finds when it looks at others. cgxctl doctor and status --all are made of it.
//
// Thread rule: immutable but for what it keeps for half a second; called by gRPC's threads, any
// number at once.
// Invariants: strangers are told nothing; however many ask, the engine is asked for a snapshot and
// this process' descriptors are looked through once per half second at most; only addresses inside
// the trusted networks are called.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "daemon/fleet/mesh_tls.h"
#include "daemon/mesh/mesh_handshake.h"
#include "daemon/net/networks.h"
#include "daemon/net/reach.h"
#include "daemon/operators/operator_port.h"
#include "proto/messages/control.pb.h"
#include "proto/wire/mutex.h"

namespace cgx::daemon {

// Keys, with values, that all machines of a job must have the same.
using AgreedKeys = std::vector<std::pair<std::string, std::string>>;

struct LookFacts {
  std::string name;          // of this machine
  std::string mesh_address;  // advertised; may be several, separated by commas
  NetworkList trusted;
  AgreedKeys agreed;
  std::string cluster_key;
  MeshTls tls;
  std::vector<uint16_t> other_ports;  // that this process listens on beside the data path's
  uint16_t usual_port;                // of other machines, where none is said
  // A numeric address of a name; empty: none is known. May take long.
  std::function<std::string(const std::string& host)> resolve = numeric_host;
  // Where this process listens, but for those ports. Looks at each of its descriptors.
  std::function<std::vector<std::string>(const std::vector<uint16_t>&)> listeners = own_listeners;
};

class Look {
 public:
  Look(LookFacts facts, OperatorPort& port);
  ~Look();

  // What another daemon, at `host`, is told.
  v1::LookReply answer(const std::string& host, const v1::LookRequest& request);
  // What this one finds. Takes some seconds where something does not answer, and no more whatever
  // does. Who is no operator may name machines, but no ports: he could look for open ones where the
  // daemon alone gets to, also with an answer that he gives himself.
  v1::Diagnosis diagnose(const v1::DiagnoseRequest& request, bool for_operator,
                         const StillWaits& waits = {});

 private:
  struct Seen;  // of one address
  struct Turn;
  struct Terms {
    bool any_port = false;  // of mesh
    bool any_data = false;  // ports for gradients on other hosts
    uint64_t end_ns = 0;
    StillWaits waits = {};
    bool over() const;
    uint64_t left_ns() const;
    int reach_ms() const;  // for one port
  };
  class Names;
  Seen look_at(const std::string& asked, const Terms& terms) const;
  void compare(v1::LookReply reply, const std::string& address, const Terms& terms,
               Seen& seen) const;
  std::vector<std::string> linked(bool for_operator);
  std::vector<std::string> listeners();
  v1::Totals totals();

  const LookFacts facts_;
  const KeyId key_id_;
  const bool loopback_only_;
  OperatorPort& port_;
  const std::shared_ptr<Names> names_[2];    // asked for by users, and by operators
  std::atomic<uint32_t> diagnoses_[2] = {};  // under way: of users, of operators
  Mutex mutex_;
  v1::Totals totals_ CGX_GUARDED_BY(mutex_);
  uint64_t totals_ns_ CGX_GUARDED_BY(mutex_) = 0;  // when they were taken
  std::vector<std::string> listeners_ CGX_GUARDED_BY(mutex_);
  uint64_t listeners_ns_ CGX_GUARDED_BY(mutex_) = 0;  // likewise
};

}  // namespace cgx::daemon
