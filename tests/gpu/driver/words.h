// Which values streams have been told to write, of this process and of all that share its folder;
// so a wait that nobody will ever answer is noticed when it is enqueued.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>

namespace cgx::standin {

// What a stream waits for; `width` 4 or 8 bytes.
struct Condition {
  uint64_t value;
  uint32_t kind;  // CU_STREAM_WAIT_VALUE_*
  uint32_t width;
  bool met_by(uint64_t word) const;
};

// Lies in a file that processes of one machine share. No locks: they may die.
class Ledger {
 public:
  // An unshared one for an empty folder.
  static Ledger* open(const std::string& folder);

  void note_write(uint64_t place, uint64_t value);
  bool has_write(uint64_t place, const Condition& condition) const;
  void lose(int device) { lost_[device & 15].store(1); }
  bool lost(int device) const { return lost_[device & 15].load() != 0; }

 private:
  static constexpr uint32_t kWords = 4096, kValues = 8;
  struct Word {
    std::atomic<uint64_t> place;  // 0: free
    std::atomic<uint64_t> writes;
    std::atomic<uint64_t> values[kValues];  // the last ones
  };

  std::atomic<uint32_t> lost_[16];
  Word words_[kWords];
};

}  // namespace cgx::standin
