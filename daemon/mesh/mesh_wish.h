// What the mesh agent keeps per wished link and per issued challenge. Internal to mesh_agent*.cc.
// Thread rule: the mesh agent's.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "daemon/mesh/mesh_agent.h"

namespace cgx::daemon {

struct MeshAgent::Wish {
  Wish(LinkWish asked, const std::string& cluster_key, const wire::InstanceId& own,
       uint64_t now_ns);

  LinkWish wish;
  LinkKey key;
  KeyId key_id;
  bool dials;  // else the peer does
  std::vector<std::string> addresses;
  uint64_t since_ns;
  // Both daemons are on loopback and the peer has not been met here: it may be on another machine.
  bool unmet = false;

  // The dialing side.
  size_t address = 0;
  uint64_t attempt = 0;  // of the call under way; 0: none
  uint64_t next_try_ns;
  uint64_t pause_ns = 0;
  uint64_t silent_since_ns = 0;  // 0: the last call reached somebody
  Status silence;                // what the last unanswered call said
  Introduction introduction;
  std::optional<Proof> proof;  // sent, not answered yet: may be sent again
  bool answered = false;       // the host knows what came of it; the peer must still hear that
  Status failure;              // of our transport

  // The dialed side: who waits for our Acceptance while the transport connects.
  UniqueFunction<void(Acceptance)> acceptance;
  Nonce challenge{};
  bool connected = false;
  // A greeting that nearly fits this wish.
  KeyId stranger_key{};
  uint32_t stranger_uid = 0;
  uint64_t stranger_since_ns = 0;
  // Why the peer may be the wrong one. Anybody can say that: it counts when the peer's own address,
  // which the job named, confirms it; else the time-out quotes it.
  Status doubt;
  uint64_t next_ask_ns = 0;

  bool calls() const { return dials || unmet; }
  bool greets() const { return !answered && !proof; }  // where it calls
  const std::string& current_address() const { return addresses[address % addresses.size()]; }
};

// A challenge we gave and its greeting; good for one proof. Answers may get lost and be asked for
// again, so they are kept.
struct MeshAgent::Issued {
  std::string holder;  // the host that greeted, and the job's user
  LinkSerial serial = 0;
  Introduction introduction;
  uint64_t expires_ns = 0;
  std::optional<Mac> proof;  // the one that was accepted
  Mac arrival{};             // what its maker must send when it has connected
  Acceptance answer;
};

}  // namespace cgx::daemon
