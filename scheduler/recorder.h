// The recorder: what happened, as typed events of 32 bytes in a ring that remembers the last ones.
//
//   memory := head (64 bytes: magic capacity count) Event*capacity
//
// One writer, the engine's thread; `count` is how many events were ever recorded, event n lies in
// place n mod capacity. Readers (other threads, other processes) map the same memory: they copy,
// look at the count again and throw away what was overwritten meanwhile. Nobody waits for anybody.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstdint>
#include <span>
#include <vector>

#include "proto/wire/status.h"

namespace cgx::scheduler {

enum class EventKind : uint16_t {
#define X(name, where, peer, a, b, help) k##name,
#include "scheduler/events.def"
#undef X
  kCount
};

struct EventRow {  // as in events.def
  const char* name;
  const char* where;
  const char* peer;
  const char* a;
  const char* b;
  const char* help;
};
// REQUIRES: kind < EventKind::kCount.
const EventRow& event_row(EventKind kind);

struct Event {
  static constexpr uint16_t kCall = 0xffff;  // as group: `step` is a call's number
  static constexpr uint16_t group_number(uint32_t group) {
    return static_cast<uint16_t>(group < kCall ? group : kCall - 1);
  }

  uint64_t time_ns = 0;  // of a span: when it began
  uint32_t step = 0;     // its low 32 bits
  EventKind kind = EventKind::kCount;
  uint16_t communicator = 0;  // CommunicatorSnapshot::index
  uint16_t group = 0;
  uint16_t peer = 0;
  uint32_t a = 0;
  uint64_t b = 0;
  friend bool operator==(const Event&, const Event&) = default;
};
static_assert(sizeof(Event) == 32);

using EventWords = std::array<uint64_t, sizeof(Event) / sizeof(uint64_t)>;

struct RecorderHead {
  static constexpr uint64_t kMagic = 0x31535456'45584743;  // "CGXEVTS1"
  uint64_t magic = kMagic;
  uint64_t capacity = 0;  // a power of two
  uint64_t count = 0;     // of events ever recorded; read and written atomically
  uint64_t reserved[5] = {};
};
static_assert(sizeof(RecorderHead) == 64);

// Memory for so many events. REQUIRES: a power of two.
constexpr uint64_t recorder_bytes(uint64_t events) {
  return sizeof(RecorderHead) + events * sizeof(Event);
}

class Recorder {
 public:
  // REQUIRES: `memory` is zeroed, aligned to 8 bytes, recorder_bytes() of a power of two long.
  explicit Recorder(std::span<std::byte> memory);

  void record(const Event& event) {
    const auto words = std::bit_cast<EventWords>(event);
    uint64_t* const place = places_ + (count_ & mask_) * words.size();
    // Whoever sees a word of this event sees the count before it, too.
    for (size_t i = 0; i < words.size(); ++i) {
      std::atomic_ref(place[i]).store(words[i], std::memory_order_release);
    }
    std::atomic_ref(head_->count).store(++count_, std::memory_order_release);
  }

 private:
  RecorderHead* head_;
  uint64_t* places_;
  uint64_t mask_;
  uint64_t count_ = 0;
};

class RecorderReader {
 public:
  // An error: the memory is no recorder's.
  static Result<RecorderReader> create(std::span<const std::byte> memory);

  struct Reading {
    uint64_t first = 0;  // number of events[0]
    std::vector<Event> events;
    uint64_t end() const { return first + events.size(); }
  };
  // What is still there from number `from` on, up to now.
  Reading read(uint64_t from) const;

 private:
  RecorderReader(const RecorderHead* head, uint64_t capacity)
      : head_(head), places_(reinterpret_cast<const uint64_t*>(head + 1)), capacity_(capacity) {}
  uint64_t count() const;
  Event event(uint64_t number) const;

  const RecorderHead* head_;
  const uint64_t* places_;
  uint64_t capacity_;
};

}  // namespace cgx::scheduler
