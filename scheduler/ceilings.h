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

#include "scheduler/losses.h"
#include "scheduler/plan_facts.h"

namespace cgx::scheduler {

// What codecs are measured and may become ceilings, weakest first; empty: the planner measures none.
std::vector<CodecSpec> strengths_of(const Policy& policy);
// Names the key, its value and what is allowed.
Status check_ceilings(const Policy& policy);

struct CeilingQuestion {
  FactsPtr running;  // its policy and table
  Strengths strengths;
  std::vector<LossSample> losses;  // by tensor, of this machine
  LossSample everywhere;           // all tensors that are measured, added up over all machines
  std::vector<CodecSpec> now;      // the ceilings in force; empty: the policy's codec
};

struct CeilingAnswer {
  bool changes = false;             // else those in force stay
  std::vector<CodecSpec> ceilings;  // by tensor
  std::string why;                  // "1.31 times fewer bytes than maxmin:4 at 0.98 of its error"
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
};
#define X(name, help) extern const CeilingRow kCeilings_##name;
#include "scheduler/ceilings.def"
#undef X

// By tensor: nothing but the policy's default decides its codec.
Result<std::vector<bool>> decided_by_default(const TensorTable& table, const Policy& policy);

}  // namespace cgx::scheduler
