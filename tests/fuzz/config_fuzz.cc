// Configuration text: any bytes load or are refused with a reason; what loads prints and loads
// again as the same message; a command line's assignment never does more than its key. Whatever
// patterns load, a name has been looked for in them before libFuzzer's time is over.
#include <google/protobuf/util/message_differencer.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "config/config.h"
#include "proto/messages/config.pb.h"
#include "scheduler/plan/pattern.h"

namespace {

using cgx::Status;
using cgx::config::Checks;

void must_round_trip(const cgx::v1::Config& config) {
  const std::string text = cgx::config::print(config, cgx::config::Secrets::kShow);
  cgx::v1::Config again;
  const Status status = cgx::config::load_text(text, "printed", Checks{}, again);
  CGX_ASSERT(status.ok());
  CGX_ASSERT(google::protobuf::util::MessageDifferencer::Equals(config, again));
}

// As long as a tensor's name may be, of what backtracks most.
void look_for_names(const cgx::v1::Config& config) {
  using cgx::scheduler::Pattern;
  using cgx::scheduler::PatternSet;
  const std::string name(512, 'a');
  std::vector<std::string> texts;
  for (const auto& rule : config.policy().rules()) texts.push_back(rule.match());
  cgx::Result<PatternSet> patterns = PatternSet::compile(texts, "rule");
  if (patterns.ok()) (void)patterns->found_in(name);
  for (const auto& job : config.jobs()) {
    const cgx::Result<Pattern> pattern = Pattern::compile(job.match());
    if (pattern.ok()) (void)pattern->found_in(name);
  }
}

void load(std::string_view text) {
  cgx::v1::Config config;
  const Status status = cgx::config::load_text(text, "fuzz", Checks{}, config);
  CGX_ASSERT(status.ok() || !status.message().empty());
  if (!status.ok()) return;
  must_round_trip(config);
  look_for_names(config);
  cgx::config::fill_defaults(config);
  CGX_ASSERT(cgx::config::check(config, Checks{}).ok());
  must_round_trip(config);
}

void assign(std::string_view text) {
  cgx::v1::Config config;
  const Status status = cgx::config::set(text, config);
  CGX_ASSERT(status.ok() || !status.message().empty());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  load(text);
  if (size < 256) assign(text);
  return 0;
}
