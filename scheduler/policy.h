// What the operator wants: the plain form of the policy message (proto/messages/policy.proto).
// Rules are tried in order on the tensor's full name; the first match decides.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "proto/wire/types.h"

namespace cgx::scheduler {

struct PolicyRule {
  std::string match;  // regular expression (scheduler/pattern.h), searched in the tensor's name
  CodecSpec codec;
};

struct JobWeight {
  std::string match;  // regular expression, searched in the job's name; the first match decides
  uint32_t weight = 1;
};

// Which way a group takes between machines; auto decides per group (scheduler/collective.h).
enum class CollectiveWish : uint8_t { kAuto = 0, kScatter = 1, kAllgather = 2 };
constexpr const char* kCollectiveWishes[] = {"auto", "scatter", "allgather"};

struct Policy {
  CodecSpec default_codec{.codec = 3, .bits = 4, .flags = CodecSpec::kStochastic, .bucket = 512};
  std::vector<PolicyRule> rules;
  uint64_t min_elements = 1024;        // smaller tensors travel raw
  bool raw_one_dimensional = true;     // biases and norms travel raw
  uint64_t group_bytes = 4u << 20;     // target of raw bytes per group
  uint32_t window = 4;                 // operations in flight per communicator
  uint32_t weight = 1;                 // share of the links against other jobs
  uint32_t replica_check_steps = 100;  // 0: never
  CollectiveWish collective = CollectiveWish::kAuto;
  float feedback_decay = 1.0f;  // what is left of a residual after a step; above 0, at most 1
  uint32_t stats_steps = 50;    // steps between measurements of what codecs lose; 0: never
};

}  // namespace cgx::scheduler
