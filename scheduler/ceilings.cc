#include "scheduler/ceilings.h"

#include <utility>

#include "scheduler/planner.h"

namespace cgx::scheduler {
namespace {

const CeilingRow& row_of(const Policy& policy) {
  static const CeilingRow* const rows[] = {
#define X(name, help) &kCeilings_##name,
#include "scheduler/ceilings.def"
#undef X
  };
  return *rows[static_cast<size_t>(policy.ceilings)];
}

}  // namespace

// Nothing to measure, nothing to search.
const CeilingRow kCeilings_policy{};

std::vector<CodecSpec> strengths_of(const Policy& policy) {
  const CeilingRow& row = row_of(policy);
  return row.strengths == nullptr ? std::vector<CodecSpec>() : row.strengths(policy);
}

Status check_ceilings(const Policy& policy) {
  const CeilingRow& row = row_of(policy);
  return row.check == nullptr ? Status() : row.check(policy);
}

Result<std::unique_ptr<CeilingSearch>> begin_ceilings(CeilingQuestion question) {
  const CeilingRow& row = row_of(question.running->policy);
  if (row.begin == nullptr) return invalid_argument("the policy's codec is the only ceiling");
  return row.begin(std::move(question));
}

Result<CeilingAnswer> make_ceilings(CeilingQuestion question) {
  constexpr uint64_t kSlice = 1 << 16;
  CGX_ASSIGN_OR_RETURN(const std::unique_ptr<CeilingSearch> search,
                       begin_ceilings(std::move(question)));
  while (!search->work(kSlice)) {
  }
  return search->answer();
}

Result<std::vector<bool>> decided_by_default(const TensorTable& table, const Policy& policy) {
  CGX_ASSIGN_OR_RETURN(CodecChooser chooser, CodecChooser::create(policy, table.size()));
  std::vector<bool> by_default;
  for (const TensorDesc& tensor : table) {
    CGX_ASSIGN_OR_RETURN(const Choice choice, chooser.choose(tensor));
    by_default.push_back(choice.by_default);
  }
  return by_default;
}

}  // namespace cgx::scheduler
