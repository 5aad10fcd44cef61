#include "tests/sim/arena.h"

#include <signal.h>
#include <sys/mman.h>

#include "proto/wire/status.h"

namespace cgx::sim {

// The handler's view: every arena there is.
struct ArenaTrap {
  static inline Arena* arenas = nullptr;
  static inline struct sigaction before = {};

  static void install() {
    static const bool once = [] {
      struct sigaction action = {};
      action.sa_sigaction = &ArenaTrap::handle;
      action.sa_flags = SA_SIGINFO | SA_NODEFER;
      return sigaction(SIGSEGV, &action, &before) == 0;
    }();
    CGX_ASSERT(once);
  }

  static void handle(int number, siginfo_t* info, void*) {
    const auto* const address = static_cast<const std::byte*>(info->si_addr);
    for (Arena* arena = arenas; arena != nullptr; arena = arena->next_) {
      const bool inside = address >= arena->memory_ && address < arena->memory_ + arena->bytes_;
      if (!inside || !arena->forbidden_) continue;
      arena->touched_ = true;
      arena->forbidden_ = false;
      mprotect(arena->memory_, arena->bytes_, PROT_READ | PROT_WRITE);
      return;
    }
    sigaction(number, &before, nullptr);  // the instruction faults again, for whoever was first
  }
};

Arena::Arena(uint64_t bytes) : bytes_((bytes / 4096 + 1) * 4096) {
  ArenaTrap::install();
  void* const memory =
      mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CGX_ASSERT(memory != MAP_FAILED);
  memory_ = static_cast<std::byte*>(memory);
  next_ = ArenaTrap::arenas;
  ArenaTrap::arenas = this;
}

Arena::~Arena() {
  Arena** link = &ArenaTrap::arenas;
  while (*link != this) link = &(*link)->next_;
  *link = next_;
  munmap(memory_, bytes_);
}

void Arena::forbid() {
  forbidden_ = true;
  CGX_ASSERT(mprotect(memory_, bytes_, PROT_NONE) == 0);
}

void Arena::allow() {
  forbidden_ = false;
  CGX_ASSERT(mprotect(memory_, bytes_, PROT_READ | PROT_WRITE) == 0);
}

}  // namespace cgx::sim
