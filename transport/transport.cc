#include "transport/transport.h"

namespace cgx::transport {

Status check_frame(const Caps& limits, const Frame& frame, SendToken token) {
  if (frame.header.size() > limits.header_bytes_max) {
    return invalid_argument("frame header has " + std::to_string(frame.header.size()) +
                            " bytes, limit " + std::to_string(limits.header_bytes_max));
  }
  if (frame.payload.size() > limits.frame_bytes_max) {
    return invalid_argument("frame payload has " + std::to_string(frame.payload.size()) +
                            " bytes, limit " + std::to_string(limits.frame_bytes_max));
  }
  if (token == kNoToken && !frame.payload.empty()) {
    return invalid_argument("a frame with payload needs a token");
  }
  return {};
}

}  // namespace cgx::transport
