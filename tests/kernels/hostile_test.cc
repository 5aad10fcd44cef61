// A client can write to its memory at any time. Another process does so here while ranges are
// encoded: what comes out is some valid encoding, and nothing outside the buffers is touched.
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/kernels/codec_cases.h"

namespace cgx::kernels::testing {
namespace {

constexpr size_t kElements = 3 * 4096 + 77;

// Shared floats that a child process keeps changing.
class RestlessMemory {
 public:
  RestlessMemory() {
    void* memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    values_ = static_cast<float*>(memory);
    child_ = fork();
    if (child_ == 0) scribble();
  }
  ~RestlessMemory() {
    kill(child_, SIGKILL);
    waitpid(child_, nullptr, 0);
    munmap(values_, kBytes);
  }
  RestlessMemory(const RestlessMemory&) = delete;
  const float* values() const { return values_; }

 private:
  static constexpr size_t kBytes = 65536;
  [[noreturn]] void scribble() const {
    const pid_t parent = getppid();
    volatile uint32_t* words = reinterpret_cast<volatile uint32_t*>(values_);
    for (uint32_t x = 1; getppid() == parent;) {
      for (size_t i = 0; i < kElements; ++i) {
        x = x * 1664525u + 1013904223u;
        words[i] = x >> 28 ? 0x3f000000u | x >> 9 : x;  // mostly tame, now and then anything
      }
    }
    _exit(0);
  }

  float* values_;
  pid_t child_;
};

TEST(Hostile, ASourceThatChangesStillGivesAValidEncoding) {
  RestlessMemory memory;
  for (const Lane* lane : viable_lanes()) {
    for (const CodecSpec& spec : all_specs(256)) {
      SCOPED_TRACE(std::string(lane->name) + " " + to_string(spec));
      for (int round = 0; round < 20; ++round) {
        Buffer<std::byte> encoded(encoded_bytes(spec, DType::kF32, kElements), 1);
        Buffer<float> residual(kElements), target(kElements);
        const void* rank = memory.values();
        EncodeJob job{.spec = spec, .elements = kElements};
        job.source = {.ranks = &rank, .rank_count = 1};
        job.residual_out = residual.data();
        job.encoded = encoded.span();
        RangeStats stats;
        const uint64_t used = lane->encode(job, stats);
        void* to = target.data();
        DecodeJob back{.spec = spec, .encoded = encoded.span().first(used), .elements = kElements};
        back.targets = &to;
        back.target_count = 1;
        ASSERT_TRUE(lane->decode(back, stats).ok());
        ASSERT_TRUE(encoded.guards_intact() && residual.guards_intact() && target.guards_intact());
      }
    }
  }
}

}  // namespace
}  // namespace cgx::kernels::testing
