// Checks of what callers pass, shared by tensors and calls, and the words of messages that several
// say. A message names argument, value and limit.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "proto/wire/session_messages.h"
#include "proto/wire/status.h"
#include "proto/wire/types.h"

namespace cgx::client {

// `what` names the tensor or call in the message.
Status check_types(const std::string& what, int dtype, int op);
Status check_aligned(const std::string& what, const void* memory, uint64_t element_bytes);
// The status of a check of one tensor's or call's memory, with what it was about put in front.
Status naming(const Status& status, const std::string& what, uint64_t elements, DType dtype);
// The product of the shape, or INVALID_ARGUMENT if that many elements do not fit in memory.
Result<uint64_t> elements_of(const std::string& what, std::span<const uint64_t> shape,
                             uint64_t element_bytes);

// All ranks have to fit in one packet.
Status check_members(const wire::CreateCommunicator& message);

std::string text(uint64_t number);
Status unavailable(std::string message);

}  // namespace cgx::client
