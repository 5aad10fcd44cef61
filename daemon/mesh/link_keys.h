// The keys of links that were made, so that operators' questions about a job can be proved and
// checked after the introduction is over.
// Thread rule: any.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>

#include "daemon/mesh/mesh_handshake.h"
#include "proto/wire/mutex.h"

namespace cgx::daemon {

// Bounded: the oldest is forgotten.
class LinkKeys {
 public:
  void keep(const JobOwner& of, const LinkKey& key);
  std::optional<LinkKey> newest(const JobOwner& of) const;
  std::optional<LinkKey> find(const JobOwner& of, const KeyId& id) const;

 private:
  struct Kept {
    JobOwner of;
    KeyId id;
    LinkKey key;
  };
  mutable Mutex mutex_;
  std::deque<Kept> kept_ CGX_GUARDED_BY(mutex_);  // newest first
};

}  // namespace cgx::daemon
