// A regular expression somebody else wrote, searched in time polynomial in its length and the
// name's: backtracking on a tenant's "(a+)+$" would stall the engine. Thread rule: immutable.
#pragma once

#include <regex>
#include <string>

#include "proto/wire/status.h"

namespace cgx::scheduler {

class Pattern {
 public:
  // ECMAScript syntax without back-references; the error says what is wrong with it.
  static Result<Pattern> compile(const std::string& text);
  bool found_in(const std::string& name) const { return std::regex_search(name, expression_); }

 private:
  explicit Pattern(std::regex expression) : expression_(std::move(expression)) {}
  std::regex expression_;
};

}  // namespace cgx::scheduler
