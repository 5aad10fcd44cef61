// The revision the programs were built from. Defined in a generated source of its own
// (cgx_revision), which only programs link, so that a commit compiles one line. Thread rule: pure.
#pragma once

#include <string>

namespace cgx {

const char* revision();  // "ed3209b5c0de", with "-modified" for a changed checkout; "" outside one

// "cgxd 0.1.0 (revision ed3209b5c0de)"
inline std::string program_text(const std::string& program, const std::string& version) {
  const std::string from = revision();
  return program + " " + version + (from.empty() ? "" : " (revision " + from + ")");
}

}  // namespace cgx
