// Machines that decoded the same bits, and one that did not.
#include "scheduler/communicator/replica_watch.h"

#include <gtest/gtest.h>

namespace cgx::scheduler {
namespace {

ReplicaHash hash_of(uint64_t step, uint64_t hash, const char* lane = "scalar") {
  return {.step = step, .tensor = 3, .hash = hash, .lane = lane};
}

TEST(ReplicaWatch, ComparesEachMachineWithThoseThatSpokeOfTheSameResult) {
  ReplicaWatch watch;
  EXPECT_EQ(watch.compare(1, hash_of(5, 77)).compared, 0u) << "the first";
  EXPECT_EQ(watch.compare(0, hash_of(5, 77)).compared, 1u);
  const auto third = watch.compare(2, hash_of(5, 77));
  EXPECT_EQ(third.compared, 2u);
  EXPECT_FALSE(third.difference.has_value());
  EXPECT_EQ(watch.compare(0, hash_of(6, 78)).compared, 0u) << "the others are a check behind";
  ReplicaHash other = hash_of(6, 79);
  other.tensor = 4;
  EXPECT_EQ(watch.compare(1, other).compared, 0u) << "another tensor's";
}

TEST(ReplicaWatch, NamesTheTwoMachinesThatDifferAndTheirLanes) {
  ReplicaWatch watch;
  (void)watch.compare(0, hash_of(5, 77, "avx2"));
  const auto found = watch.compare(2, hash_of(5, 76, "avx512"));
  ASSERT_TRUE(found.difference.has_value());
  EXPECT_EQ(found.difference->machine, 2u);
  EXPECT_EQ(found.difference->other, 0u);
  EXPECT_EQ(found.difference->lane, "avx512");
  EXPECT_EQ(found.difference->other_lane, "avx2");
}

TEST(ReplicaWatch, ForgetsWhatAFailedPassGave) {
  ReplicaWatch watch;
  (void)watch.compare(0, hash_of(5, 77));
  watch.forget();
  EXPECT_EQ(watch.compare(1, hash_of(5, 76)).compared, 0u);
}

}  // namespace
}  // namespace cgx::scheduler
