// A rank's arena: mapped memory that can be taken away, and that notices who still touches it then.
//
// A touch is remembered and allowed, so that one test can tell of it and the others go on. Thread
// rule: the simulator's one thread. Test support only: it handles SIGSEGV of the process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace cgx::sim {

class Arena {
 public:
  explicit Arena(uint64_t bytes);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  std::span<std::byte> memory() const { return {memory_, bytes_}; }
  // From now on nobody may read or write it.
  void forbid();
  // Somebody else may have it: it is readable and writable again.
  void allow();
  bool touched() const { return touched_; }

 private:
  friend struct ArenaTrap;

  std::byte* memory_ = nullptr;
  uint64_t bytes_ = 0;
  bool forbidden_ = false;
  volatile bool touched_ = false;
  Arena* next_ = nullptr;  // of all arenas
};

}  // namespace cgx::sim
