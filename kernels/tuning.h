// How a lane goes about the memory of the machine it runs on, operation by operation: how far ahead
// it asks for what it reads, and whether what it writes goes past the caches. No bit of a result
// depends on it.
//
// A Lane carries its Tuning (Lane::with): whoever makes the lane decides, once, and calls read a
// constant. Thread rule: measure_tuning is for one thread, with the machine as quiet as it gets.
#pragma once

#include <cstdint>
#include <string>

namespace cgx::kernels {

struct Lane;

struct Access {
  uint32_t ahead_bytes = 0;   // 0: this machine's own prefetcher does better
  bool second_level = false;  // what is asked for comes into that cache instead of the first
  bool stream = false;        // results that nobody reads soon on this core bypass its caches

  bool operator==(const Access&) const = default;
};

// Results in place of what was just read are never streamed, nor are encoded bytes, which are sent
// next.
struct Tuning {
  Access encode;        // values
  Access feedback;      // values and residual_in; streams residual_out, reduce's too
  Access decode;        // codes; streams targets, combine's too
  Access decode_add;    // sums
  Access reduce;        // own values
  Access local_reduce;  // values

  bool operator==(const Tuning&) const = default;
};

// Smaller results stay in the caches, where their reader finds them.
constexpr uint64_t kStreamBytes = 128 << 10;

struct TunedOperation {
  const char* name;
  Access Tuning::*access;
  bool streams;  // may stream
};
// In the order they are measured.
constexpr TunedOperation kTunedOperations[] = {
    {"encode", &Tuning::encode, false},
    {"decode", &Tuning::decode, true},
    {"reduce", &Tuning::reduce, false},
    {"encode with feedback", &Tuning::feedback, true},
    {"local reduce", &Tuning::local_reduce, false},
    {"decode and add", &Tuning::decode_add, false},
};

// What measure_tuning chooses from, with and without streaming; the first is the default.
constexpr Access kReadsTried[] = {{}, {256}, {4096}, {10240}, {4096, true}, {8192, true}};

constexpr uint64_t kTuningBudgetNs = 9'000'000;

// The fastest of these on this machine, for what lies in memory and in no cache: medians, and the
// default where nothing beats it clearly or the budget is used up. The clock is best one of this
// thread's CPU time: a busy machine must not cut the measurement short, nor choose. The default for
// a lane that knows no tuning.
Tuning measure_tuning(const Lane& lane, uint64_t (*now_ns)());

// "encode 4 KiB ahead; decode streamed"; operations that do as the default does are left out.
std::string to_string(const Tuning& tuning);

}  // namespace cgx::kernels
