// Small texts: numbers as people write them ("4 MiB", "1.5 s", "20"), JSON strings, and the word
// somebody probably meant.
// Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "proto/wire/status.h"

namespace cgx::config {

enum class Quantity : uint8_t { kCount, kBytes, kMicroseconds, kMilliseconds };

// A plain number counts in the quantity's own unit; a suffix of the same kind may follow. The value
// must come out whole. kCount takes no suffix.
Result<uint64_t> parse_quantity(std::string_view text, Quantity quantity);

// The largest unit that divides the value: parse_quantity() reads it back unchanged.
std::string print_quantity(uint64_t value, Quantity quantity);

// A number above 0 and at most 1, and its shortest text that reads back unchanged.
Result<float> parse_share(std::string_view text);
std::string print_share(float value);
// Likewise, at most 1,000,000. print_share() prints it.
Result<float> parse_factor(std::string_view text);

// UTF-8 without control characters; plain_text() puts ? for every byte that is not, for names that
// come from clients: they must not forge log lines, make a gRPC answer unreadable or command a
// terminal. plain_lines() leaves the ends of lines.
bool is_plain_text(std::string_view text);
std::string plain_text(std::string_view text);
std::string plain_lines(std::string_view text);

// With quotation marks around it, as JSON.
std::string json_quoted(std::string_view text);

// The candidate within two edits (one for short words) of `word`; empty if none.
std::string_view nearest(std::string_view word, std::span<const std::string_view> candidates);

}  // namespace cgx::config
