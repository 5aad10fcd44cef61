#include "config/text.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <numeric>
#include <vector>

namespace cgx::config {
namespace {

struct Suffix {
  std::string_view text;
  uint64_t factor;  // in bytes or nanoseconds
  bool printed;     // used by print_quantity
};

// Largest first, so that printing takes the first one that divides.
constexpr Suffix kBytes[] = {
    {"TiB", 1ull << 40, true},
    {"GiB", 1ull << 30, true},
    {"MiB", 1ull << 20, true},
    {"KiB", 1ull << 10, true},
    {"B", 1, true},
    {"TB", 1'000'000'000'000, false},
    {"GB", 1'000'000'000, false},
    {"MB", 1'000'000, false},
    {"kB", 1'000, false},
};
constexpr Suffix kTime[] = {
    {"h", 3'600'000'000'000, true}, {"min", 60'000'000'000, true}, {"s", 1'000'000'000, true},
    {"ms", 1'000'000, true},        {"us", 1'000, true},           {"ns", 1, false},
};

std::span<const Suffix> suffixes(Quantity quantity) {
  switch (quantity) {
    case Quantity::kCount:
      return {};
    case Quantity::kBytes:
      return kBytes;
    case Quantity::kMicroseconds:
    case Quantity::kMilliseconds:
      return kTime;
  }
  return {};
}

uint64_t base(Quantity quantity) {
  switch (quantity) {
    case Quantity::kCount:
    case Quantity::kBytes:
      return 1;
    case Quantity::kMicroseconds:
      return 1'000;
    case Quantity::kMilliseconds:
      return 1'000'000;
  }
  return 1;
}

std::string_view unit_name(Quantity quantity) {
  switch (quantity) {
    case Quantity::kCount:
      return "things";
    case Quantity::kBytes:
      return "bytes";
    case Quantity::kMicroseconds:
      return "microseconds";
    case Quantity::kMilliseconds:
      return "milliseconds";
  }
  return "";
}

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
char lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

bool same_word(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](char x, char y) { return lower(x) == lower(y); });
}

Status malformed(std::string_view text, Quantity quantity) {
  std::string message = "\"" + std::string(text) + "\" is not ";
  if (quantity == Quantity::kCount) return invalid_argument(message + "a whole number");
  message += "a number with one of the units";
  for (const Suffix& suffix : suffixes(quantity)) message.append(" ").append(suffix.text);
  return invalid_argument(message);
}

// digits [ "." digits ] as mantissa / 10^decimals, at most 18 digits in all.
struct Decimal {
  uint64_t mantissa = 0;
  uint64_t power = 1;
  size_t length = 0;  // characters read; 0: not a number
};

Decimal read_decimal(std::string_view text) {
  Decimal number;
  bool point = false;
  size_t digits = 0;
  for (char c : text) {
    if (c == '.' && !point && digits > 0) {
      point = true;
    } else if (is_digit(c) && digits < 18) {
      number.mantissa = number.mantissa * 10 + static_cast<uint64_t>(c - '0');
      if (point) number.power *= 10;
      ++digits;
    } else if (is_digit(c)) {
      return {};
    } else {
      break;
    }
    ++number.length;
  }
  if (number.length > 0 && text[number.length - 1] == '.') return {};
  return number;
}

// Length of the well-formed UTF-8 sequence at the front; 0: none, or a control character.
size_t sequence_length(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const size_t length = byte(0) < 0x80 ? 1 : byte(0) < 0xe0 ? 2 : byte(0) < 0xf0 ? 3 : 4;
  if (length == 1) return byte(0) < 0x20 || byte(0) == 0x7f ? 0 : 1;
  if (byte(0) < 0xc2 || byte(0) > 0xf4 || length > text.size()) return 0;
  if (byte(0) == 0xc2 && byte(1) < 0xa0) return 0;  // C1: terminals take some for commands
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  // Overlong forms, surrogates, beyond U+10FFFF.
  const unsigned first_two = byte(0) << 8 | byte(1);
  const bool overlong = (byte(0) == 0xe0 && byte(1) < 0xa0) || (byte(0) == 0xf0 && byte(1) < 0x90);
  return overlong || (first_two >= 0xeda0 && first_two <= 0xedbf) || first_two >= 0xf490 ? 0
                                                                                         : length;
}

}  // namespace

Result<uint64_t> parse_quantity(std::string_view text, Quantity quantity) {
  const Decimal number = read_decimal(text);
  const bool fraction_of_a_count = quantity == Quantity::kCount && number.power != 1;
  if (number.length == 0 || fraction_of_a_count) return malformed(text, quantity);
  std::string_view unit = text.substr(number.length);
  while (!unit.empty() && unit.front() == ' ') unit.remove_prefix(1);

  uint64_t factor = base(quantity);
  if (!unit.empty()) {
    const auto known = suffixes(quantity);
    const auto found = std::find_if(known.begin(), known.end(),
                                    [&](const Suffix& s) { return same_word(s.text, unit); });
    if (found == known.end()) return malformed(text, quantity);
    factor = found->factor;
  }
  const auto scaled = static_cast<unsigned __int128>(number.mantissa) * factor;
  const auto divisor = static_cast<unsigned __int128>(number.power) * base(quantity);
  if (scaled % divisor != 0) {
    return invalid_argument("\"" + std::string(text) + "\" is not a whole number of " +
                            std::string(unit_name(quantity)));
  }
  const auto value = scaled / divisor;
  if (value > UINT64_MAX) return invalid_argument("\"" + std::string(text) + "\" is too large");
  return static_cast<uint64_t>(value);
}

std::string print_quantity(uint64_t value, Quantity quantity) {
  if (quantity == Quantity::kCount) return std::to_string(value);
  const uint64_t unit = base(quantity);
  for (const Suffix& suffix : suffixes(quantity)) {
    if (!suffix.printed || suffix.factor < unit) continue;
    const uint64_t units = suffix.factor / unit;
    if (units == 1 || (value != 0 && value % units == 0)) {
      return std::to_string(value / units) + " " + std::string(suffix.text);
    }
  }
  return std::to_string(value);
}

namespace {

Result<float> parse_positive(std::string_view text, float most, const char* most_text) {
  float value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  if (whole && value > 0.0f && value <= most) return value;
  return invalid_argument("\"" + std::string(text) + "\" is not a number above 0 and at most " +
                          most_text);
}

}  // namespace

Result<float> parse_share(std::string_view text) {
  return parse_positive(text, 1.0f, "1");
}

Result<float> parse_factor(std::string_view text) {
  return parse_positive(text, 1e6f, "1000000");
}

std::string print_share(float value) {
  char text[32];
  const auto [end, error] = std::to_chars(text, text + sizeof text, value);
  return error == std::errc() ? std::string(text, end) : std::string();
}

bool is_plain_text(std::string_view text) {
  while (!text.empty()) {
    const size_t length = sequence_length(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

std::string plain_text(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const size_t length = sequence_length(text);
    out += length == 0 ? "?" : text.substr(0, length);
    text.remove_prefix(std::max<size_t>(length, 1));
  }
  return out;
}

std::string plain_lines(std::string_view text) {
  std::string out;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    out += plain_text(text.substr(begin, end - begin));
    if (end < text.size()) out += '\n';
    begin = end + 1;
  }
  return out;
}

std::string json_quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (byte < 0x20) {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\u%04x", byte);
      out += escape;
    } else {
      out += c;
    }
  }
  return out + "\"";
}

std::string_view nearest(std::string_view word, std::span<const std::string_view> candidates) {
  std::string_view best;
  if (word.size() > 64) return best;
  size_t best_edits = word.size() < 5 ? 2 : 3;  // one more than allowed
  for (std::string_view candidate : candidates) {
    std::vector<size_t> row(candidate.size() + 1);
    std::iota(row.begin(), row.end(), 0);
    for (size_t i = 0; i < word.size(); ++i) {
      size_t diagonal = row[0];
      row[0] = i + 1;
      for (size_t j = 0; j < candidate.size(); ++j) {
        const size_t change = diagonal + (lower(word[i]) == lower(candidate[j]) ? 0 : 1);
        diagonal = row[j + 1];
        row[j + 1] = std::min({row[j] + 1, diagonal + 1, change});
      }
    }
    if (row.back() < best_edits) {
      best_edits = row.back();
      best = candidate;
    }
  }
  return best;
}

}  // namespace cgx::config
