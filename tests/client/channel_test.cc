#include "client/channel.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "proto/wire/ring.h"

namespace cgx::client {
namespace {

// Waits for a word of the other thread, which may have no core of its own.
void await(const std::atomic<uint64_t>& word, uint64_t value) {
  for (int looks = 0; word.load() != value; ++looks) {
    if (looks > 1000) std::this_thread::yield();
  }
}

// Some nanoseconds, other ones in each round.
void linger(uint64_t round) {
  for (uint64_t i = round % 101; i > 0; --i) std::atomic_signal_fence(std::memory_order_seq_cst);
}

// The daemon raises its flag and looks at the ring while the client publishes: either the daemon
// sees the record or the client rings.
TEST(ChannelTest, RingsTheDaemonThatFellAsleepBeforeItsRecord) {
  constexpr uint64_t kRounds = 300'000;
  UniqueFd memory(::memfd_create("channel_test", MFD_CLOEXEC));
  ASSERT_EQ(::ftruncate(memory.get(), CGX_SHM_BYTES), 0);
  void* const base =
      ::mmap(nullptr, CGX_SHM_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, memory.get(), 0);
  ASSERT_NE(base, MAP_FAILED);
  const wire::SessionMemory shared(base);
  shared.header->magic = CGX_SHM_MAGIC;
  shared.header->version = CGX_SHM_VERSION;
  const int doorbell = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  auto channel = Channel::map(std::move(memory), UniqueFd(doorbell), UniqueFd());
  ASSERT_TRUE(channel.ok()) << channel.status().to_string();

  std::atomic<uint64_t> begun{0}, published{0};
  std::thread client([&] {
    for (uint64_t round = 1; round <= kRounds; ++round) {
      await(begun, round);
      linger(round);
      (*channel)->push({.kind = CGX_SUBMIT_STEP_END, .step = round});
      (*channel)->publish();
      published = round;
    }
  });
  wire::SubmitConsumer ring(shared.submits, &shared.header->submit_tail,
                            &shared.header->submit_head);
  std::atomic_ref<uint32_t> sleeping(shared.header->daemon_sleeping);
  uint64_t slept = 0, lost = 0;
  for (uint64_t round = 1; round <= kRounds; ++round) {
    begun = round;
    linger(round / 101);
    sleeping.store(1);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    const bool sleeps = ring.empty();
    await(published, round);
    uint64_t rung = 0;
    slept += sleeps;
    lost += sleeps && ::read(doorbell, &rung, sizeof(rung)) != sizeof(rung);
    sleeping.store(0);
    cgx_submit_record record;
    EXPECT_EQ(ring.try_pop(record), wire::SubmitConsumer::Pop::kRecord);
    ring.release();
    if (!sleeps) (void)!::read(doorbell, &rung, sizeof(rung));  // rung for nothing
  }
  client.join();
  EXPECT_EQ(lost, 0u) << "of " << slept << " times asleep";
  ::munmap(base, CGX_SHM_BYTES);
}

}  // namespace
}  // namespace cgx::client
