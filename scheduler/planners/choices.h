// What can be done with one tensor, as data: the decision tree of ByteComp (Espresso). Whether it
// is compressed, where along its way and on which processor, in one level or in two, by which
// collectives. A rule replaces a symbol by tasks and another symbol; an option is one way through
// the rules with every task's alternative chosen.
//
//   first step of a divisible scheme: scatters (reduce-scatter, all-to-all) or to a root (reduce,
//   gather); the second step pairs with it (allgather, broadcast)
//
// Thread rule: pure functions.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "scheduler/plan/collective.h"

namespace cgx::scheduler {

enum class Task : uint8_t {
  kCompress,
  kDecompress,
  kWhole,  // allreduce
  kFirst,  // of a divisible scheme
  kSecond,
  kWholeCoded,  // allgather of what was compressed
  kFirstCoded,
  kSecondCoded,
};

struct Stage {
  Task task = Task::kWhole;
  bool gpu = false;   // kCompress, kDecompress: else on the processor
  bool root = false;  // divisible: reduce and broadcast, gather and broadcast
  friend bool operator==(const Stage&, const Stage&) = default;
};

struct Choices {
  bool two_levels = false;
  std::vector<Stage> stages;
};
std::string to_string(const Choices& choices);

// What does arithmetic.
struct Places {
  bool cpu = true, gpu = true;
};
std::vector<Choices> all_choices(const Places& places);

// How cgxd would do it with gradients in host memory: coded or raw, and which collective. Nothing
// where it cannot.
struct Realised {
  bool coded = false;
  Collective collective = Collective::kScatter;
};
std::optional<Realised> realisable(const Choices& choices);

}  // namespace cgx::scheduler
