#include "daemon/policy/policy_message.h"

#include <algorithm>
#include <iterator>

#include "config/text.h"
#include "kernels/codec.h"
#include "scheduler/planners/ceilings.h"

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

// REQUIRES: one of the field's choices.
scheduler::CollectiveWish collective_of(const std::string& text) {
  const auto& names = scheduler::kCollectives;
  const auto found = std::find(std::begin(names), std::end(names), text);
  if (found == std::end(names)) return scheduler::CollectiveWish::kAuto;
  return scheduler::wish_for(static_cast<scheduler::Collective>(found - std::begin(names)));
}

// REQUIRES: one of the field's choices, which are the names.
template <typename Choice, size_t kCount>
Choice choice_of(const std::string& text, const char* const (&names)[kCount]) {
  const auto found = std::find(std::begin(names), std::end(names), text);
  CGX_ASSERT(found != std::end(names));
  return static_cast<Choice>(found - std::begin(names));
}

template <typename Choice, size_t kCount>
const char* name_of(Choice choice, const char* const (&names)[kCount]) {
  return names[static_cast<size_t>(choice)];
}

Status fill_ceilings(const v1::Policy& complete, scheduler::Policy& plain) {
  plain.ceilings =
      choice_of<scheduler::CeilingPlanner>(complete.ceilings(), scheduler::kCeilingPlanners);
  plain.layerwise_solver =
      choice_of<scheduler::LayerSolver>(complete.layerwise_solver(), scheduler::kLayerSolvers);
  CGX_ASSIGN_OR_RETURN(plain.layerwise_alpha, config::parse_factor(complete.layerwise_alpha()));
  CGX_ASSIGN_OR_RETURN(plain.gravac_min, config::parse_factor(complete.gravac_min()));
  CGX_ASSIGN_OR_RETURN(plain.gravac_max, config::parse_factor(complete.gravac_max()));
  CGX_ASSIGN_OR_RETURN(plain.gravac_epsilon, config::parse_share(complete.gravac_epsilon()));
  return scheduler::check_ceilings(plain);
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
  for (const v1::Rule& rule : complete.rules()) {
    plain.rules.push_back({rule.match(), codec_of(rule.codec(), checked.warnings), rule.small()});
  }
  plain.min_elements = complete.min_elements();
  plain.raw_one_dimensional = complete.raw_one_dimensional();
  plain.group_bytes = complete.group_bytes();
  plain.segment_bytes = complete.segment_bytes();
  plain.window = complete.window();
  plain.weight = complete.weight();
  plain.replica_check_steps = complete.replica_check_steps();
  plain.collective = collective_of(complete.collective());
  plain.rack_machines = complete.rack_machines();
  CGX_ASSIGN_OR_RETURN(plain.feedback_decay, config::parse_share(complete.feedback_decay()));
  plain.stats_steps = complete.stats_steps();
  plain.mode = choice_of<scheduler::PlanMode>(complete.mode(), scheduler::kPlanModes);
  for (const std::string& codec : complete.menu()) {
    plain.menu.push_back(codec_of(codec, checked.warnings));
  }
  CGX_RETURN_IF_ERROR(fill_ceilings(complete, plain));
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
  for (const scheduler::PolicyRule& rule : policy.rules) {
    v1::Rule* added = message.add_rules();
    added->set_match(rule.match);
    added->set_codec(kernels::to_string(rule.codec));
    added->set_small(rule.small);
  }
  message.set_min_elements(policy.min_elements);
  message.set_raw_one_dimensional(policy.raw_one_dimensional);
  message.set_group_bytes(policy.group_bytes);
  message.set_segment_bytes(policy.segment_bytes);
  message.set_window(policy.window);
  message.set_weight(policy.weight);
  message.set_replica_check_steps(policy.replica_check_steps);
  message.set_collective(scheduler::wish_name(policy.collective));
  message.set_rack_machines(policy.rack_machines);
  message.set_feedback_decay(config::print_share(policy.feedback_decay));
  message.set_stats_steps(policy.stats_steps);
  message.set_mode(name_of(policy.mode, scheduler::kPlanModes));
  for (const CodecSpec& codec : policy.menu) message.add_menu(kernels::to_string(codec));
  message.set_ceilings(name_of(policy.ceilings, scheduler::kCeilingPlanners));
  message.set_layerwise_alpha(config::print_share(policy.layerwise_alpha));
  message.set_gravac_min(config::print_share(policy.gravac_min));
  message.set_gravac_max(config::print_share(policy.gravac_max));
  message.set_gravac_epsilon(config::print_share(policy.gravac_epsilon));
  message.set_layerwise_solver(name_of(policy.layerwise_solver, scheduler::kLayerSolvers));
  return message;
}

}  // namespace cgx::daemon
