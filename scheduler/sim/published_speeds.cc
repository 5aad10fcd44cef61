#include "scheduler/sim/published_speeds.h"

#include <array>
#include <cmath>
#include <cstdio>

#include "scheduler/planners/verdict.h"

namespace cgx::scheduler::sim {

Result<std::string> PublishedSpeeds::add(const Line& line) {
  std::array<double, 3> speeds{};
  for (size_t i = 0; i < speeds.size(); ++i) {
    const Result<double> read = parse_number(line.words[2 + i]);
    if (!read.ok() || *read <= 0) return line.error("a speed is a number above 0");
    speeds[i] = *read;
  }
  const auto [plain, eight, four] = speeds;
  constexpr double kEightShare = 8.0 / 32, kFourShare = 4.0 / 32;
  const double exchange = (1 / plain - 1 / eight) / (1 - kEightShare);
  const double predicted = 1 / (1 / plain - exchange * (1 - kFourShare));
  errors_.push_back(100 * std::abs(predicted / four - 1));
  char text[160];
  std::snprintf(text, sizeof text, "%s with 4 bits: %.4g, published %.4g, off by %.0f %%",
                line.words[1].c_str(), predicted, four, errors_.back());
  return std::string(text);
}

Result<PublishedRow> PublishedSpeeds::median(const Line& line) const {
  if (errors_.empty()) return line.error("comes before any line \"speeds NAME PLAIN EIGHT FOUR\"");
  const Result<double> tolerance = parse_number(line.words[2]);
  if (!tolerance.ok()) return line.error(tolerance.status().message());
  const double error = median_of(errors_);
  return PublishedRow{.id = line.words[1],
                      .published = 0,
                      .ours = error,
                      .tolerance = *tolerance,
                      .error = error,
                      .unit = "points"};
}

}  // namespace cgx::scheduler::sim
