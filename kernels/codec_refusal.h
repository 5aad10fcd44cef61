// How checks of codecs say no: codec, parameter, and why.
#pragma once

#include <string>

#include "kernels/codec.h"

namespace cgx::kernels {

inline Status refuse(const CodecRow& row, const std::string& parameter, const std::string& why) {
  return invalid_argument("codec " + std::string(row.name) + ": " + parameter + " " + why);
}

}  // namespace cgx::kernels
