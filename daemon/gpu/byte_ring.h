// A ring of messages of any length in memory that two processes share, one producer and one
// consumer, one class per side (wire::RingProducer has records of one size).
//
//   ring    := `bytes` (a power of two) of messages, each 8-aligned and in one piece
//   message := bytes u32 (itself included), then what the two sides agree on
//
// Where a message does not fit in front of the end, a word of 0 says that it begins at the start.
// The other side's cursor is checked before use; a message is copied out, then looked at. Thread
// rule: one thread per side.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "proto/wire/ring.h"

namespace cgx::daemon::gpu {

struct ByteRingCursors {
  uint64_t tail;  // written by the producer: bytes ever put in
  uint8_t pad0[56];
  uint64_t head;  // written by the consumer: bytes ever taken out
  uint8_t pad1[56];
};

constexpr uint64_t kRingUnit = 8;

class ByteProducer {
 public:
  ByteProducer(ByteRingCursors* cursors, std::byte* memory, uint64_t bytes)
      : cursors_(cursors), memory_(memory), bytes_(bytes) {}

  // A message that is longer never fits, whatever is taken out.
  uint64_t longest() const { return bytes_ / 2; }
  // False: no room yet. REQUIRES: a multiple of kRingUnit, whose first word is its size.
  bool try_push(std::span<const std::byte> message) {
    const uint64_t to_end = bytes_ - (tail_ & (bytes_ - 1));
    const uint64_t skipped = message.size() > to_end ? to_end : 0;
    const uint64_t head = wire::load_acquire(cursors_->head);
    if (tail_ - head + skipped + message.size() > bytes_) return false;
    if (skipped > 0) std::memset(memory_ + (tail_ & (bytes_ - 1)), 0, sizeof(uint32_t));
    tail_ += skipped;
    std::memcpy(memory_ + (tail_ & (bytes_ - 1)), message.data(), message.size());
    tail_ += message.size();
    return true;
  }
  void publish() { wire::store_release(cursors_->tail, tail_); }

 private:
  ByteRingCursors* cursors_;
  std::byte* memory_;
  uint64_t bytes_;
  uint64_t tail_ = 0;
};

class ByteConsumer {
 public:
  ByteConsumer(ByteRingCursors* cursors, const std::byte* memory, uint64_t bytes)
      : cursors_(cursors), memory_(memory), bytes_(bytes) {}

  enum class Pop : uint8_t { kMessage, kEmpty, kViolation };
  Pop try_pop(std::vector<std::byte>& message) {
    const uint64_t tail = wire::load_acquire(cursors_->tail);
    if (tail - head_ > bytes_) return Pop::kViolation;
    if (tail == head_) return Pop::kEmpty;
    uint32_t size = read_size();
    if (size == 0) {
      head_ += bytes_ - (head_ & (bytes_ - 1));
      if (tail - head_ > bytes_ || tail == head_) return Pop::kViolation;
      size = read_size();
    }
    const uint64_t to_end = bytes_ - (head_ & (bytes_ - 1));
    if (size < kRingUnit || size % kRingUnit != 0 || size > to_end || size > tail - head_) {
      return Pop::kViolation;
    }
    const std::byte* const from = memory_ + (head_ & (bytes_ - 1));
    message.assign(from, from + size);
    std::memcpy(message.data(), &size, sizeof(size));  // not what it may say by now
    head_ += size;
    wire::store_release(cursors_->head, head_);
    return Pop::kMessage;
  }
  bool empty() const { return wire::load_acquire(cursors_->tail) == head_; }

 private:
  uint32_t read_size() const {
    uint32_t size;
    std::memcpy(&size, memory_ + (head_ & (bytes_ - 1)), sizeof(size));
    return size;
  }

  ByteRingCursors* cursors_;
  const std::byte* memory_;
  uint64_t bytes_;
  uint64_t head_ = 0;
};

}  // namespace cgx::daemon::gpu
