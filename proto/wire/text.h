// Texts for people that have to fit somewhere: cut between two characters of UTF-8.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace cgx::wire {

inline std::string_view begin_of(std::string_view text, size_t bytes_max) {
  if (text.size() <= bytes_max) return text;
  size_t end = bytes_max;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
  return text.substr(0, end);
}

// REQUIRES: bytes_max >= 3. "..." stands for what is left out.
inline std::string shortened(std::string_view text, size_t bytes_max) {
  if (text.size() <= bytes_max) return std::string(text);
  return std::string(begin_of(text, bytes_max - 3)) + "...";
}

}  // namespace cgx::wire
