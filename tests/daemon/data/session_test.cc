#include "daemon/data/session.h"

#include <gtest/gtest.h>
#include <linux/futex.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>

#include <atomic>
#include <chrono>
#include <climits>
#include <thread>
#include <vector>

// GCC 12 takes the descriptors in Result<ChannelEnds> for the string of its Status (GCC bug
// 104336).
#pragma GCC diagnostic ignored "-Wfree-nonheap-object"

namespace cgx::daemon {
namespace {

bool readable(int fd, int timeout_ms) {
  pollfd poll{.fd = fd, .events = POLLIN, .revents = 0};
  return ::poll(&poll, 1, timeout_ms) == 1;
}

ChannelEnds make_channel() {
  Result<ChannelEnds> ends = make_session_channel();
  CGX_ASSERT(ends.ok());
  return std::move(ends).value();
}

// Both ends of one session in one process; the client end is mapped from the sent descriptor.
struct Ends {
  Ends()
      : channel(make_channel()),
        client_region(SharedRegion::map(channel.theirs.memory.get(), CGX_SHM_BYTES,
                                        SharedRegion::Populate::kNo)
                          .value()),
        client(client_region.bytes().data()),
        submits(client.submits, &client.header->submit_tail, &client.header->submit_head),
        completions(client.completions, &client.header->completion_tail,
                    &client.header->completion_head),
        session(std::move(channel.ours), [this](uint32_t request, const wire::Reply& reply) {
          replies.emplace_back(request, reply.message);
        }) {}

  Status poll() {
    int work = 0;
    return session.poll(
        [this](const cgx_submit_record& record) {
          cookies.push_back(record.cookie);
          return refuse_cookie == record.cookie ? protocol_error("bad record") : Status();
        },
        &work);
  }
  Status publish() {
    int work = 0;
    return session.publish(&work);
  }
  void submit(uint64_t cookie) {
    ASSERT_TRUE(submits.try_push({.kind = CGX_SUBMIT_TENSOR, .cookie = cookie}));
    submits.publish();
  }

