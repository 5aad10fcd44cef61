#include "scheduler/pattern.h"

namespace cgx::scheduler {

Result<Pattern> Pattern::compile(const std::string& text) {
  try {
    return Pattern(std::regex(text, std::regex::ECMAScript | std::regex_constants::__polynomial));
  } catch (const std::regex_error& error) {
    return invalid_argument(
        "'" + text + "' is not a regular expression without back-references: " + error.what());
  }
}

}  // namespace cgx::scheduler
