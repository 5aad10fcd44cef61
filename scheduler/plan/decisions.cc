#include "scheduler/plan/decisions.h"

#include <algorithm>

namespace cgx::scheduler {

Result<DecisionsPtr> Decisions::create(const Policy& policy, const TensorTable& table) {
  CGX_ASSIGN_OR_RETURN(DecisionsMaker maker, DecisionsMaker::begin(policy, table));
  for (;;) {
    CGX_ASSIGN_OR_RETURN(const bool done, maker.work(table));
    if (done) return maker.made();
  }
}

Result<DecisionsMaker> DecisionsMaker::begin(const Policy& policy, const TensorTable& table) {
  const size_t tensors = std::max<size_t>(1, table.size());
  if (policy.rules.size() * tensors > kMatchesMax) {
    return resource_exhausted(
        "policy: " + std::to_string(policy.rules.size()) + " rules for " + std::to_string(tensors) +
        " tensors; rules x tensors may be " + std::to_string(kMatchesMax) + ", that is " +
        std::to_string(kMatchesMax / tensors) + " rules here (several patterns make one with '|')");
  }
  std::vector<std::string> texts;
  for (const PolicyRule& rule : policy.rules) texts.push_back(rule.match);
  CGX_ASSIGN_OR_RETURN(PatternSet patterns, PatternSet::compile(texts, "policy rule"));
  std::shared_ptr<Decisions> made(new Decisions(policy));
  made->decided_.reserve(table.size());
  return DecisionsMaker(std::move(patterns), std::move(made));
}

Result<bool> DecisionsMaker::work(const TensorTable& table) {
  size_t bytes = 0;
  while (made_->decided_.size() < table.size() && bytes < kSliceBytes) {
    const TensorDesc& tensor = table[made_->decided_.size()];
    CGX_ASSIGN_OR_RETURN(const std::span<const int> found, patterns_.found_in(tensor.name));
    made_->decide(tensor, found);
    bytes += patterns_.empty() ? 0 : tensor.name.size() + 1;
  }
  return made_->decided_.size() == table.size();
}

// kByDefault: it is not.
int32_t Decisions::why_small(const TensorDesc& tensor) const {
  if (tensor.elements < min_elements_) return kByElements;
  const bool vector = tensor.shape.size() == 1 && !tensor.name.empty();
  return raw_one_dimensional_ && vector && tensor.elements < kVectorElements ? kByVector
                                                                             : kByDefault;
}

void Decisions::decide(const TensorDesc& tensor, std::span<const int> found) {
  if (!dtype_is_small_float(tensor.dtype)) {
    for (const int number : found) {
      ++reach_[static_cast<size_t>(number)].found;
      ++reach_[static_cast<size_t>(number)].other;
    }
    return decided_.push_back(kByType);
  }
  const int32_t small = why_small(tensor);
  int32_t by = small;
  for (const int number : found) {
    const bool spared = small != kByDefault && !rules_[static_cast<size_t>(number)].small;
    RuleReach& reach = reach_[static_cast<size_t>(number)];
    ++reach.found;
    reach.spared += spared ? 1 : 0;
    if (spared || by >= 0) continue;
    by = number;
    ++reach.decided;
  }
  decided_.push_back(by);
}

bool Decisions::hold_for(const Policy& policy) const {
  const auto same = [](const PolicyRule& one, const PolicyRule& other) {
    return one.match == other.match && one.small == other.small;
  };
  return policy.min_elements == min_elements_ &&
         policy.raw_one_dimensional == raw_one_dimensional_ &&
         std::equal(rules_.begin(), rules_.end(), policy.rules.begin(), policy.rules.end(), same);
}

CodecSpec Decisions::spec_of(uint32_t tensor, const Policy& policy) const {
  const int32_t by = decided_[tensor];
  if (by >= 0) return policy.rules[static_cast<size_t>(by)].codec;
  return by == kByDefault ? policy.default_codec : CodecSpec{.codec = 0, .bucket = 512};
}

std::string Decisions::reason(uint32_t tensor) const {
  switch (const int32_t by = decided_[tensor]; by) {
    case kByDefault:
      return "default";
    case kByType:
      return "not a small float type";
    case kByElements:
      return "fewer than " + std::to_string(min_elements_) + " elements";
    case kByVector:
      return "one-dimensional, fewer than " + std::to_string(kVectorElements) + " elements";
    default:
      return "rule " + std::to_string(by + 1) + ": " + rules_[static_cast<size_t>(by)].match;
  }
}

uint64_t Decisions::bytes() const {
  uint64_t bytes = sizeof(*this) + decided_.capacity() * sizeof(decided_[0]) +
                   rules_.capacity() * sizeof(rules_[0]) + reach_.capacity() * sizeof(reach_[0]);
  for (const PolicyRule& rule : rules_) bytes += rule.match.capacity();
  return bytes;
}

}  // namespace cgx::scheduler
