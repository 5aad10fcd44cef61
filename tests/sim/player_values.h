// Values that ranks hand over, and what the player looks for in texts.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "tests/sim/player.h"

namespace cgx::sim {

inline constexpr int64_t kSecond = 1'000'000'000;
inline constexpr uint64_t kTimeoutMs = 30'000;
inline constexpr int64_t kHangNs = 100 * kSecond;
inline constexpr uint32_t kCallSlots = 8;
inline constexpr std::byte kOwnAgain{0xA5};
// After a failure or a commit a promised policy is in force again within so many steps.
inline constexpr uint64_t kStepsToComeBack = 6;

// Whether the text speaks of "machine 1", which is not in "machine 12"; and of "rank 2", which is
// also in "ranks 1, 2".
bool names(const std::string& text, const std::string& what);
std::string rank_name(uint32_t rank);
bool code_exists(std::string_view name, StatusCode* code);

void fill(Bytes& bytes, DType dtype, uint64_t seed, bool nonfinite);
// Equal but for the bits of NaN and the sign of zero, which the reference does not promise.
bool same_values(DType dtype, const Bytes& a, const Bytes& b, size_t* where);

inline uint64_t cookie_of(uint32_t attempt, uint64_t step) {
  return uint64_t{attempt} << 32 | (step + 1);
}

}  // namespace cgx::sim
