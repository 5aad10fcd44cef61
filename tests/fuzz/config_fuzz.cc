// Configuration text: any bytes load or are refused with a reason; what loads prints and loads
// again as the same message; a command line's assignment never does more than its key.
#include <google/protobuf/util/message_differencer.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "config/config.h"
#include "proto/messages/config.pb.h"

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

void load(std::string_view text) {
  cgx::v1::Config config;
  const Status status = cgx::config::load_text(text, "fuzz", Checks{}, config);
  CGX_ASSERT(status.ok() || !status.message().empty());
  if (!status.ok()) return;
  must_round_trip(config);
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
