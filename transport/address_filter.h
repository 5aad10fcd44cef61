// Which addresses reach a listening TCP socket, judged by the system before anybody here reads a
// byte.
//
// Thread rule: pure functions.
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace cgx::transport {

// The addresses that begin with the first `bits` of this one. IPv4 is written as ::ffff:a.b.c.d.
struct AddressRange {
  std::array<uint8_t, 16> address{};
  unsigned bits = 0;
};

// Packets from other addresses are dropped from now on: a SYN is not even answered. What the socket
// accepts inherits that. Returns 0 or errno.
int admit_only(int listener, std::span<const AddressRange> ranges);
// What was accepted from a listener needs its filter no more.
void admit_all(int accepted);

}  // namespace cgx::transport
