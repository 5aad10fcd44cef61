// As many fibers as a team has lanes, each with its own stack, run in turns from barrier to
// barrier.
//
// One lane runs alone until it reaches a barrier, then another, in a new order each time: where a
// barrier is missing, some lane reads what another has not written yet, or has overwritten already.
// Lanes that wait at different barriers end the program.
#pragma once

#include <ucontext.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define CGX_FIBERS_TSAN
#endif
#endif
#if defined(__SANITIZE_THREAD__) || defined(CGX_FIBERS_TSAN)
#define CGX_FIBERS_TSAN
#include <sanitizer/tsan_interface.h>
#endif

namespace cgx::gpu {

class Fibers {
 public:
  explicit Fibers(uint32_t count) : count_(count), fibers_(new Fiber[count]) {}
  Fibers(const Fibers&) = delete;

  // body(lane) on every fiber.
  void run(std::function<void(uint32_t)> body) {
    body_ = std::move(body);
    running_ = this;
#if defined(CGX_FIBERS_TSAN)
    main_fiber_ = __tsan_get_current_fiber();
#endif
    for (uint32_t lane = 0; lane < count_; ++lane) {
      Fiber& fiber = fibers_[lane];
      getcontext(&fiber.context);
      fiber.context.uc_stack.ss_sp = fiber.stack.get();
      fiber.context.uc_stack.ss_size = kStackBytes;
      fiber.context.uc_link = nullptr;
      makecontext(&fiber.context, start, 0);
#if defined(CGX_FIBERS_TSAN)
      fiber.known = __tsan_create_fiber(0);
#endif
    }
    do {
      order_ = order_ * 1664525u + 1013904223u;
      const uint32_t step = order_ >> 8 | 1, from = order_ >> 20;
      for (uint32_t i = 0; i < count_; ++i) resume((i * step + from) % count_);
    } while (!all_at(kEnd));
#if defined(CGX_FIBERS_TSAN)
    for (uint32_t lane = 0; lane < count_; ++lane) __tsan_destroy_fiber(fibers_[lane].known);
#endif
  }

  // For fibers: waits for all others at the barrier of this kind.
  void barrier(uint32_t kind) {
    Fiber& fiber = fibers_[lane_];
    fiber.kind = kind;
    leave(fiber, false);
  }

 private:
  static constexpr size_t kStackBytes = 256 << 10;
  static constexpr uint32_t kEnd = UINT32_MAX;
  struct Fiber {
    ucontext_t context;
    std::unique_ptr<uint8_t[]> stack{new uint8_t[kStackBytes]};
    uint32_t kind = 0;
    void* fake_stack = nullptr;
    void* known = nullptr;  // as ThreadSanitizer knows it
  };

  static void start() {
    Fibers& self = *running_;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(nullptr, &self.main_stack_, &self.main_bytes_);
#endif
    const uint32_t lane = self.lane_;
    self.body_(lane);
    self.fibers_[lane].kind = kEnd;
    self.leave(self.fibers_[lane], true);
  }

  void resume(uint32_t lane) {
    Fiber& fiber = fibers_[lane];
    lane_ = lane;
#if defined(__SANITIZE_ADDRESS__)
    void* fake_stack = nullptr;
    __sanitizer_start_switch_fiber(&fake_stack, fiber.stack.get(), kStackBytes);
#endif
#if defined(CGX_FIBERS_TSAN)
    __tsan_switch_to_fiber(fiber.known, 0);
#endif
    swapcontext(&main_, &fiber.context);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
#endif
  }
  void leave(Fiber& fiber, [[maybe_unused]] bool for_good) {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(for_good ? nullptr : &fiber.fake_stack, main_stack_,
                                   main_bytes_);
#endif
#if defined(CGX_FIBERS_TSAN)
    __tsan_switch_to_fiber(main_fiber_, 0);
#endif
    swapcontext(&fiber.context, &main_);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(fiber.fake_stack, nullptr, nullptr);
#endif
  }

  bool all_at(uint32_t kind) const {
    for (uint32_t lane = 1; lane < count_; ++lane) {
      if (fibers_[lane].kind == fibers_[0].kind) continue;
      std::fprintf(stderr, "lanes of a team wait at different barriers\n");
      std::abort();
    }
    return fibers_[0].kind == kind;
  }

  static inline thread_local Fibers* running_ = nullptr;
  const uint32_t count_;  // a power of two
  const std::unique_ptr<Fiber[]> fibers_;
  ucontext_t main_;
  std::function<void(uint32_t)> body_;
  uint32_t lane_ = 0, order_ = 1;
  [[maybe_unused]] const void* main_stack_ = nullptr;
  [[maybe_unused]] size_t main_bytes_ = 0;
  [[maybe_unused]] void* main_fiber_ = nullptr;
};

}  // namespace cgx::gpu
