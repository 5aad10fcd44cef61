// How checks of codecs say no: codec, parameter, and why.
#pragma once

#include <charconv>
#include <string>

#include "kernels/codec.h"

namespace cgx::kernels {

// The fewest digits that say which float it is; 0.0001 rather than 1e-04.
inline std::string shortest(float value) {
  char text[32];
  const bool plain = value == 0 || (value >= 1e-6f && value < 1e7f);
  const auto format = plain ? std::chars_format::fixed : std::chars_format::general;
  return {text, std::to_chars(text, text + sizeof(text), value, format).ptr};
}

inline Status refuse(const CodecRow& row, const std::string& parameter, const std::string& why) {
  return invalid_argument("codec " + std::string(row.name) + ": " + parameter + " " + why);
}

}  // namespace cgx::kernels
