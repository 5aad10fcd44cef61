#include "scheduler/plan/pattern.h"

#include <algorithm>

namespace cgx::scheduler {
namespace {

constexpr int64_t kPatternBytesMax = 8 << 20;  // compiled, with what a search keeps
constexpr int64_t kSetBytesMax = 16 << 20;     // compiling takes half a second at most

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

Status too_large() {
  return resource_exhausted("the rules' patterns take more than " +
                            std::to_string(kSetBytesMax >> 20) +
                            " MiB together: use fewer, or shorter repetitions than x{100}");
}

}  // namespace

Result<Pattern> Pattern::compile(const std::string& text) {
  auto expression = std::make_shared<const RE2>(text, options(kPatternBytesMax));
  if (!expression->ok()) return wrong(text, expression->error());
  return Pattern(std::move(expression));
}

Result<PatternSet> PatternSet::compile(const std::vector<std::string>& texts, const char* what) {
  PatternSet patterns;
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
    return too_large();
  }
  return patterns;
}

Result<std::span<const int>> PatternSet::found_in(std::string_view name) {
  found_.clear();
  if (set_ == nullptr) return std::span<const int>(found_);
  RE2::Set::ErrorInfo error{};
  const bool any = set_->Match(re2::StringPiece(name.data(), name.size()), &found_, &error);
  if (!any && error.kind != RE2::Set::kNoError) return too_large();
  std::sort(found_.begin(), found_.end());
  return std::span<const int>(found_);
}

}  // namespace cgx::scheduler
