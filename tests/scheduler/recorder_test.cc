#include "scheduler/recorder.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <set>
#include <string>
#include <thread>

namespace cgx::scheduler {
namespace {

struct Memory {
  explicit Memory(uint64_t events) : words(recorder_bytes(events) / sizeof(uint64_t)) {}
  std::span<std::byte> bytes() { return std::as_writable_bytes(std::span(words)); }
  std::vector<uint64_t> words;
};

// Every field says which one it is.
Event numbered(uint64_t n) {
  return {.time_ns = n,
          .step = static_cast<uint32_t>(n),
          .kind = static_cast<EventKind>(n % static_cast<uint64_t>(EventKind::kCount)),
          .communicator = static_cast<uint16_t>(n),
          .group = static_cast<uint16_t>(n),
          .peer = static_cast<uint16_t>(n),
          .a = static_cast<uint32_t>(n),
          .b = ~n};
}

void record(Recorder& recorder, uint64_t first, uint64_t end) {
  for (uint64_t n = first; n < end; ++n) recorder.record(numbered(n));
}

// They are what was recorded under their numbers. Returns how many.
uint64_t expect_numbered(const RecorderReader::Reading& reading) {
  for (uint64_t i = 0; i < reading.events.size(); ++i) {
    EXPECT_EQ(reading.events[i], numbered(reading.first + i)) << "number " << reading.first + i;
  }
  return reading.events.size();
}

TEST(Recorder, RemembersTheLastEvents) {
  Memory memory(8);
  Recorder recorder(memory.bytes());
  const Result<RecorderReader> reader = RecorderReader::create(memory.bytes());
  ASSERT_TRUE(reader.ok());
  EXPECT_EQ(reader->read(0).events.size(), 0u);
  record(recorder, 0, 5);
  EXPECT_EQ(expect_numbered(reader->read(0)), 5u);
  record(recorder, 5, 29);
  const RecorderReader::Reading reading = reader->read(0);
  EXPECT_EQ(reading.end(), 29u);
  // One place may be half overwritten by an event that is being recorded.
  EXPECT_EQ(expect_numbered(reading), 7u);
}

TEST(Recorder, ReadsOnFromANumber) {
  Memory memory(8);
  Recorder recorder(memory.bytes());
  const Result<RecorderReader> reader = RecorderReader::create(memory.bytes());
  ASSERT_TRUE(reader.ok());
  record(recorder, 0, 4);
  const uint64_t end = reader->read(0).end();
  record(recorder, 4, 6);
  const RecorderReader::Reading more = reader->read(end);
  EXPECT_EQ(more.first, 4u);
  EXPECT_EQ(expect_numbered(more), 2u);
  EXPECT_EQ(reader->read(more.end()).events.size(), 0u);
  EXPECT_EQ(reader->read(1000).end(), 6u) << "a number that is still to come";
}

// A reader on another thread sees whole events only, however often it is lapped.
TEST(Recorder, GivesWholeEventsToAnotherThread) {
  constexpr uint64_t kEvents = 100'000;
  Memory memory(64);
  Recorder recorder(memory.bytes());
  const Result<RecorderReader> reader = RecorderReader::create(memory.bytes());
  ASSERT_TRUE(reader.ok());
  std::atomic<bool> done = false;
  uint64_t seen = 0;
  std::thread reading([&] {
    uint64_t next = 0;
    for (bool last = false; !last;) {
      last = done.load();
      const RecorderReader::Reading got = reader->read(next);
      ASSERT_GE(got.first, next);
      seen += expect_numbered(got);
      next = got.end();
      if (::testing::Test::HasFailure()) return;
    }
    EXPECT_EQ(next, kEvents);
  });
  for (uint64_t n = 0; n < kEvents; ++n) {
    recorder.record(numbered(n));
    if (n % 512 == 0) std::this_thread::yield();
  }
  done = true;
  reading.join();
  EXPECT_GT(seen, 0u);
}

TEST(Recorder, MemoryThatIsNoRecordersIsRefused) {
  Memory memory(8);
  EXPECT_FALSE(RecorderReader::create(memory.bytes()).ok()) << "nothing was ever written";
  const Recorder recorder(memory.bytes());
  EXPECT_TRUE(RecorderReader::create(memory.bytes()).ok());
  EXPECT_FALSE(RecorderReader::create(memory.bytes().first(recorder_bytes(4))).ok()) << "too short";
  EXPECT_FALSE(RecorderReader::create(memory.bytes().first(16)).ok());
  for (const uint64_t capacity : {uint64_t{0}, uint64_t{7}, uint64_t{1} << 63}) {
    std::memcpy(memory.bytes().data() + sizeof(uint64_t), &capacity, sizeof(capacity));
    EXPECT_FALSE(RecorderReader::create(memory.bytes()).ok()) << capacity;
  }
}

TEST(Events, SayWhatTheirFieldsHold) {
  const std::set<std::string> places = {"operation", "step", ""}, peers = {"rank", "machine", ""};
  for (uint16_t kind = 0; kind < static_cast<uint16_t>(EventKind::kCount); ++kind) {
    const EventRow& row = event_row(static_cast<EventKind>(kind));
    EXPECT_EQ(places.count(row.where), 1u) << row.name;
    EXPECT_EQ(peers.count(row.peer), 1u) << row.name;
    EXPECT_NE(std::string(row.help), "") << row.name;
  }
}

}  // namespace
}  // namespace cgx::scheduler
