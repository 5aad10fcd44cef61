#include "proto/wire/frame.h"

#include <xxh_x86dispatch.h>

#include <cstring>

namespace cgx::wire {

uint64_t checksum(std::span<const std::byte> bytes) {
  return XXH3_64bits_dispatch(bytes.data(), bytes.size());
}

uint64_t checksum(std::span<const std::byte> bytes, uint64_t seed) {
  return XXH3_64bits_withSeed_dispatch(bytes.data(), bytes.size(), seed);
}

Checksum128 keyed_checksum(std::span<const std::byte> bytes, const ChecksumSecret& secret) {
  const XXH128_hash_t sum =
      XXH3_128bits_withSecret_dispatch(bytes.data(), bytes.size(), secret.data(), secret.size());
  return {sum.low64, sum.high64};
}

namespace {
uint64_t payload_sum(std::span<const std::byte> payload, PayloadCheck check) {
  return payload.empty() || check == PayloadCheck::kTransport ? 0 : checksum(payload);
}

uint64_t header_sum(FrameHeader header) {
  header.header_checksum = 0;
  return checksum(std::as_bytes(std::span(&header, 1)));
}
}  // namespace

void seal(FrameHeader& header, std::span<const std::byte> payload, PayloadCheck check) {
  header.length = static_cast<uint32_t>(payload.size());
  header.payload_checksum = payload_sum(payload, check);
  header.header_checksum = header_sum(header);
}

Result<FrameHeader> open_frame(std::span<const std::byte> bytes, std::span<const std::byte> payload,
                               PayloadCheck check) {
  FrameHeader header;
  if (bytes.size() != sizeof(header)) {
    return protocol_error("frame header of " + std::to_string(bytes.size()) +
                          " bytes instead of 128");
  }
  std::memcpy(static_cast<void*>(&header), bytes.data(), sizeof(header));
  if (header.magic != kFrameMagic) return protocol_error("frame without the cgx magic");
  if (header.header_checksum != header_sum(header)) {
    return Status(StatusCode::kCORRUPT, "frame header checksum differs");
  }
  if (header.version != kFrameVersion) {
    return Status(StatusCode::kVERSION_MISMATCH,
                  "frame of version " + std::to_string(header.version) + ", this daemon speaks " +
                      std::to_string(kFrameVersion));
  }
  if (header.length != payload.size()) {
    return Status(StatusCode::kCORRUPT, "frame payload of " + std::to_string(payload.size()) +
                                            " bytes, header says " + std::to_string(header.length));
  }
  if (header.payload_checksum != payload_sum(payload, check)) {
    return Status(StatusCode::kCORRUPT, "frame payload checksum differs");
  }
  return header;
}

}  // namespace cgx::wire
