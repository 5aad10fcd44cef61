#include "scheduler/plan/plan_origin.h"

#include <cctype>
#include <string_view>

namespace cgx::scheduler {
namespace {

// "^layer\.0\.weight$": as `cgxctl plan pin` writes it.
bool names_one_tensor(std::string_view pattern) {
  if (pattern.size() < 2 || pattern.front() != '^' || pattern.back() != '$') return false;
  pattern = pattern.substr(1, pattern.size() - 2);
  for (size_t i = 0; i < pattern.size(); ++i) {
    const auto byte = static_cast<unsigned char>(pattern[i]);
    const bool plain = std::isalnum(byte) != 0 || byte == '_' || byte >= 128;
    if (!plain && byte != '\\') return false;
    if (byte == '\\' && ++i == pattern.size()) return false;
  }
  return true;
}

Policy without_pins(Policy policy) {
  std::erase_if(policy.rules,
                [](const PolicyRule& rule) { return rule.small && names_one_tensor(rule.match); });
  return policy;
}

}  // namespace

PlanOrigin origin_of(const Policy& wish, const Policy& before) {
  const bool pins =
      wish.rules != before.rules && same_wish(without_pins(wish), without_pins(before));
  const PolicyNote& note = wish.note;
  const std::string by = note.by.empty() ? "an operator" : note.by;
  return {pins ? kByPin : kByPolicy, by + (note.reason.empty() ? "" : ": " + note.reason)};
}

PlanOrigin repeated(const PlanOrigin& recorded) {
  if (recorded.who == kByHistory) return recorded;
  const bool known = !recorded.who.empty();
  return {kByHistory, "repeats a plan history" +
                          (known ? ", by " + recorded.who + " then: " + recorded.why : "")};
}

}  // namespace cgx::scheduler
