// The text files that cgxsim reads: a line says one thing in words; '#' begins a comment. Errors
// name file and line. Figures carry their unit: "1.5ms", "25gbit". Thread rule: pure functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "proto/wire/status.h"

namespace cgx::scheduler::sim {

struct Line {
  std::string place;  // "models/mine.txt:3"
  std::vector<std::string> words;

  Status error(const std::string& why) const { return invalid_argument(place + ": " + why); }
};
// Lines that say something.
std::vector<Line> lines_of(std::string_view text, const std::string& file_name);

Result<double> parse_number(std::string_view text);   // 0 or above
Result<double> parse_time_ns(std::string_view text);  // "250us": ns, us, ms, s; 0 or above
Result<double> parse_rate(std::string_view text);     // "25gbit", "500mbit": ns a byte
std::string time_text(double ns);                     // "12.3 ms"
std::string bytes_text(double bytes);                 // "51.1 MB"

}  // namespace cgx::scheduler::sim