  ChannelEnds channel;
  SharedRegion client_region;
  wire::SessionMemory client;
  wire::SubmitProducer submits;
  wire::CompletionConsumer completions;
  std::vector<std::pair<uint32_t, std::string>> replies;
  std::vector<uint64_t> cookies;
  uint64_t refuse_cookie = UINT64_MAX;
  Session session;
};

TEST(SessionTest, TakesRecordsInOrderAndGivesTheirSlotsBack) {
  Ends ends;
  for (uint64_t i = 0; i < 10; ++i) ends.submit(i);
  EXPECT_FALSE(ends.session.ring_empty());
  EXPECT_TRUE(ends.poll().ok());
  EXPECT_EQ(ends.cookies.size(), 10u);
  EXPECT_EQ(ends.cookies.back(), 9u);
  EXPECT_EQ(ends.client.header->submit_head, 10u);
  EXPECT_TRUE(ends.session.ring_empty());
}

TEST(SessionTest, TakesABoundedNumberOfRecordsPerRound) {
  Ends ends;
  for (uint64_t i = 0; i < 1000; ++i) ends.submit(i);
  EXPECT_TRUE(ends.poll().ok());
  EXPECT_EQ(ends.cookies.size(), static_cast<size_t>(Session::kRecordsPerRound));
}

TEST(SessionTest, ATailOutOfRangeIsAViolation) {
  Ends ends;
  ends.client.header->submit_tail = CGX_SUBMIT_CAPACITY + 1;
  EXPECT_EQ(ends.poll().code(), StatusCode::kPROTOCOL_ERROR);
  EXPECT_TRUE(ends.cookies.empty());
}

TEST(SessionTest, ATailThatGoesBackIsAViolation) {
  Ends ends;
  ends.submit(1);
  EXPECT_TRUE(ends.poll().ok());
  ends.client.header->submit_tail = 0;
  EXPECT_EQ(ends.poll().code(), StatusCode::kPROTOCOL_ERROR);
}

TEST(SessionTest, ARefusedRecordStopsTheRound) {
  Ends ends;
  ends.refuse_cookie = 1;
  for (uint64_t i = 0; i < 5; ++i) ends.submit(i);
  EXPECT_EQ(ends.poll(), protocol_error("bad record"));
  EXPECT_EQ(ends.cookies.size(), 2u);
}

TEST(SessionTest, CompletionsAppearWhenPublishedNotBefore) {
  Ends ends;
  cgx_completion_record got;
  ends.session.complete({.kind = CGX_COMPLETE_TENSOR, .cookie = 7}, "");
  EXPECT_TRUE(ends.completions.empty());
  EXPECT_TRUE(ends.publish().ok());
  ASSERT_EQ(ends.completions.try_pop(got), wire::CompletionConsumer::Pop::kRecord);
  EXPECT_EQ(got.cookie, 7u);
  EXPECT_EQ(got.text_number, 0u);
}

TEST(SessionTest, AnErrorsTextLiesInTheSlotItNames) {
  Ends ends;
  const std::string longer(1000, 'x');
  for (int i = 0; i < 70; ++i) {
    ends.session.complete({.kind = CGX_COMPLETE_TENSOR}, "text " + std::to_string(i));
  }
  ends.session.complete({.kind = CGX_COMPLETE_STEP}, "rank 3 died");
  ends.session.complete({.kind = CGX_COMPLETE_STEP}, longer);
  EXPECT_TRUE(ends.publish().ok());
  std::vector<cgx_completion_record> records(72);
  for (auto& record : records)
    ASSERT_EQ(ends.completions.try_pop(record), wire::CompletionConsumer::Pop::kRecord);
  const cgx_text_slot& slot = ends.client.texts[records[70].text_slot];
  EXPECT_EQ(slot.number, records[70].text_number);
  EXPECT_STREQ(slot.text, "rank 3 died");
  EXPECT_EQ(std::string(ends.client.texts[records[71].text_slot].text),
            longer.substr(0, 248) + "...");
  // The first text's slot has been used again: its number tells.
  EXPECT_NE(ends.client.texts[records[0].text_slot].number, records[0].text_number);
}

TEST(SessionTest, ALongTextEndsBetweenTwoCharacters) {
  for (const size_t before : {245, 246, 247, 248}) {
    Ends ends;
    const std::string text = std::string(before, 'x') + "\u20ac", longer = text + "12345";
    ends.session.complete({.kind = CGX_COMPLETE_STEP}, longer);
    EXPECT_TRUE(ends.publish().ok());
    cgx_completion_record record;
    ASSERT_EQ(ends.completions.try_pop(record), wire::CompletionConsumer::Pop::kRecord);
    EXPECT_EQ(std::string(ends.client.texts[record.text_slot].text),
              (before == 245 ? text : std::string(before, 'x')) + "...");
  }
}

// A failure is told once for each tensor in flight, and there may be thousands.
TEST(SessionTest, AFailuresTextOutlivesAnyNumberOfCompletions) {
  Ends ends;
  for (int i = 0; i < 1000; ++i) {
    ends.session.complete({.kind = CGX_COMPLETE_TENSOR}, "rank 3 died");
  }
  EXPECT_TRUE(ends.publish().ok());
  cgx_completion_record record;
  for (int i = 0; i < 1000; ++i) {
    ASSERT_EQ(ends.completions.try_pop(record), wire::CompletionConsumer::Pop::kRecord);
    const cgx_text_slot& slot = ends.client.texts[record.text_slot];
    ASSERT_EQ(slot.number, record.text_number);
    ASSERT_STREQ(slot.text, "rank 3 died");
  }
}

TEST(SessionTest, CompletionsBeyondTheRingWaitAndKeepTheirOrder) {
  Ends ends;
  constexpr uint64_t kCount = CGX_COMPLETION_CAPACITY * 3 + 5;
  for (uint64_t i = 0; i < kCount; ++i) ends.session.complete({.cookie = i}, "");
  uint64_t next = 0;
  cgx_completion_record got;
  while (next < kCount) {
    ASSERT_TRUE(ends.publish().ok());
    ASSERT_EQ(ends.session.overflowing(), kCount - next > CGX_COMPLETION_CAPACITY);
    while (ends.completions.try_pop(got) == wire::CompletionConsumer::Pop::kRecord) {
      ASSERT_EQ(got.cookie, next++);
    }
    ends.completions.release();
  }
}

// The client made room since the last round: who comes now goes behind those that wait.
TEST(SessionTest, CompletionsDoNotOvertakeThoseThatWaitForRoom) {
  Ends ends;
  cgx_completion_record got;
  for (uint64_t i = 0; i <= CGX_COMPLETION_CAPACITY; ++i) ends.session.complete({.cookie = i}, "");
  ASSERT_TRUE(ends.publish().ok());
  for (uint64_t i = 0; i < CGX_COMPLETION_CAPACITY; ++i) {
    ASSERT_EQ(ends.completions.try_pop(got), wire::CompletionConsumer::Pop::kRecord);
  }
  ends.completions.release();
  ends.session.complete({.cookie = CGX_COMPLETION_CAPACITY + 1}, "");
  ASSERT_TRUE(ends.publish().ok());
  for (const uint64_t next : {CGX_COMPLETION_CAPACITY, CGX_COMPLETION_CAPACITY + 1}) {
    ASSERT_EQ(ends.completions.try_pop(got), wire::CompletionConsumer::Pop::kRecord);
    EXPECT_EQ(got.cookie, next);
  }
}

TEST(SessionTest, AClientThatNeverTakesItsCompletionsIsAnError) {
  Ends ends;
  for (size_t i = 0; i <= Session::kOverflowMax + CGX_COMPLETION_CAPACITY; ++i) {
    ends.session.complete({.cookie = i}, "");
  }
  EXPECT_EQ(ends.publish().code(), StatusCode::kPROTOCOL_ERROR);
}

TEST(SessionTest, SignalsTheNotifierOnlyWhenAskedAndReadingClearsIt) {
  Ends ends;
  const int notifier = ends.channel.theirs.notifier.get();
  ends.session.complete({}, "");
  EXPECT_TRUE(ends.publish().ok());
  EXPECT_FALSE(readable(notifier, 0));
  ends.client.header->client_waits = 2;
  for (int round = 0; round < 3; ++round) {
    ends.session.complete({}, "");
    EXPECT_TRUE(ends.publish().ok());
    EXPECT_TRUE(readable(notifier, 10'000));
    uint64_t count = 0;
    EXPECT_EQ(::read(notifier, &count, sizeof(count)), 8);
    EXPECT_FALSE(readable(notifier, 0));
  }
}

TEST(SessionTest, WakesAClientThatWaitsOnTheFutex) {
  Ends ends;
  uint32_t& word = ends.client.header->wake_word;
  std::atomic<bool> woken{false};
  std::thread client([&] {
    std::atomic_ref<uint32_t>(ends.client.header->client_waits).store(1);
    while (std::atomic_ref<uint32_t>(word).load() == 0) {
      const timespec limit{.tv_sec = 10, .tv_nsec = 0};
      ASSERT_TRUE(::syscall(SYS_futex, &word, FUTEX_WAIT, 0, &limit, 0, 0) == 0 || errno == EAGAIN);
    }
    woken = true;
  });
  while (std::atomic_ref<uint32_t>(ends.client.header->client_waits).load() == 0) {
  }
  ends.session.complete({}, "");
  EXPECT_TRUE(ends.publish().ok());
  client.join();
  EXPECT_TRUE(woken);
}

// Waking thousands would take milliseconds of everybody's.
TEST(SessionTest, WakesSomeOfManyThreadsThatWait) {
  constexpr int kThreads = 300, kWokenMax = 128;
  Ends ends;
  std::atomic_ref<uint32_t> waits(ends.client.header->client_waits);
  waits.store(1);
  uint32_t* const word = &ends.client.header->wake_word;
  std::atomic<int> returned{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      const timespec limit{.tv_sec = 20, .tv_nsec = 0};
      ::syscall(SYS_futex, word, FUTEX_WAIT, 0, &limit, nullptr, 0);
      ++returned;
    });
  }
  // Those that wait are counted by moving them to where they are.
  const auto waiting = [word] {
    uint32_t other = 0;
    const long moved = ::syscall(SYS_futex, word, FUTEX_REQUEUE, 0, INT_MAX, &other, 0);
    ::syscall(SYS_futex, &other, FUTEX_REQUEUE, 0, INT_MAX, word, 0);
    return moved;
  };
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (waiting() < kThreads && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::yield();
  }
  ends.session.complete({}, "");
  EXPECT_TRUE(ends.publish().ok());
  EXPECT_EQ(waiting(), kThreads - kWokenMax);
  while (returned < kThreads && std::chrono::steady_clock::now() < deadline) {
    ::syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
    std::this_thread::yield();
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(SessionTest, AMutedSessionAnswersNobody) {
  Ends ends;
  ends.session.reply(1, {.message = "heard"});
  ends.session.mute();
  ends.session.reply(2, {.message = "not heard"});
  ends.session.complete({}, "text");
  EXPECT_TRUE(ends.publish().ok());
  ASSERT_EQ(ends.replies.size(), 1u);
  EXPECT_EQ(ends.replies[0].second, "heard");
  EXPECT_TRUE(ends.completions.empty());
}

TEST(SessionTest, TheClientCannotResizeItsSessionMemory) {
  Ends ends;
  EXPECT_NE(::ftruncate(ends.channel.theirs.memory.get(), 4096), 0);
  EXPECT_NE(::ftruncate(ends.channel.theirs.memory.get(), CGX_SHM_BYTES * 2), 0);
}

}  // namespace
}  // namespace cgx::daemon
