#include "scheduler/sim/lines.h"

#include <charconv>
#include <cmath>
#include <cstdio>
#include <sstream>

namespace cgx::scheduler::sim {
namespace {

constexpr double kTimeMaxNs = 1e15;
constexpr double kRateMin = 1e-6, kRateMax = 1e6;  // gbit

// The number in front; what follows it is left in `text`. NaN: there is none.
double take_number(std::string_view& text) {
  double value = NAN;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || !std::isfinite(value)) return NAN;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return value;
}

Status refuse(std::string_view text, const char* what) {
  return invalid_argument("\"" + std::string(text) + "\" is not " + what);
}

std::string shown(double value, const char* unit) {
  char text[48];
  const int decimals = value < 10 ? 2 : 1;
  std::snprintf(text, sizeof text, "%.*f %s", decimals, value, unit);
  return text;
}

}  // namespace

std::vector<Line> lines_of(std::string_view text, const std::string& file_name) {
  std::vector<Line> lines;
  std::istringstream stream{std::string(text)};
  std::string row;
  for (int number = 1; std::getline(stream, row); ++number) {
    std::istringstream words(row.substr(0, row.find('#')));
    Line line{.place = file_name + ":" + std::to_string(number)};
    for (std::string word; words >> word;) line.words.push_back(word);
    if (!line.words.empty()) lines.push_back(std::move(line));
  }
  return lines;
}

Result<double> parse_number(std::string_view text) {
  std::string_view rest = text;
  const double value = take_number(rest);
  if (std::isnan(value) || !rest.empty() || value < 0) {
    return refuse(text, "a number of 0 or above");
  }
  return value;
}

Result<double> parse_time_ns(std::string_view text) {
  std::string_view unit = text;
  const double value = take_number(unit);
  const double factor = unit == "ns"   ? 1
                        : unit == "us" ? 1e3
                        : unit == "ms" ? 1e6
                        : unit == "s"  ? 1e9
                                       : NAN;
  if (value < 0) return refuse(text, "a time: it is negative");
  if (value == 0 && unit.empty()) return 0.0;
  if (std::isnan(value * factor)) return refuse(text, "a time such as 250us, 1.5ms, 2s");
  if (value * factor > kTimeMaxNs) return refuse(text, "a time of at most 1000000s");
  return value * factor;
}

Result<double> parse_rate(std::string_view text) {
  std::string_view unit = text;
  const double value = take_number(unit);
  if (unit.ends_with("/s")) unit.remove_suffix(2);
  const double bits = unit == "gbit" ? 1 : unit == "mbit" ? 1e-3 : NAN;  // in a ns
  if (!(value * bits >= kRateMin && value * bits <= kRateMax)) {
    return refuse(text, "a rate such as 25gbit or 500mbit");
  }
  return 8 / (value * bits);
}

std::string time_text(double ns) {
  if (ns == 0) return "0";
  if (ns >= 1e9) return shown(ns / 1e9, "s");
  if (ns >= 1e6) return shown(ns / 1e6, "ms");
  return shown(ns / 1e3, "us");
}

std::string bytes_text(double bytes) {
  if (bytes >= 1e9) return shown(bytes / 1e9, "GB");
  if (bytes >= 1e6) return shown(bytes / 1e6, "MB");
  return shown(bytes / 1e3, "kB");
}

}  // namespace cgx::scheduler::sim
