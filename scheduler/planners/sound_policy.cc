#include "scheduler/planners/sound_policy.h"

#include "kernels/codec.h"
#include "scheduler/planners/ceilings.h"

namespace cgx::scheduler {
namespace {

Status check_codec(const char* key, const CodecSpec& spec) {
  const Status status = kernels::validate(spec, DType::kF32);
  return status.ok() ? status : Status(status.code(), std::string(key) + ": " + status.message());
}

}  // namespace

Status check_sound(const Policy& policy) {
  CGX_RETURN_IF_ERROR(check_codec("codec", policy.default_codec));
  if (policy.rack_codec) CGX_RETURN_IF_ERROR(check_codec("rack_codec", *policy.rack_codec));
  if (policy.rules.size() > kRulesMax) {
    return invalid_argument("rules: " + std::to_string(policy.rules.size()) + " of them; " +
                            std::to_string(kRulesMax) + " are the most");
  }
  for (const PolicyRule& rule : policy.rules) {
    CGX_RETURN_IF_ERROR(check_codec("rules", rule.codec));
  }
  if (policy.menu.size() > kMenuMax) {
    return invalid_argument("menu: " + std::to_string(policy.menu.size()) + " codecs; " +
                            std::to_string(kMenuMax) + " are the most");
  }
  for (const CodecSpec& spec : policy.menu) CGX_RETURN_IF_ERROR(check_codec("menu", spec));
  return check_ceilings(policy);
}

}  // namespace cgx::scheduler
