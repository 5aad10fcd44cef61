#include "scheduler/recorder.h"

#include <algorithm>
#include <array>
#include <new>

namespace cgx::scheduler {
namespace {

constexpr EventRow kRows[] = {
#define X(name, where, peer, a, b, help) {#name, where, peer, a, b, help},
#include "scheduler/events.def"
#undef X
};

// C++20 has no atomic_ref of const; nothing is written.
uint64_t load(const uint64_t& word) {
  return std::atomic_ref(const_cast<uint64_t&>(word)).load(std::memory_order_acquire);
}

}  // namespace

const EventRow& event_row(EventKind kind) {
  CGX_ASSERT(kind < EventKind::kCount);
  return kRows[static_cast<size_t>(kind)];
}

Recorder::Recorder(std::span<std::byte> memory) {
  CGX_ASSERT(memory.size() > sizeof(RecorderHead));
  const uint64_t capacity = (memory.size() - sizeof(RecorderHead)) / sizeof(Event);
  CGX_ASSERT(std::has_single_bit(capacity) && memory.size() == recorder_bytes(capacity));
  head_ = new (memory.data()) RecorderHead{.capacity = capacity};
  places_ = reinterpret_cast<uint64_t*>(head_ + 1);
  mask_ = capacity - 1;
}

Result<RecorderReader> RecorderReader::create(std::span<const std::byte> memory) {
  const auto* const head = reinterpret_cast<const RecorderHead*>(memory.data());
  if (memory.size() < sizeof(RecorderHead) || head->magic != RecorderHead::kMagic) {
    return invalid_argument("the memory does not begin as a recorder's does");
  }
  const uint64_t capacity = head->capacity;
  if (!std::has_single_bit(capacity) || capacity > memory.size() / sizeof(Event) ||
      memory.size() < recorder_bytes(capacity)) {
    return invalid_argument("a recorder of " + std::to_string(capacity) + " events is not in " +
                            std::to_string(memory.size()) + " bytes");
  }
  return RecorderReader(head, capacity);
}

uint64_t RecorderReader::count() const {
  return load(head_->count);
}

Event RecorderReader::event(uint64_t number) const {
  EventWords words;
  const uint64_t* const place = places_ + (number & (capacity_ - 1)) * words.size();
  for (size_t i = 0; i < words.size(); ++i) words[i] = load(place[i]);
  return std::bit_cast<Event>(words);
}

RecorderReader::Reading RecorderReader::read(uint64_t from) const {
  const auto oldest = [this](uint64_t count) { return count < capacity_ ? 0 : count - capacity_; };
  const uint64_t end = count();
  Reading reading{.first = std::max(std::min(from, end), oldest(end)), .events = {}};
  reading.events.reserve(end - reading.first);
  for (uint64_t n = reading.first; n < end; ++n) reading.events.push_back(event(n));
  // The place of the event that is being recorded now may hold half of it.
  const uint64_t kept = std::min(std::max(reading.first, oldest(count() + 1)), end);
  reading.events.erase(reading.events.begin(),
                       reading.events.begin() + static_cast<int64_t>(kept - reading.first));
  reading.first = kept;
  return reading;
}

}  // namespace cgx::scheduler
