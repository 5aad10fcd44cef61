#include "proto/wire/bytes.h"

namespace cgx::wire {

void Writer::append(std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  const size_t at = bytes_.size();
  bytes_.resize(at + bytes.size());
  std::memcpy(bytes_.data() + at, bytes.data(), bytes.size());
}

}  // namespace cgx::wire
