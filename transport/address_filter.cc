#include "transport/address_filter.h"

#include <linux/filter.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <vector>

namespace cgx::transport {
namespace {

using Program = std::vector<sock_filter>;  // classic BPF

constexpr uint32_t kNetworkHeader = static_cast<uint32_t>(SKF_NET_OFF);
constexpr uint32_t kSource4 = kNetworkHeader + 12, kSource6 = kNetworkHeader + 8;
constexpr unsigned kMappedBits = 96;  // ::ffff:0:0/96 is IPv4
constexpr uint32_t kWhole = ~0u;

uint32_t word_of(const AddressRange& range, unsigned index) {
  uint32_t word = 0;
  for (unsigned i = 0; i < 4; ++i) word = word << 8 | range.address[4 * index + i];
  return word;
}

uint32_t mask_of(unsigned bits) {
  return bits == 0 ? 0 : kWhole << (32 - std::min(bits, 32u));
}

// Words from `first` on are compared with what stands at `at`; all alike: the packet is taken.
void compare(Program& program, const AddressRange& range, unsigned first, uint32_t at) {
  const unsigned words = (std::max(range.bits, 32 * first) - 32 * first + 31) / 32;
  for (unsigned i = 0; i < words; ++i) {
    const uint32_t mask = mask_of(range.bits - 32 * (first + i));
    const auto rest = static_cast<uint8_t>(3 * (words - 1 - i) + 1);  // until the next range
    program.push_back(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, at + 4 * i));
    program.push_back(BPF_STMT(BPF_ALU | BPF_AND | BPF_K, mask));
    program.push_back(
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, word_of(range, first + i) & mask, 0, rest));
  }
  program.push_back(BPF_STMT(BPF_RET | BPF_K, kWhole));
}

// Whether it holds IPv4 addresses: all of them, or some.
bool covers_ipv4(const AddressRange& range) {
  static constexpr uint8_t kMapped[kMappedBits / 8] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  for (unsigned bit = 0; bit < std::min(range.bits, kMappedBits); ++bit) {
    if ((range.address[bit / 8] ^ kMapped[bit / 8]) & 0x80u >> bit % 8) return false;
  }
  return true;
}

// In order: IPv4's ranges, nothing; IPv6's ranges, nothing.
Program program_of(std::span<const AddressRange> ranges) {
  Program four, six;
  for (const AddressRange& each : ranges) {
    if (covers_ipv4(each)) compare(four, each, kMappedBits / 32, kSource4);
    if (!covers_ipv4(each) || each.bits < kMappedBits) compare(six, each, 0, kSource6);
  }
  for (Program* const each : {&four, &six}) each->push_back(BPF_STMT(BPF_RET | BPF_K, 0));
  Program all = {BPF_STMT(BPF_LD | BPF_B | BPF_ABS, kNetworkHeader),
                 BPF_STMT(BPF_ALU | BPF_RSH | BPF_K, 4),
                 BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 4, 1, 0),
                 BPF_STMT(BPF_JMP | BPF_JA, static_cast<uint32_t>(four.size()))};
  all.insert(all.end(), four.begin(), four.end());
  all.insert(all.end(), six.begin(), six.end());
  return all;
}

}  // namespace

int admit_only(int listener, std::span<const AddressRange> ranges) {
  Program program = program_of(ranges);
  if (program.size() > BPF_MAXINSNS) return E2BIG;
  const sock_fprog filter{.len = static_cast<uint16_t>(program.size()), .filter = program.data()};
  const int result = ::setsockopt(listener, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof filter);
  return result == 0 ? 0 : errno;
}

void admit_all(int accepted) {
  const int unused = 0;
  (void)::setsockopt(accepted, SOL_SOCKET, SO_DETACH_FILTER, &unused, sizeof unused);
}

}  // namespace cgx::transport
