// Ceilings: the strongest codec each tensor may take. Planners that set them are slow, because what
// they go by is accuracy, which no step's time shows; planners that look for short steps choose at
// or below them. Rules always go before both.
//
//   measured losses -> search (where plans are made) -> answer -> a plan under it
//
// Thread rule: values and pure functions; a search is owned by one thread and goes on where it
// stopped.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "scheduler/exchange/plan_facts.h"
#include "scheduler/plan/losses.h"

namespace cgx::scheduler {

// What codecs are measured and may become ceilings, weakest first; empty: the planner measures
// none.
std::vector<CodecSpec> strengths_of(const Policy& policy);
// Names the key, its value and what is allowed.
Status check_ceilings(const Policy& policy);

// Of one tensor: how many levels below its ceiling it stays, for how many answers yet.
struct Guard {
  uint8_t down = 0, times = 0;
  uint32_t windows = 0;
  friend bool operator==(const Guard&, const Guard&) = default;
};

// Of a planner with one strength for all: after a fall it stays for so many answers, twice as many
// after each further one.
struct Climb {
  uint32_t rest = 0;
  uint8_t falls = 0;
  friend bool operator==(const Climb&, const Climb&) = default;
};

struct CeilingQuestion {
  FactsPtr running;  // its policy and table
  Strengths strengths;
  std::vector<LossSample> losses;  // by tensor, of this machine
  LossSample everywhere;           // all tensors that are measured, added up over all machines
  // What the planner answered last, before guards; empty: nothing yet.
  std::vector<CodecSpec> now;
  std::vector<Guard> guards;  // by tensor; empty: none yet
  int level = 0;              // as in the last answer
  Climb climb;                // likewise
};

// Uncompressed, in place of a codec.
inline CodecSpec exact_for(const CodecSpec& spec) {
  return {.codec = 0, .bucket = spec.bucket > kBucketMax ? kBucketMax : spec.bucket};
}
// What tensors have until there is an answer.
CodecSpec starting_codec(const Policy& policy);

struct CeilingAnswer {
  bool changes = false;             // else what is in force stays, but for the guards
  std::vector<CodecSpec> ceilings;  // by tensor
  std::vector<CodecSpec> base;      // those before guards, for the next question
  std::vector<Guard> guards;
  int level = 0;  // a planner with one strength for all: which; -1: uncompressed
  Climb climb;
  uint32_t again = 4;  // measured steps until the next question
  std::string why;     // "1.31 times fewer bytes than maxmin:4 at 0.98 of its error"
};

class CeilingSearch {
 public:
  virtual ~CeilingSearch() = default;
  virtual bool work(uint64_t evaluations) = 0;  // about so many; true: done
  virtual CeilingAnswer answer() const = 0;     // REQUIRES: done
};
Result<std::unique_ptr<CeilingSearch>> begin_ceilings(CeilingQuestion question);
Result<CeilingAnswer> make_ceilings(CeilingQuestion question);  // all of it at once

// A row of ceilings.def.
struct CeilingRow {
  std::vector<CodecSpec> (*strengths)(const Policy& policy) = nullptr;
  Status (*check)(const Policy& policy) = nullptr;
  Result<std::unique_ptr<CeilingSearch>> (*begin)(CeilingQuestion question) = nullptr;
  // The row's own keys, which are wrong whichever row is chosen.
  Status (*check_keys)(const Policy& policy) = nullptr;
};
#define X(name, help) extern const CeilingRow kCeilings_##name;
#include "scheduler/plan/ceilings.def"
#undef X

}  // namespace cgx::scheduler
