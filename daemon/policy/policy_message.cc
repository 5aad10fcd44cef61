#include "daemon/policy/policy_message.h"

#include <algorithm>
#include <string>
#include <type_traits>

#include "config/text.h"
#include "kernels/codec.h"
#include "scheduler/plan/way.h"
#include "scheduler/planners/ceilings.h"
#include "scheduler/planners/sound_policy.h"

namespace cgx::daemon {
namespace {

Status check_codec(std::string_view text) {
  CGX_ASSIGN_OR_RETURN(const CodecSpec spec, kernels::parse_codec_spec(text));
  return kernels::check_policy(spec, nullptr);
}

Status check_lane(std::string_view text) {
  return kernels::find_lane(text).status();
}

// REQUIRES: check_codec(text) is ok.
CodecSpec codec_of(const std::string& text, std::vector<std::string>& warnings) {
  const Result<CodecSpec> spec = kernels::parse_codec_spec(text);
  CGX_ASSERT(spec.ok());
  std::string warning;
  CGX_ASSERT(kernels::check_policy(*spec, &warning).ok());
  if (!warning.empty()) warnings.push_back(warning);
  return *spec;
}

// A key between its field of the message, which has been checked, and its member of the plain form.
template <typename Number>
void read(Number value, Number& plain) {
  plain = value;
}
void read(const std::string& text, float& plain) {
  const Result<float> value = config::parse_factor(text);
  CGX_ASSERT(value.ok());
  plain = *value;
}
template <typename Choice>
void read(const std::string& text, Choice& plain) {
  const auto names = names_of(plain);
  const auto found = std::find(names.begin(), names.end(), text);
  CGX_ASSERT(found != names.end());
  plain = static_cast<Choice>(found - names.begin());
}

template <typename Value>
auto print(Value value) {
  if constexpr (std::is_enum_v<Value>) {
    return std::string(names_of(value)[static_cast<size_t>(value)]);
  } else if constexpr (std::is_same_v<Value, float>) {
    return config::print_share(value);
  } else {
    return value;
  }
}

}  // namespace

config::Checks config_checks() {
  return {.codec = check_codec, .lane = check_lane};
}

Result<CheckedPolicy> check_policy(const v1::Policy& message) {
  CGX_RETURN_IF_ERROR(config::check(message, config_checks()));
  CheckedPolicy checked;
  checked.message = message;
  config::fill_defaults(checked.message);

  const v1::Policy& complete = checked.message;
  scheduler::Policy& plain = checked.plain;
  plain.default_codec = codec_of(complete.codec(), checked.warnings);
  if (complete.rack_codec() != config::kSameCodec) {
    plain.rack_codec = codec_of(complete.rack_codec(), checked.warnings);
  }
  for (const v1::Rule& rule : complete.rules()) {
    plain.rules.push_back({rule.match(), codec_of(rule.codec(), checked.warnings), rule.small()});
  }
#define X(name, type, value) read(complete.name(), plain.name);
#include "scheduler/plan/policy.def"
#undef X
  for (const std::string& codec : complete.menu()) {
    plain.menu.push_back(codec_of(codec, checked.warnings));
  }
  CGX_RETURN_IF_ERROR(scheduler::check_sound(plain));
  CGX_RETURN_IF_ERROR(
      scheduler::check_rack_codec(plain, checked.warnings, scheduler::strengths_of(plain)));
  return checked;
}

Result<v1::Policy> fill_from(const v1::Policy& base, const v1::Policy& wish, bool no_rules) {
  CGX_RETURN_IF_ERROR(config::check(wish, config_checks()));
  if (wish.ByteSizeLong() == 0 && !no_rules) {
    return invalid_argument("the policy says nothing: give at least one key");
  }
  v1::Policy filled = base;
  if (no_rules || wish.rules_size() > 0) filled.clear_rules();
  if (wish.menu_size() > 0) filled.clear_menu();
  filled.MergeFrom(wish);
  return filled;
}

v1::Policy to_message(const scheduler::Policy& policy) {
  v1::Policy message;
  message.set_codec(kernels::to_string(policy.default_codec));
  message.set_rack_codec(policy.rack_codec ? kernels::to_string(*policy.rack_codec)
                                           : std::string(config::kSameCodec));
  for (const scheduler::PolicyRule& rule : policy.rules) {
    v1::Rule* added = message.add_rules();
    added->set_match(rule.match);
    added->set_codec(kernels::to_string(rule.codec));
    added->set_small(rule.small);
  }
#define X(name, type, value) message.set_##name(print(policy.name));
#include "scheduler/plan/policy.def"
#undef X
  for (const CodecSpec& codec : policy.menu) message.add_menu(kernels::to_string(codec));
  return message;
}

}  // namespace cgx::daemon
