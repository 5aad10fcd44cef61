// Plain structs of the mesh handshake to and from their protobuf messages. Internal to mesh_rpc.
// Thread rule: pure functions.
#pragma once

#include "daemon/mesh/mesh_handshake.h"
#include "proto/messages/mesh.pb.h"

namespace cgx::daemon {

v1::GreetRequest to_message(const Greeting& greeting);
v1::GreetReply to_message(const Challenge& challenge);
v1::ProveRequest to_message(const Proof& proof);
v1::ProveReply to_message(const Acceptance& acceptance);
v1::ArriveRequest to_message(const Arrival& arrival);
v1::ArriveReply to_message(const Verdict& verdict);

// PROTOCOL_ERROR names the field whose size is wrong.
Result<Greeting> from_message(const v1::GreetRequest& message);
Result<Challenge> from_message(const v1::GreetReply& message);
Result<Proof> from_message(const v1::ProveRequest& message);
Result<Acceptance> from_message(const v1::ProveReply& message);
Result<Arrival> from_message(const v1::ArriveRequest& message);
Result<Verdict> from_message(const v1::ArriveReply& message);

}  // namespace cgx::daemon
