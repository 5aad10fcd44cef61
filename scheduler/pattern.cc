#include "scheduler/pattern.h"

#include <algorithm>

namespace cgx::scheduler {
namespace {

constexpr int64_t kPatternBytesMax = 8 << 20;  // compiled, with what a search keeps
constexpr int64_t kSetBytesMax = 32 << 20;

RE2::Options options(int64_t bytes_max) {
  RE2::Options options(RE2::Quiet);
  options.set_max_mem(bytes_max);
  return options;
}

Status wrong(const std::string& text, const std::string& why) {
  return invalid_argument("'" + text +
                          "' is not a regular expression (RE2 syntax: no look-around, no "
                          "back-references): " +
                          why);
}

}  // namespace

Result<Pattern> Pattern::compile(const std::string& text) {
  auto expression = std::make_shared<const RE2>(text, options(kPatternBytesMax));
  if (!expression->ok()) return wrong(text, expression->error());
  return Pattern(std::move(expression));
}

Result<PatternSet> PatternSet::compile(const std::vector<std::string>& texts, const char* what) {
  PatternSet patterns(texts);
  if (texts.empty()) return patterns;
  patterns.set_ = std::make_unique<RE2::Set>(options(kSetBytesMax), RE2::UNANCHORED);
  for (size_t i = 0; i < texts.size(); ++i) {
    std::string why;
    if (patterns.set_->Add(texts[i], &why) >= 0) continue;
    const Status status = wrong(texts[i], why);
    return Status(status.code(),
                  what + std::string(" ") + std::to_string(i + 1) + ": match " + status.message());
  }
  if (!patterns.set_->Compile()) {
    return resource_exhausted("the patterns of " + std::to_string(texts.size()) + " " + what +
                              "s need more than " + std::to_string(kSetBytesMax >> 20) +
                              " MiB when compiled");
  }
  return patterns;
}

std::optional<uint32_t> PatternSet::first_in(std::string_view name) {
  if (set_ == nullptr) return std::nullopt;
  RE2::Set::ErrorInfo error{};
  found_.clear();
  if (set_->Match(re2::StringPiece(name.data(), name.size()), &found_, &error)) {
    return static_cast<uint32_t>(*std::min_element(found_.begin(), found_.end()));
  }
  if (error.kind == RE2::Set::kNoError) return std::nullopt;
  return first_by_one(name);
}

std::optional<uint32_t> PatternSet::first_by_one(std::string_view name) {
  for (size_t i = one_by_one_.size(); i < texts_.size(); ++i) {
    one_by_one_.push_back(*Pattern::compile(texts_[i]));  // it was in the set
  }
  for (uint32_t i = 0; i < one_by_one_.size(); ++i) {
    if (one_by_one_[i].found_in(name)) return i;
  }
  return std::nullopt;
}

}  // namespace cgx::scheduler
