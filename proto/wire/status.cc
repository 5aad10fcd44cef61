#include "proto/wire/status.h"

#include <cstdio>
#include <cstdlib>

namespace cgx {

std::string_view status_name(StatusCode code) {
  switch (static_cast<uint16_t>(code)) {
#define X(name, number, meaning) \
  case number:                   \
    return #name;
#include "proto/wire/status_codes.def"
#undef X
  }
  return "UNKNOWN";
}

std::string_view status_meaning(StatusCode code) {
  switch (static_cast<uint16_t>(code)) {
#define X(name, number, meaning) \
  case number:                   \
    return meaning;
#include "proto/wire/status_codes.def"
#undef X
  }
  return "a code of a newer protocol version";
}

std::string Status::to_string() const {
  std::string text(status_name(code_));
  if (!message_.empty()) text.append(": ").append(message_);
  return text;
}

Status invalid_argument(std::string message) {
  return {StatusCode::kINVALID_ARGUMENT, std::move(message)};
}
Status resource_exhausted(std::string message) {
  return {StatusCode::kRESOURCE_EXHAUSTED, std::move(message)};
}
Status protocol_error(std::string message) {
  return {StatusCode::kPROTOCOL_ERROR, std::move(message)};
}
Status internal_error(std::string message) {
  return {StatusCode::kINTERNAL, std::move(message)};
}

void assertion_failed(const char* expression, const char* file, int line) {
  std::fprintf(stderr, "cgxd: assertion failed: %s at %s:%d\n", expression, file, line);
  std::abort();
}

}  // namespace cgx
