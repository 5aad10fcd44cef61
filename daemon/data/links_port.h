// What crosses between the data agent (engine, transport) and the mesh agent (introductions).
//
//   data  -> want               mesh: handshake with the peer's mesh agent
//         <- connect_link       data: transport.connect(), which knows the peer's frames from then
//         -> connected
//         <- link_made          both sides are connected: frames may be sent
//         <- link_refused       instead of either, at any time
//
// A wish has a serial number that is never reused, so an answer to a withdrawn wish finds nothing.
#pragma once

#include <cstdint>

#include "proto/wire/status.h"
#include "scheduler/engine/engine.h"
#include "transport/transport.h"

namespace cgx::daemon {

using LinkSerial = uint64_t;

struct LinkWish {
  LinkSerial serial = 0;
  scheduler::LinkRequest request;
  transport::Endpoint local;  // how the peer reaches our transport
};

// Implemented by the mesh agent; called on the data agent's thread, never blocks.
class LinkMaker {
 public:
  virtual ~LinkMaker() = default;
  virtual bool want(LinkWish wish) = 0;  // false: too many at once
  virtual void unwant(LinkSerial serial) = 0;
  virtual void connected(LinkSerial serial, const Status& status) = 0;
};

// Implemented by the data agent; called on the mesh agent's thread.
class LinksPort {
 public:
  virtual ~LinksPort() = default;
  virtual void connect_link(LinkSerial serial, transport::ConnectOptions options) = 0;
  virtual void link_made(LinkSerial serial) = 0;
  virtual void link_refused(LinkSerial serial, Status why) = 0;
};

}  // namespace cgx::daemon
