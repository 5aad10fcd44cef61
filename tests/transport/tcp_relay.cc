#include "tests/transport/tcp_relay.h"

#include <gtest/gtest.h>
#include <linux/filter.h>
#include <sys/socket.h>

#include <cerrno>

namespace cgx::transport {
namespace {

constexpr size_t kSlowPiece = 1448;

}  // namespace

void let_in(int socket, bool in) {
  sock_filter code[] = {BPF_STMT(BPF_RET | BPF_K, in ? UINT32_MAX : 0)};
  const sock_fprog program{.len = std::size(code), .filter = code};
  EXPECT_EQ(::setsockopt(socket, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program), 0);
}

TcpRelay::TcpRelay(const SocketAddress& target) : target_(target) {
  Result<Socket> listener = listen_at("127.0.0.1", 0, 0, {});
  EXPECT_TRUE(listener.ok()) << listener.status().to_string();
  listener_ = std::move(*listener);
  door_ = own_address(listener_.get());
}

void TcpRelay::refuse_dials(bool refuse) {
  listener_ = Socket();
  if (refuse) return;
  const auto port = static_cast<uint16_t>(std::stoi(door_.text().substr(door_.host().size() + 1)));
  Result<Socket> listener = listen_at(door_.host(), port, port, {});
  ASSERT_TRUE(listener.ok()) << listener.status().to_string();
  listener_ = std::move(*listener);
}

std::vector<std::byte> address_of(const std::vector<SocketAddress>& doors) {
  std::vector<std::byte> blob = {static_cast<std::byte>(doors.size())};
  for (const SocketAddress& each : doors) {
    const std::string text = each.text();
    blob.push_back(static_cast<std::byte>(text.size()));
    for (const char letter : text) blob.push_back(static_cast<std::byte>(letter));
  }
  return blob;
}

std::vector<std::byte> TcpRelay::address() const {
  return address_of({door_});
}

void TcpRelay::pump() {
  accept_all();
  for (Pair& pair : pairs_) {
    if (pair.stalled) continue;
    carry(pair, Way::kToTarget);
    carry(pair, Way::kToDialer);
  }
  pairs_.remove_if([](const Pair& pair) { return pair.over; });
}

void TcpRelay::accept_all() {
  for (;;) {
    Socket dialer(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!dialer) return;
    Result<Socket> on = dial(target_, {});
    if (!on.ok()) continue;
    pairs_.push_back({.ends = {std::move(dialer), std::move(*on)}});
  }
}

void TcpRelay::carry(Pair& pair, Way way) {
  const int number = static_cast<int>(way);
  const int from = pair.ends[number].get(), to = pair.ends[1 - number].get();
  std::vector<std::byte>& waiting = pair.waiting[number];
  if (waiting.empty()) {
    if (bytes_per_second != 0 && std::chrono::steady_clock::now() < pair.next[number]) return;
    std::byte bytes[64 << 10];
    const size_t room = bytes_per_second == 0 ? sizeof bytes : kSlowPiece;
    const ssize_t got = ::recv(from, bytes, room, MSG_DONTWAIT);
    const bool none = got < 0 && (errno == EAGAIN || errno == ENOTCONN);
    pair.over |= got == 0 || (got < 0 && !none);
    if (got <= 0) return;
    if (bytes_per_second != 0) {
      pair.next[number] =
          std::chrono::steady_clock::now() +
          std::chrono::nanoseconds(1'000'000'000) * got / static_cast<int64_t>(bytes_per_second);
    }
    const std::span<std::byte> came(bytes, static_cast<size_t>(got));
    if (way == Way::kToTarget) heard_.insert(heard_.end(), came.begin(), came.end());
    if (tamper) tamper(way, offsets_[number], came);
    offsets_[number] += came.size();
    waiting.assign(came.begin(), came.end());
  }
  const ssize_t sent = ::send(to, waiting.data(), waiting.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent > 0) waiting.erase(waiting.begin(), waiting.begin() + sent);
  pair.over |= sent < 0 && errno != EAGAIN && errno != ENOTCONN && errno != EINPROGRESS;
}

void TcpRelay::cut() {
  pairs_.clear();
}

void TcpRelay::stall() {
  for (Pair& pair : pairs_) pair.stalled = true;
}

Socket connect_to(const SocketAddress& address) {
  Socket socket(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(::connect(socket.get(), address.get(), address.bytes), 0);
  return socket;
}

SocketAddress address_in(std::span<const std::byte> blob) {
  const std::string text(reinterpret_cast<const char*>(blob.data()) + 2,
                         static_cast<size_t>(blob[1]));
  const size_t space = text.find(' ');
  const auto port = static_cast<uint16_t>(std::stoi(text.substr(space + 1)));
  return *SocketAddress::parse(text.substr(0, space), port);
}

}  // namespace cgx::transport
