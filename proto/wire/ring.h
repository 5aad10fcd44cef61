// Single-producer single-consumer rings over shared memory, one class per side.
//
// Each side keeps its own cursor in private memory and only publishes it; the other side's cursor
// is untrusted input: it is read, checked against the capacity, then used. Capacity is a
// compile-time constant. Thread rule: one thread per side (libcgx holds a mutex around its side).
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>

#include "proto/wire/shm_layout.h"

namespace cgx::wire {

inline uint64_t load_acquire(const uint64_t& word) {
  return std::atomic_ref<uint64_t>(const_cast<uint64_t&>(word)).load(std::memory_order_acquire);
}
inline void store_release(uint64_t& word, uint64_t value) {
  std::atomic_ref<uint64_t>(word).store(value, std::memory_order_release);
}

template <typename Record>
void write_record(Record& slot, const Record& record) {
  slot = record;
}
template <typename Record>
void read_record(Record& record, const Record& slot) {
  std::memcpy(&record, &slot, sizeof(Record));
}

// The second line of a submit record is left alone where it is all zero.
constexpr size_t kRecordRest = sizeof(cgx_submit_record) - CGX_RECORD_LINE;
inline bool second_line_used(const cgx_submit_record& record) {
  uint64_t words[kRecordRest / sizeof(uint64_t)], any = 0;
  std::memcpy(words, reinterpret_cast<const char*>(&record) + CGX_RECORD_LINE, sizeof(words));
  for (const uint64_t word : words) any |= word;
  return any != 0;
}
inline void write_record(cgx_submit_record& slot, const cgx_submit_record& record) {
  const bool wide = second_line_used(record);
  std::memcpy(static_cast<void*>(&slot), &record, wide ? sizeof(record) : CGX_RECORD_LINE);
  const unsigned flags = record.flags & ~CGX_RECORD_WIDE;
  slot.flags = static_cast<uint8_t>(wide ? flags | CGX_RECORD_WIDE : flags);
}
inline void read_record(cgx_submit_record& record, const cgx_submit_record& slot) {
  char* const bytes = reinterpret_cast<char*>(&record);
  std::memcpy(bytes, &slot, CGX_RECORD_LINE);
  std::atomic_signal_fence(std::memory_order_seq_cst);  // the flag is that of the copy
  if ((record.flags & CGX_RECORD_WIDE) == 0) {
    std::memset(bytes + CGX_RECORD_LINE, 0, kRecordRest);
    return;
  }
  std::memcpy(bytes + CGX_RECORD_LINE, reinterpret_cast<const char*>(&slot) + CGX_RECORD_LINE,
              kRecordRest);
}

template <typename Record, uint32_t kCapacity>
class RingProducer {
  static_assert((kCapacity & (kCapacity - 1)) == 0);

 public:
  RingProducer(Record* records, uint64_t* tail, const uint64_t* head)
      : records_(records), tail_word_(tail), head_word_(head) {}

  // False: full (or the consumer's cursor is nonsense, which is treated as full).
  bool try_push(const Record& record) {
    if (tail_ - seen_head_ >= kCapacity) {
      seen_head_ = load_acquire(*head_word_);
      if (tail_ - seen_head_ >= kCapacity) return false;
    }
    write_record(records_[tail_ & (kCapacity - 1)], record);
    ++tail_;
    return true;
  }
  // Makes everything pushed so far visible.
  void publish() { store_release(*tail_word_, tail_); }
  uint64_t pushed() const { return tail_; }

 private:
  Record* records_;
  uint64_t* tail_word_;
  const uint64_t* head_word_;
  uint64_t tail_ = 0;
  uint64_t seen_head_ = 0;
};

template <typename Record, uint32_t kCapacity>
class RingConsumer {
 public:
  RingConsumer(const Record* records, const uint64_t* tail, uint64_t* head)
      : records_(records), tail_word_(tail), head_word_(head) {}

  enum class Pop { kRecord, kEmpty, kViolation };  // kViolation: the producer's cursor is nonsense

  // Copies the next record out; the copy is the only thing to look at.
  Pop try_pop(Record& record) {
    if (head_ == seen_tail_) {
      const uint64_t tail = load_acquire(*tail_word_);
      if (tail - head_ > kCapacity) return Pop::kViolation;
      seen_tail_ = tail;
      if (head_ == seen_tail_) return Pop::kEmpty;
    }
    read_record(record, records_[head_ & (kCapacity - 1)]);
    std::atomic_signal_fence(std::memory_order_seq_cst);  // no second read of shared memory
    ++head_;
    return Pop::kRecord;
  }
  // Gives the slots consumed so far back to the producer.
  void release() { store_release(*head_word_, head_); }
  bool empty() const { return head_ == seen_tail_ && load_acquire(*tail_word_) == head_; }
  uint64_t popped() const { return head_; }

 private:
  const Record* records_;
  const uint64_t* tail_word_;
  uint64_t* head_word_;
  uint64_t head_ = 0;
  uint64_t seen_tail_ = 0;
};

using SubmitProducer = RingProducer<cgx_submit_record, CGX_SUBMIT_CAPACITY>;
using SubmitConsumer = RingConsumer<cgx_submit_record, CGX_SUBMIT_CAPACITY>;
using CompletionProducer = RingProducer<cgx_completion_record, CGX_COMPLETION_CAPACITY>;
using CompletionConsumer = RingConsumer<cgx_completion_record, CGX_COMPLETION_CAPACITY>;

// Where the parts of a session's memory lie.
struct SessionMemory {
  cgx_shm_header* header;
  cgx_submit_record* submits;
  cgx_completion_record* completions;
  cgx_text_slot* texts;

  explicit SessionMemory(void* base)
      : header(static_cast<cgx_shm_header*>(base)),
        submits(
            reinterpret_cast<cgx_submit_record*>(static_cast<char*>(base) + CGX_SHM_SUBMIT_OFFSET)),
        completions(reinterpret_cast<cgx_completion_record*>(static_cast<char*>(base) +
                                                             CGX_SHM_COMPLETION_OFFSET)),
        texts(reinterpret_cast<cgx_text_slot*>(static_cast<char*>(base) + CGX_SHM_TEXT_OFFSET)) {}
};

}  // namespace cgx::wire
