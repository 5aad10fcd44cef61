// The arenas of a session alone: growth, holds, what fits. No daemon.
#include "client/arena.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>

namespace {

std::atomic<int> allocated_in_quiet{0}, allocated_under_signals{0};

}  // namespace

// The program's own, which libcgx calls instead of the system's.
extern "C" int posix_fallocate(int fd, off_t offset, off_t bytes) {
  static const auto of_system =
      reinterpret_cast<decltype(&posix_fallocate)>(::dlsym(RTLD_NEXT, "posix_fallocate"));
  sigset_t blocked;
  ::pthread_sigmask(SIG_BLOCK, nullptr, &blocked);
  ++(::sigismember(&blocked, SIGALRM) == 1 ? allocated_in_quiet : allocated_under_signals);
  return of_system(fd, offset, bytes);
}

namespace cgx::client {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kMiB = 1 << 20, kGiB = 1 << 30;

// A daemon that maps what fits in its quota.
struct Quota {
  uint64_t left = UINT64_MAX;
  std::vector<uint64_t> mapped = {};

  ArenaSet::Announce announce() {
    return [this](uint32_t, const ArenaMemory& memory) -> Status {
      if (memory.bytes() > left) return resource_exhausted("limits.arena_bytes");
      left -= memory.bytes();
      mapped.push_back(memory.bytes());
      return {};
    };
  }
};

void* allocate(ArenaSet& arenas, uint64_t bytes) {
  auto memory = arenas.allocate(bytes, 64);
  EXPECT_TRUE(memory.ok()) << memory.status().to_string();
  return memory.ok() ? *memory : nullptr;
}

ArenaPlace locate(ArenaSet& arenas, const void* memory, uint64_t bytes) {
  auto place = arenas.locate(memory, bytes, "the input");
  EXPECT_TRUE(place.ok()) << place.status().to_string();
  return place.ok() ? std::move(place).value() : ArenaPlace{};
}

// Before Linux 6.11 a signal undoes what was allocated, so that under a timer's it never ended.
TEST(ArenaMemoryTest, IsAllocatedWhereNoSignalInterrupts) {
  allocated_in_quiet = allocated_under_signals = 0;
  const auto memory = ArenaMemory::create(130 * kMiB);
  ASSERT_TRUE(memory.ok()) << memory.status().to_string();
  EXPECT_GT(allocated_in_quiet, 1) << "signals are never taken";
  EXPECT_EQ(allocated_under_signals, 0);
  sigset_t blocked;
  ::pthread_sigmask(SIG_BLOCK, nullptr, &blocked);
  EXPECT_EQ(::sigismember(&blocked, SIGALRM), 0);
}

TEST(ArenaGrowthTest, CoversAModelOfTenBillionParametersInSmallPieces) {
  const uint64_t wanted = 10'000'000'000ull * 4;
  uint64_t mapped = 0;
  for (uint32_t arena = 0; arena < wire::kArenasMax && mapped < wanted; ++arena) {
    mapped += ArenaGrowth{.need = 16 * kMiB, .first = 64 * kMiB, .mapped = mapped}.bytes();
  }
  EXPECT_GE(mapped, wanted);
  EXPECT_LE(mapped, wanted / 8 * 9 + 64 * kMiB) << "more than an eighth is mapped in vain";
}

TEST(ArenaGrowthTest, TakesOneRegionOfFortyGigabytesAsItIs) {
  const uint64_t region = 40'000'000'000ull;
  EXPECT_EQ((ArenaGrowth{.need = region, .first = 64 * kMiB, .mapped = kGiB}.bytes()), region);
}

TEST(ArenaSetTest, TakesWhatItNeedsWhenTheDaemonRefusesMore) {
  Quota quota{.left = 20 * kMiB};
  ArenaSet arenas(16 * kMiB, quota.announce());
  allocate(arenas, 16 * kMiB);
  allocate(arenas, 2 * kMiB);  // a second arena of 16 MiB would exceed the quota
  EXPECT_THAT(quota.mapped, ::testing::ElementsAre(16 * kMiB, 2 * kMiB));
}

// Its daemon may have taken the first one all the same.
TEST(ArenaSetTest, GivesOutNothingOfAnArenaThatWasAnsweredTooLateNorItsNumber) {
  std::vector<uint32_t> numbers;
  std::vector<std::byte*> bases;
  ArenaSet arenas(2 * kMiB, [&](uint32_t number, const ArenaMemory& memory) {
    numbers.push_back(number);
    bases.push_back(memory.base());
    return numbers.size() > 1 ? Status() : Status(StatusCode::kTIMED_OUT, "no answer in time");
  });
  EXPECT_EQ(arenas.allocate(256, 64).status().code(), StatusCode::kTIMED_OUT);
  void* const memory = allocate(arenas, 256);
  EXPECT_THAT(numbers, ::testing::ElementsAre(0, 1));
  EXPECT_EQ(memory, bases[1]);
  EXPECT_EQ(locate(arenas, memory, 256).arena, 1);
}

TEST(ArenaSetTest, SaysWhatIsLeftWhenAllArenasAreFull) {
  Quota quota;
  ArenaSet arenas(2 * kMiB, quota.announce(), 2);
  void* const first = allocate(arenas, 2 * kMiB);
  allocate(arenas, 2 * kMiB);
  auto refused = arenas.allocate(2 * kMiB, 64);
  EXPECT_EQ(refused.status().code(), StatusCode::kARENA_FULL);
  EXPECT_THAT(refused.status().message(), HasSubstr("no room for 2097152 bytes: 2 arenas of"));
  EXPECT_THAT(refused.status().message(), HasSubstr("arena_bytes"));
  {
    const ArenaPlace place = locate(arenas, first, 8);
    ASSERT_TRUE(arenas.release(first).ok());
    EXPECT_THAT(arenas.allocate(2 * kMiB, 64).status().message(),
                HasSubstr("2097152 wait for unfinished calls"));
  }
  EXPECT_EQ(allocate(arenas, 2 * kMiB), first);
}

TEST(ArenaSetTest, ReleasedMemoryIsNotGivenOutWhileSomebodyHoldsIt) {
  Quota quota;
  ArenaSet arenas(2 * kMiB, quota.announce());
  auto* const first = static_cast<std::byte*>(allocate(arenas, 256));
  ArenaPlace whole = locate(arenas, first, 256);
  ArenaPlace part = locate(arenas, first + 128, 64);
  ASSERT_TRUE(arenas.release(first).ok());
  EXPECT_NE(allocate(arenas, 256), first);
  whole = {};
  EXPECT_NE(allocate(arenas, 256), first);
  ArenaHold moved = std::move(part.hold);
  part = {};
  EXPECT_NE(allocate(arenas, 256), first);
  moved = {};
  EXPECT_EQ(allocate(arenas, 256), first);
}

TEST(ArenaSetTest, ReleasedMemoryIsNeitherReleasedNorNamedAgain) {
  Quota quota;
  ArenaSet arenas(2 * kMiB, quota.announce());
  void* const memory = allocate(arenas, 256);
  const ArenaPlace place = locate(arenas, memory, 256);
  ASSERT_TRUE(arenas.release(memory).ok());
  EXPECT_EQ(arenas.release(memory).code(), StatusCode::kINVALID_ARGUMENT);
  EXPECT_THAT(arenas.locate(memory, 1, "the input").status().message(),
              HasSubstr("the input is in the arena, but not in memory of cgx_arena_alloc"));
}

TEST(ArenaSetTest, RangesEndWithTheirAllocation) {
  Quota quota;
  ArenaSet arenas(2 * kMiB, quota.announce());
  auto* const first = static_cast<std::byte*>(allocate(arenas, 100));
  auto* const second = static_cast<std::byte*>(allocate(arenas, 100));
  ASSERT_EQ(second, first + 128);
  EXPECT_EQ(locate(arenas, first + 60, 40).offset, 60u);
  EXPECT_THAT(arenas.locate(first + 60, 41, "the input").status().message(),
              HasSubstr("the input needs 41 bytes and has 40 to the end of its allocation of 100"));
  EXPECT_FALSE(arenas.locate(first + 110, 1, "the input").ok());  // between the two
  EXPECT_FALSE(arenas.locate(second + 128, 1, "the input").ok());
}

}  // namespace
}  // namespace cgx::client
