// One packet at a time over a SOCK_SEQPACKET Unix socket, with descriptors. Never blocks.
// Thread rule: none of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <vector>

#include "proto/wire/unique_fd.h"

namespace cgx::daemon {

struct Packet {
  std::vector<std::byte> bytes;
  std::vector<UniqueFd> fds;
};

enum class ReceiveOutcome : uint8_t { kPacket, kNothing, kClosed };

constexpr size_t kPacketFdsMax = 2;  // what any message of a client carries

// What receive_packet() would take, without taking it: descriptors stay where they are. The end of
// the connection is plain.
enum class NextPacket : uint8_t { kNone, kPlain, kWithDescriptors };
NextPacket next_packet(int socket);

// kPROTOCOL_ERROR: larger than `bytes_max`, or more descriptors than `fds_max`.
// kRESOURCE_EXHAUSTED: no room for a descriptor. Whatever comes of it, all descriptors that were
// sent and had room are in `packet.fds`: closing one may block, so that is the caller's to place.
// REQUIRES: where a stranger has sent some, there is room; else the kernel closes them here.
Result<ReceiveOutcome> receive_packet(int socket, size_t bytes_max, Packet& packet,
                                      size_t fds_max = kPacketFdsMax);

// kUNAVAILABLE: the other side has gone or does not read.
Status send_packet(int socket, std::span<const std::byte> bytes,
                   std::initializer_list<int> fds = {});

}  // namespace cgx::daemon
