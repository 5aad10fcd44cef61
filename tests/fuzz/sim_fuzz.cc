// The files cgxsim reads: any bytes are taken or refused with a reason; a model that was taken
// prints and is taken again.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "scheduler/sim/cost_file.h"
#include "scheduler/sim/model.h"
#include "scheduler/sim/published.h"

namespace {

namespace sim = cgx::scheduler::sim;

template <typename T>
bool taken(const cgx::Result<T>& result) {
  CGX_ASSERT(result.ok() || !result.status().message().empty());
  return result.ok();
}

void model(std::string_view text) {
  const cgx::Result<sim::Model> read = sim::parse_model(text, "fuzz");
  if (!taken(read) || read->compute_ns() < 1000) return;  // less is rounded away in print
  const cgx::Result<sim::Model> again = sim::parse_model(sim::print_model(*read), "printed");
  CGX_ASSERT(again.ok());
  CGX_ASSERT(again->table == read->table);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  model(text);
  taken(sim::parse_costs(text, "fuzz", ""));
  taken(sim::parse_costs(text, "fuzz", "avx2"));
  taken(sim::validate(text, "fuzz"));
  return 0;
}
