// One job as the daemons of its other machines see it: what they are told, and what they tell.
//
// Whoever asks proves that he knows a key with which a link of that job was made here: a MAC over a
// challenge of ours, which is good once, and over the address he asked, so that nobody in between
// can use it elsewhere. Thread rule: called by gRPC's threads, any number at once. Invariants:
// strangers learn nothing, not even whether a job exists; challenges are bounded, per host, too;
// so are questions under way, their threads, and what they hold of answers.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "daemon/fleet/mesh_tls.h"
#include "daemon/mesh/link_keys.h"
#include "daemon/net/networks.h"
#include "daemon/operators/control_view.h"
#include "daemon/operators/operator_port.h"
#include "proto/messages/fleet.pb.h"
#include "proto/wire/mutex.h"

namespace cgx::daemon {

struct FleetFacts {
  std::string name;          // of this machine
  std::string mesh_address;  // advertised; may be several, separated by commas
  NetworkList trusted;
  MeshTls tls;
};

class Fleet {
 public:
  Fleet(FleetFacts facts, OperatorPort& port) : facts_(std::move(facts)), port_(port) {}

  LinkKeys& keys() { return keys_; }

  // What another daemon, at `host`, is told.
  v1::ShowReply answer(const std::string& host, const v1::ShowRequest& request);

  // What the daemons that have links for the job of `of` say, in some seconds and so many bytes. It
  // is the job's owner who named them: they may say anything.
  FleetAnswer ask(const Snapshot& snapshot, const CommunicatorSnapshot& of,
                  const FleetQuestion& question);

 private:
  struct Issued {
    std::string host;
    uint64_t expires_ns = 0;
  };
  bool issue(const std::string& host, Nonce& challenge);
  bool take(const std::string& host, const Nonce& challenge);
  Status check(const std::string& host, const v1::ShowRequest& request);
  std::set<std::string> machines(const Snapshot& snapshot, const JobOwner& of) const;

  const FleetFacts facts_;
  OperatorPort& port_;
  LinkKeys keys_;
  Mutex mutex_;
  std::map<Nonce, Issued> issued_ CGX_GUARDED_BY(mutex_);
  std::atomic<uint32_t> questions_[2] = {};  // under way: of users, of operators
};

}  // namespace cgx::daemon
