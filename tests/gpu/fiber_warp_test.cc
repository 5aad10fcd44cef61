// What the two warps of the host show of a body: with a barrier they agree, and without one only
// the fibers tell.
#include "tests/gpu/fiber_warp.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "tests/gpu/emulated_warp.h"

namespace cgx::kernels {
namespace {

using Numbers = std::array<uint32_t, FiberWarp::kSize>;

// Every lane writes its number and then reads its neighbour's.
template <bool barrier, class Team>
void swap_neighbours(Team& team, Numbers& shared, Numbers& read) {
  const auto write = [&](uint32_t t) { shared[t] = t + 1; };
  if (barrier) {
    team.each(write);
  } else {
    team.lanes(write);
  }
  team.lanes([&](uint32_t t) { read[t] = shared[t ^ 1]; });
}

template <bool barrier>
bool fibers_swap() {
  gpu::Fibers fibers(FiberWarp::kSize);
  FiberWarp::Staging staging;
  Numbers shared = {}, read = {};
  fibers.run([&](uint32_t lane) {
    FiberWarp team(fibers, staging, lane);
    swap_neighbours<barrier>(team, shared, read);
  });
  return std::count(read.begin(), read.end(), 0u) == 0;
}

TEST(FiberWarp, ReadsWhatOthersWroteBeforeABarrier) {
  EXPECT_TRUE(fibers_swap<true>());
}

TEST(FiberWarp, ShowsThatABarrierIsMissing) {
  EXPECT_FALSE(fibers_swap<false>());
}

TEST(FiberWarp, ShowsWhatALoopOverLanesCannot) {
  EmulatedWarp team;
  Numbers shared = {}, read = {};
  swap_neighbours<false>(team, shared, read);
  EXPECT_EQ(std::count(read.begin(), read.end(), 0u), 0);
}

template <uint32_t kLanes>
void expect_that_they_agree() {
  using Loop = EmulatedLanes<kLanes>;
  using Fibered = FiberLanes<kLanes>;
  const auto value = [](uint32_t t) { return 1.0f / static_cast<float>(t + 3); };
  const auto odd = [](uint32_t t) { return t % 3 == 1; };
  const auto larger = [](float& a, float b) { a = b > a ? b : a; };
  Loop loop;
  typename Loop::template Each<float> values;
  loop.lanes([&](uint32_t t) { values[t] = value(t); });
  const float sum = loop.fold(values), most = loop.merge(values, larger);
  const uint32_t votes = loop.ballot(odd);
  gpu::Fibers fibers(kLanes);
  typename Fibered::Staging staging;
  fibers.run([&](uint32_t lane) {
    Fibered team(fibers, staging, lane);
    typename Fibered::template Each<float> own;
    team.lanes([&](uint32_t t) { own[t] = value(t); });
    EXPECT_EQ(team.fold(own), sum);
    EXPECT_EQ(team.merge(own, larger), most);
    EXPECT_EQ(team.ballot(odd), votes);
  });
}

TEST(FiberWarp, MergesFoldsAndVotesAsTheLoopDoes) {
  expect_that_they_agree<32>();
  expect_that_they_agree<8>();
}

}  // namespace
}  // namespace cgx::kernels
