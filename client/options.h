// Option structs of cgx.h as callers of any age hand them over: their size first.
//
// Thread rule: pure. Invariants: no byte beyond the caller's size is read or written; what the
// caller does not know is zero, which means the default; what this library does not know is refused
// by name if it is set.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>
#include <type_traits>

#include "proto/wire/status.h"

namespace cgx::client {

// Of one struct: its name, and where the fields end that no caller can do without.
struct OptionsKind {
  const char* name;
  size_t bytes;        // as this library knows it
  size_t bytes_least;  // of the first version
};

// INVALID_ARGUMENT for a size no header ever had, UNIMPLEMENTED if bytes past `kind.bytes` are set.
Status check_size(const OptionsKind& kind, const void* options);

// The caller's struct as this library knows it.
template <typename Options>
Result<Options> known(const OptionsKind& kind, const Options* options) {
  // With padding the sizes of two versions could be the same.
  static_assert(std::has_unique_object_representations_v<Options> && sizeof(Options) % 8 == 0);
  CGX_RETURN_IF_ERROR(check_size(kind, options));
  Options result{};
  std::memcpy(&result, options, std::min(options->size, sizeof(result)));
  result.size = sizeof(result);
  return result;
}

// Stores a report in the caller's struct, as far as it reaches. Requires check_size().
template <typename Report>
void tell(const Report& report, Report* caller) {
  static_assert(std::has_unique_object_representations_v<Report> && sizeof(Report) % 8 == 0);
  const size_t size = caller->size;
  std::memcpy(caller, &report, std::min(size, sizeof(report)));
  caller->size = size;
}

}  // namespace cgx::client
