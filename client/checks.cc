#include "client/checks.h"

#include "client/include/cgx/cgx.h"
#include "proto/wire/types.h"

namespace cgx::client {

Status check_types(const std::string& what, int dtype, int op) {
  if (dtype < 0 || dtype > UINT8_MAX || !dtype_known(static_cast<uint8_t>(dtype))) {
    return invalid_argument(what + ": dtype " + std::to_string(dtype) + " is not an element type");
  }
  if (op != CGX_SUM && op != CGX_AVG) {
    return invalid_argument(what + ": op " + std::to_string(op) + " must be CGX_SUM or CGX_AVG");
  }
  const auto type = static_cast<DType>(dtype);
  if (op == CGX_AVG && !dtype_is_small_float(type) && type != DType::kF64) {
    return invalid_argument(what + ": avg is defined for floating types, not for " +
                            std::string(dtype_name(type)));
  }
  return {};
}

Status check_aligned(const std::string& what, const void* memory, uint64_t element_bytes) {
  if (reinterpret_cast<uintptr_t>(memory) % element_bytes == 0) return {};
  return invalid_argument(what + " is not aligned to its elements of " +
                          std::to_string(element_bytes) + " bytes");
}

Status naming(const Status& status, const std::string& what, uint64_t elements, DType dtype) {
  return {status.code(), what + " of " + std::to_string(elements) + " " +
                             std::string(dtype_name(dtype)) + ": " + status.message()};
}

Result<uint64_t> elements_of(const std::string& what, std::span<const uint64_t> shape,
                             uint64_t element_bytes) {
  uint64_t elements = 1, bytes = 0;
  for (const uint64_t dim : shape) {
    if (__builtin_mul_overflow(elements, dim, &elements)) elements = UINT64_MAX;
  }
  if (__builtin_mul_overflow(elements, element_bytes, &bytes) || bytes > UINT64_MAX / 2) {
    return invalid_argument(what + ": its shape has more elements than 2^63 bytes hold");
  }
  return elements;
}

Status check_members(const wire::CreateCommunicator& message) {
  const size_t bytes = wire::encode_packet(message, 0).size();
  if (bytes <= wire::kSessionPacketBytesMax) return {};
  wire::CreateCommunicator empty = message;
  empty.members.clear();
  const size_t head = wire::encode_packet(empty, 0).size();
  const size_t ranks = message.members.size();
  const size_t most = (wire::kSessionPacketBytesMax - head) * ranks / (bytes - head);
  return resource_exhausted("communicator " + message.name + " has " + text(ranks) +
                            " ranks; with addresses like those of their daemons there can be " +
                            text(most));
}

std::string text(uint64_t number) {
  return std::to_string(number);
}

Status unavailable(std::string message) {
  return {StatusCode::kUNAVAILABLE, std::move(message)};
}

}  // namespace cgx::client
