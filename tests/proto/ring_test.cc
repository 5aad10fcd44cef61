#include "proto/wire/ring.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <thread>

namespace cgx::wire {
namespace {

struct Memory {
  std::unique_ptr<std::byte[]> bytes = std::make_unique<std::byte[]>(CGX_SHM_BYTES + 64);
  SessionMemory session{
      reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(bytes.get()) + 63) & ~uintptr_t{63})};
  SubmitProducer producer{session.submits, &session.header->submit_tail,
                          &session.header->submit_head};
  SubmitConsumer consumer{session.submits, &session.header->submit_tail,
                          &session.header->submit_head};
};

cgx_submit_record numbered(uint64_t number) {
  cgx_submit_record record{};
  record.cookie = number;
  return record;
}

TEST(Ring, ShowsNothingBeforePublish) {
  Memory memory;
  cgx_submit_record record;
  ASSERT_TRUE(memory.producer.try_push(numbered(1)));
  EXPECT_EQ(memory.consumer.try_pop(record), SubmitConsumer::Pop::kEmpty);
  memory.producer.publish();
  ASSERT_EQ(memory.consumer.try_pop(record), SubmitConsumer::Pop::kRecord);
  EXPECT_EQ(record.cookie, 1u);
  EXPECT_TRUE(memory.consumer.empty());
}

TEST(Ring, LeavesTheSecondLineOfASubmitAloneWhereNothingIsInIt) {
  Memory memory;
  cgx_submit_record record = numbered(1), read;
  auto* const slots = reinterpret_cast<std::byte*>(memory.session.submits);
  std::fill_n(slots, 2 * sizeof(record), std::byte{0xA5});
  ASSERT_TRUE(memory.producer.try_push(record));
  record.dtype = 2;
  record.reserved[22] = 3;
  ASSERT_TRUE(memory.producer.try_push(record));
  memory.producer.publish();
  EXPECT_EQ(std::count(slots + 64, slots + 128, std::byte{0xA5}), 64);
  std::memset(&read, 0xFF, sizeof(read));
  ASSERT_EQ(memory.consumer.try_pop(read), SubmitConsumer::Pop::kRecord);
  const cgx_submit_record first = numbered(1);
  EXPECT_EQ(std::memcmp(&read, &first, sizeof(read)), 0) << "what a client left there is not read";
  ASSERT_EQ(memory.consumer.try_pop(read), SubmitConsumer::Pop::kRecord);
  EXPECT_EQ(read.flags, CGX_RECORD_WIDE);
  EXPECT_EQ(read.dtype, 2u);
  EXPECT_EQ(read.reserved[22], 3u);
}

TEST(Ring, IsFullAtItsCapacityUntilSlotsAreReleased) {
  Memory memory;
  for (uint64_t i = 0; i < CGX_SUBMIT_CAPACITY; ++i) {
    ASSERT_TRUE(memory.producer.try_push(numbered(i)));
  }
  EXPECT_FALSE(memory.producer.try_push(numbered(0)));
  memory.producer.publish();
  cgx_submit_record record;
  ASSERT_EQ(memory.consumer.try_pop(record), SubmitConsumer::Pop::kRecord);
  EXPECT_FALSE(memory.producer.try_push(numbered(0))) << "popped but not released";
  memory.consumer.release();
  EXPECT_TRUE(memory.producer.try_push(numbered(0)));
}

TEST(Ring, CallsANonsenseCursorAViolation) {
  Memory memory;
  cgx_submit_record record;
  for (uint64_t hostile : {uint64_t{CGX_SUBMIT_CAPACITY} + 1, UINT64_MAX, uint64_t{1} << 40}) {
    memory.session.header->submit_tail = hostile;
    EXPECT_EQ(memory.consumer.try_pop(record), SubmitConsumer::Pop::kViolation) << hostile;
  }
}

TEST(Ring, TreatsANonsenseConsumerCursorAsFull) {
  Memory memory;
  for (uint64_t i = 0; i < CGX_SUBMIT_CAPACITY; ++i) {
    ASSERT_TRUE(memory.producer.try_push(numbered(i)));
  }
  memory.session.header->submit_head = 5'000'000;  // claims to have consumed what never existed
  EXPECT_FALSE(memory.producer.try_push(numbered(0)));
}

TEST(Ring, CarriesRecordsInOrderBetweenThreads) {
  Memory memory;
  constexpr uint64_t kRecords = 200'000;
  std::thread writer([&] {
    for (uint64_t i = 0; i < kRecords;) {
      if (memory.producer.try_push(numbered(i))) {
        ++i;
        memory.producer.publish();
      } else {
        std::this_thread::yield();
      }
    }
  });
  cgx_submit_record record;
  for (uint64_t expected = 0; expected < kRecords;) {
    if (memory.consumer.try_pop(record) == SubmitConsumer::Pop::kRecord) {
      ASSERT_EQ(record.cookie, expected++);
      memory.consumer.release();
    } else {
      std::this_thread::yield();
    }
  }
  writer.join();
}

}  // namespace
}  // namespace cgx::wire
