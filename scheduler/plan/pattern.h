// Regular expressions somebody else wrote, searched by RE2 in time linear in the name: backtracking
// on a tenant's "(a+)+$" would stall the daemon. Syntax: RE2's, without look-around and
// back-references.
#pragma once

#include <re2/re2.h>
#include <re2/set.h>

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "proto/wire/status.h"

namespace cgx::scheduler {

// Thread rule: immutable.
class Pattern {
 public:
  // The error says what is wrong with it.
  static Result<Pattern> compile(const std::string& text);
  bool found_in(std::string_view name) const {
    return RE2::PartialMatch(re2::StringPiece(name.data(), name.size()), *expression_);
  }

 private:
  explicit Pattern(std::shared_ptr<const RE2> expression) : expression_(std::move(expression)) {}
  std::shared_ptr<const RE2> expression_;
};

// Many patterns, searched in one pass over a name.
class PatternSet {
 public:
  PatternSet() = default;  // of no patterns
  // An error says which ("rule 2: ...", counted from 1) and what is wrong with it.
  static Result<PatternSet> compile(const std::vector<std::string>& texts, const char* what);
  // Those that are found in the name, lowest first, until the next call; an error: the search needs
  // too much memory.
  Result<std::span<const int>> found_in(std::string_view name);

  bool empty() const { return set_ == nullptr; }

 private:
  std::unique_ptr<RE2::Set> set_;  // null: no patterns
  std::vector<int> found_;         // reused
};

}  // namespace cgx::scheduler
