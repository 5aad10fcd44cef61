#include "client/channel.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <fstream>
#include <optional>
#include <string>
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

// A channel whose daemon is the test.
class ChannelTest : public ::testing::Test {
 protected:
  void SetUp() override {
    UniqueFd memory(::memfd_create("channel_test", MFD_CLOEXEC));
    ASSERT_EQ(::ftruncate(memory.get(), CGX_SHM_BYTES), 0);
    base_ = ::mmap(nullptr, CGX_SHM_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, memory.get(), 0);
    ASSERT_NE(base_, MAP_FAILED);
    shared_.emplace(base_);
    shared_->header->magic = CGX_SHM_MAGIC;
    shared_->header->version = CGX_SHM_VERSION;
    doorbell_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    auto channel = Channel::map(std::move(memory), UniqueFd(doorbell_), UniqueFd());
    ASSERT_TRUE(channel.ok()) << channel.status().to_string();
    channel_ = std::move(channel).value();
  }
  ~ChannelTest() override { ::munmap(base_, CGX_SHM_BYTES); }

  bool rung() const {
    uint64_t times = 0;
    return ::read(doorbell_, &times, sizeof(times)) == sizeof(times);
  }
  // Where the channel has mapped the memory.
  void* base_of_channel() const {
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
      if (line.find("memfd:channel_test") == std::string::npos) continue;
      auto* const base = reinterpret_cast<void*>(std::stoull(line, nullptr, 16));
      if (base != base_) return base;
    }
    return nullptr;
  }

  void* base_ = nullptr;
  std::optional<wire::SessionMemory> shared_;
  int doorbell_ = -1;
  std::unique_ptr<Channel> channel_;
};

// What the handler below needs.
cgx_shm_header* header_of_daemon = nullptr;
void* page_of_client = nullptr;
size_t page_bytes = 0;

// The client is about to make a record visible: just now the daemon, which saw none, falls asleep.
void fall_asleep(int) {
  std::atomic_ref<uint32_t>(header_of_daemon->daemon_sleeping).store(1);
  ::mprotect(page_of_client, page_bytes, PROT_READ | PROT_WRITE);
}

TEST_F(ChannelTest, RingsTheDaemonThatFallsAsleepAsItsRecordAppears) {
  header_of_daemon = shared_->header;
  page_of_client = base_of_channel();
  page_bytes = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  ASSERT_NE(page_of_client, nullptr);
  channel_->push({.kind = CGX_SUBMIT_STEP_END});
  struct sigaction action {
  }, before{};
  action.sa_handler = fall_asleep;
  ASSERT_EQ(::sigaction(SIGSEGV, &action, &before), 0);
  ASSERT_EQ(::mprotect(page_of_client, page_bytes, PROT_READ), 0);
  channel_->publish();  // its first write stops in the handler
  ASSERT_EQ(::sigaction(SIGSEGV, &before, nullptr), 0);
  EXPECT_EQ(shared_->header->submit_tail, 1u);
  EXPECT_TRUE(rung());
}

// A submit and the end of its step, say, before the daemon had the core.
TEST_F(ChannelTest, RingsOnceForEachTimeTheDaemonSleeps) {
  std::atomic_ref<uint32_t> sleeping(shared_->header->daemon_sleeping);
  for (int time = 0; time < 2; ++time) {
    sleeping.store(1);
    for (const bool first : {true, false}) {
      channel_->push({.kind = CGX_SUBMIT_STEP_END});
      channel_->publish();
      EXPECT_EQ(rung(), first);
    }
  }
}

// The daemon raises its flag and looks at the ring while the client publishes: either the daemon
// sees the record or the client rings.
TEST_F(ChannelTest, RingsTheDaemonThatFellAsleepBeforeItsRecord) {
  constexpr uint64_t kRounds = 300'000;
  std::atomic<uint64_t> begun{0}, published{0};
  std::thread client([&] {
    for (uint64_t round = 1; round <= kRounds; ++round) {
      await(begun, round);
      linger(round);
      channel_->push({.kind = CGX_SUBMIT_STEP_END, .step = round});
      channel_->publish();
      published = round;
    }
  });
  wire::SubmitConsumer ring(shared_->submits, &shared_->header->submit_tail,
                            &shared_->header->submit_head);
  std::atomic_ref<uint32_t> sleeping(shared_->header->daemon_sleeping);
  uint64_t slept = 0, lost = 0;
  for (uint64_t round = 1; round <= kRounds; ++round) {
    begun = round;
    linger(round / 101);
    sleeping.store(1);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    const bool sleeps = ring.empty();
    await(published, round);
    slept += sleeps;
    lost += sleeps && !rung();
    sleeping.store(0);
    cgx_submit_record record;
    EXPECT_EQ(ring.try_pop(record), wire::SubmitConsumer::Pop::kRecord);
    ring.release();
    if (!sleeps) (void)rung();  // for nothing
  }
  client.join();
  EXPECT_EQ(lost, 0u) << "of " << slept << " times asleep";
}

TEST_F(ChannelTest, WakesWhoHasReadTheWordButDoesNotSleepYet) {
  using std::chrono::steady_clock, std::chrono::seconds;
  const uint32_t word = channel_->word();
  channel_->wake_all();
  const auto begin = steady_clock::now();
  channel_->sleep(word, seconds(4));
  EXPECT_LT(steady_clock::now() - begin, seconds(2));
}

TEST_F(ChannelTest, GivesATextToTheRecordItBelongsToOnly) {
  cgx_text_slot& slot = shared_->texts[5];
  std::strcpy(slot.text, "rank 3 died");
  slot.number = CGX_TEXT_SLOTS + 5;
  const auto text = [&](uint32_t slot_index, uint32_t number) {
    return channel_->text_of({.text_slot = slot_index, .text_number = number});
  };
  EXPECT_EQ(text(5, CGX_TEXT_SLOTS + 5), "rank 3 died");
  EXPECT_EQ(text(5, 5), "") << "the slot was used again";
  EXPECT_EQ(text(6, CGX_TEXT_SLOTS + 5), "");
  EXPECT_EQ(text(5, 0), "");
  EXPECT_EQ(text(CGX_TEXT_SLOTS, CGX_TEXT_SLOTS + 5), "");
}

}  // namespace
}  // namespace cgx::client
