// What travels on a connection that has proved its key: records. Internal to transport/tcp*.
//
//   record  := RecordHead header payload       (header and payload are the caller's frame)
//
// A head is sealed by itself, so lengths are believed only from the peer. `voucher` covers what the
// head's own seal does not. Numbers count the frames of a link, from 1, over all its connections.
// Thread rule: values.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "proto/wire/status.h"
#include "transport/transport.h"

namespace cgx::transport {

constexpr uint32_t kTcpHeaderBytesMax = 512;

enum class RecordType : uint8_t { kFrame = 1, kAck = 2, kGoodbye = 3 };
using Voucher = std::array<std::byte, 16>;

struct RecordHead {
  uint32_t payload_bytes = 0;
  uint16_t header_bytes = 0;
  RecordType type = RecordType::kFrame;
  uint8_t reserved = 0;
  uint64_t number = 0;    // of this frame; else of the last one before
  uint64_t received = 0;  // the sender has taken in all frames up to this one
  Voucher voucher{};
  Voucher mac{};  // over all before it
};
static_assert(sizeof(RecordHead) == 56);
constexpr size_t kSealedHeadBytes = offsetof(RecordHead, mac);

// Whether the lengths and the type are possible at all.
Status check_record(const RecordHead& head);

}  // namespace cgx::transport
