#include "client/ctl/table.h"

#include <algorithm>
#include <cstdio>

namespace cgx::ctl {
namespace {

// Columns a UTF-8 text takes, if every character takes one.
size_t width(const std::string& text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  }));
}

std::string formatted(const char* format, double value, const char* unit) {
  char text[48];
  std::snprintf(text, sizeof text, format, value, unit);
  return text;
}

}  // namespace

Table::Table(const std::vector<std::string>& titles) {
  for (const std::string& title : titles) {
    right_.push_back(title.starts_with('>'));
    titles_.push_back(title.starts_with('>') ? title.substr(1) : title);
  }
}

void Table::row(std::vector<std::string> cells) {
  cells.resize(titles_.size());
  rows_.push_back(std::move(cells));
}

std::string Table::text() const {
  std::vector<size_t> widths;
  for (size_t column = 0; column < titles_.size(); ++column) {
    size_t widest = width(titles_[column]);
    for (const auto& cells : rows_) widest = std::max(widest, width(cells[column]));
    widths.push_back(widest);
  }
  const auto line = [&](const std::vector<std::string>& cells) {
    std::string out;
    for (size_t column = 0; column < cells.size(); ++column) {
      const std::string gap(widths[column] - width(cells[column]), ' ');
      out +=
          (column == 0 ? "" : "  ") + (right_[column] ? gap + cells[column] : cells[column] + gap);
    }
    out.erase(out.find_last_not_of(' ') + 1);
    return out + "\n";
  };
  std::string out = line(titles_);
  for (const auto& cells : rows_) out += line(cells);
  return out;
}

std::string cut_lines(const std::string& text, size_t columns) {
  constexpr std::string_view kMore = "...";
  if (columns <= kMore.size()) return text;
  std::string out;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string line = text.substr(begin, end - begin);
    if (width(line) > columns) {
      while (width(line) > columns - kMore.size()) line.pop_back();
      line += kMore;
    }
    out += line + (end < text.size() ? "\n" : "");
    begin = end + 1;
  }
  return out;
}

std::string human_bytes(uint64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (bytes < 1024) return std::to_string(bytes) + " B";
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  for (; value >= 1023.95; ++unit) value /= 1024;
  return formatted("%.1f %s", value, kUnits[unit]);
}

std::string human_time(uint64_t ns) {
  const auto value = static_cast<double>(ns);
  if (ns < 1'000) return std::to_string(ns) + " ns";
  if (ns < 1'000'000) return formatted("%.1f %s", value / 1e3, "us");
  if (ns < 1'000'000'000) return formatted("%.1f %s", value / 1e6, "ms");
  if (ns < 60'000'000'000) return formatted("%.1f %s", value / 1e9, "s");
  const uint64_t minutes = ns / 60'000'000'000;
  if (minutes < 60) return std::to_string(minutes) + " min";
  const uint64_t hours = minutes / 60;
  if (hours < 48) return std::to_string(hours) + " h " + std::to_string(minutes % 60) + " min";
  return std::to_string(hours / 24) + " d " + std::to_string(hours % 24) + " h";
}

std::string human_count(uint64_t count) {
  std::string text = std::to_string(count);
  for (size_t at = text.size(); at > 3; at -= 3) text.insert(at - 3, ",");
  return text;
}

std::string shape_text(const std::vector<uint64_t>& shape) {
  std::string text;
  for (uint64_t dimension : shape) text += (text.empty() ? "" : ", ") + std::to_string(dimension);
  return "[" + text + "]";
}

}  // namespace cgx::ctl
