#include "transport/tcp_record.h"

namespace cgx::transport {

Status check_record(const RecordHead& head) {
  const bool known = head.type == RecordType::kFrame || head.type == RecordType::kAck ||
                     head.type == RecordType::kGoodbye;
  if (!known || head.reserved != 0) {
    return protocol_error("a record of type " + std::to_string(static_cast<unsigned>(head.type)));
  }
  const bool empty = head.payload_bytes == 0 && head.header_bytes == 0;
  const bool fits = head.payload_bytes <= kFrameBytesMax && head.header_bytes <= kTcpHeaderBytesMax;
  if (fits && (head.type == RecordType::kFrame || empty)) return {};
  return protocol_error("a record of " + std::to_string(head.header_bytes) + " and " +
                        std::to_string(head.payload_bytes) + " bytes");
}

}  // namespace cgx::transport
