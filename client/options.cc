#include "client/options.h"

#include "client/checks.h"

namespace cgx::client {
namespace {

constexpr size_t kOptionsBytesMax = 4096;  // of any struct there will ever be

}  // namespace

Status check_size(const OptionsKind& kind, const void* options) {
  size_t size = 0;
  std::memcpy(&size, options, sizeof(size));
  if (size < kind.bytes_least || size > kOptionsBytesMax || size % 8 != 0) {
    return invalid_argument(std::string(kind.name) + ".size is " + text(size) +
                            ", which no version of it has; set it to sizeof(" + kind.name +
                            "), which is " + text(kind.bytes) + " in this library's header");
  }
  const auto* const bytes = static_cast<const unsigned char*>(options);
  for (size_t i = kind.bytes; i < size; ++i) {
    if (bytes[i] == 0) continue;
    return {StatusCode::kUNIMPLEMENTED,
            std::string(kind.name) + " of " + text(size) + " bytes sets a field at byte " +
                text(i) + "; this library (" + CGX_VERSION_TEXT +
                ") is older than the program's cgx.h and " + "knows the first " + text(kind.bytes)};
  }
  return {};
}

}  // namespace cgx::client
