// The ports of the engine: how sessions, links, the log and the clock are reached from it, and the
// limits and time-outs that it is given. Each port is called on the engine's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "proto/wire/session_messages.h"
#include "proto/wire/shm_layout.h"
#include "proto/wire/status.h"

namespace cgx::scheduler {

// That several readers keep.
using SharedBytes = std::shared_ptr<const std::vector<std::byte>>;

struct SessionId {
  uint32_t index = UINT32_MAX;
  uint32_t generation = 0;
  friend bool operator==(SessionId, SessionId) = default;
};

// How the engine answers one session. Implemented over the completion ring and the socket.
class SessionPort {
 public:
  virtual ~SessionPort() = default;
  // `text` is empty unless the record is an error; the port stores it and fills the text fields.
  virtual void complete(cgx_completion_record record, std::string_view text) = 0;
  virtual void reply(uint32_t request, const wire::Reply& reply) = 0;
};

struct SessionOptions {
  std::string job;
  std::string client;
  uint32_t uid = 0;
  int32_t pid = 0;
  std::string holder = {};  // who its shares count for (scheduler/shares.h); empty: the uid
};

// Where another daemon of a job is and how to prove membership.
struct LinkRequest {
  std::string job;
  uint32_t uid = 0;
  wire::JobKey job_key{};
  wire::InstanceId instance{};
  std::string mesh_address;
};

// A link between this daemon and another, for one job. Chosen by the engine, dense.
using LinkId = uint32_t;

// Establishes links: mesh handshake, address exchange, transport connect. Answers later through
// Engine::link_up / link_down. Both sides want the link; the port makes one of the two attempts.
class LinkPort {
 public:
  virtual ~LinkPort() = default;
  virtual void open_link(LinkId link, const LinkRequest& request) = 0;
  virtual void close_link(LinkId link) = 0;
};

// What the operator should read about. The daemon logs it; tests collect it.
enum class EventLevel : uint8_t { kInfo, kWarning, kError };
struct EventField {
  EventField(std::string_view field_key, std::string_view value) : key(field_key), text(value) {}
  EventField(std::string_view field_key, uint64_t number)
      : key(field_key), text(std::to_string(number)), is_number(true) {}
  std::string_view key;
  std::string text;
  bool is_number = false;
};
class EventSink {
 public:
  virtual ~EventSink() = default;
  virtual void event(EventLevel level, std::string_view text) = 0;
  // With what programs look for in fields of their own. Unless overridden they stand behind the
  // text: "job begins job=a uid=1000".
  virtual void note(EventLevel level, std::string_view text, std::span<const EventField> fields);
};

// Finer than the time of a round: how long a piece of arithmetic takes. Not earlier than the round.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual uint64_t now_ns() const = 0;
  // In all rounds so far in which the engine's thread had something to do; 0: not known.
  virtual uint64_t busy_ns() const { return 0; }
};

struct Timeouts {  // every one can be set in the configuration
#define X(name, ns) uint64_t name##_ns = ns;
#include "scheduler/timeouts.def"
#undef X
};

struct Limits {
  uint32_t sessions = 256;
  uint32_t communicators = 256;
  uint32_t tensors = 65'536;           // per communicator
  uint64_t plan_bytes = 4ull << 30;    // memory plans may reserve, all communicators together
  uint32_t links = 4096;               // to other daemons, one for each job and daemon
  uint64_t shared_bytes = UINT64_MAX;  // arenas of all sessions together
  uint32_t weight = 16;                // the largest one that counts
};

}  // namespace cgx::scheduler
