#include "daemon/net/reach.h"

#include <fcntl.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <netdb.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <string_view>

#include "daemon/net/interfaces.h"
#include "daemon/net/networks.h"
#include "proto/wire/unique_fd.h"

namespace cgx::daemon {
namespace {

struct FreeAddresses {
  void operator()(addrinfo* list) const { ::freeaddrinfo(list); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

Addresses resolve(const std::string& host, const std::string& port, int flags) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_flags = flags;
  hints.ai_socktype = SOCK_STREAM;
  return Addresses(::getaddrinfo(host.c_str(), port.c_str(), &hints, &found) == 0 ? found
                                                                                  : nullptr);
}

// Of the first; empty: there is none.
std::string text_of(const Addresses& found) {
  if (!found) return {};
  char text[NI_MAXHOST] = "";
  ::getnameinfo(found->ai_addr, found->ai_addrlen, text, sizeof text, nullptr, 0, NI_NUMERICHOST);
  return text;
}

// Where a listening socket is bound; empty: it is none, or not TCP's.
std::string bound_to(int fd) {
  int listening = 0;
  socklen_t bytes = sizeof listening;
  sockaddr_storage address{};
  socklen_t address_bytes = sizeof address;
  if (::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &bytes) != 0 || listening == 0 ||
      ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &address_bytes) != 0 ||
      (address.ss_family != AF_INET && address.ss_family != AF_INET6)) {
    return {};
  }
  char host[NI_MAXHOST] = "", port[NI_MAXSERV] = "0";
  ::getnameinfo(reinterpret_cast<const sockaddr*>(&address), address_bytes, host, sizeof host, port,
                sizeof port, NI_NUMERICHOST | NI_NUMERICSERV);
  return address_of(host, static_cast<uint16_t>(std::strtoul(port, nullptr, 10)));
}

// Nothing: it is none.
std::optional<uint16_t> port_of(std::string_view address) {
  const std::string_view text = address.substr(address.rfind(':') + 1);
  uint16_t port = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), port);
  const bool all = parsed.ec == std::errc() && parsed.ptr == text.data() + text.size();
  return all ? std::optional(port) : std::nullopt;
}

bool is_among(const std::string& host, const std::vector<std::string>& networks) {
  const Result<NetworkList> list = NetworkList::parse(networks);
  return list.ok() && list->contains(host);
}

// What is bound to no address answers at all of them.
bool answers_at(const std::string& bound, const std::string& host) {
  return is_among(host, {bound == "0.0.0.0" ? "0.0.0.0/0" : bound == "::" ? "::/0" : bound});
}

// Looked at where a question needs them, and once.
class OwnListeners {
 public:
  // Looks through this process's descriptors only where the host is this machine.
  bool contain(const std::string& address) {
    const std::string host = host_of(address);
    const std::optional<uint16_t> port = port_of(address);
    if (!port) return true;
    const bool any = is_among(host, {"0.0.0.0", "::"});  // taken for the loopback's
    if (!any && !is_of_this_machine(host)) return false;
    if (!listeners_) listeners_ = own_listeners({});
    return std::any_of(listeners_->begin(), listeners_->end(), [&](const std::string& each) {
      return port_of(each) == port && (any || answers_at(host_of(each), host));
    });
  }

 private:
  bool is_of_this_machine(const std::string& host) {
    if (NetworkList::loopback().contains(host)) return true;
    if (!interfaces_) interfaces_ = interface_addresses();
    return std::any_of(interfaces_->begin(), interfaces_->end(),
                       [&](const InterfaceAddress& each) { return is_among(host, {each.host}); });
  }

  std::optional<std::vector<std::string>> listeners_;
  std::optional<std::vector<InterfaceAddress>> interfaces_;
};

}  // namespace

Status reach(const std::string& host, uint16_t port, int timeout_ms) {
  const Addresses to = resolve(host, std::to_string(port), AI_NUMERICHOST);
  if (!to) return invalid_argument(host + " is no address");
  const UniqueFd fd(::socket(to->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return errno_status(StatusCode::kUNAVAILABLE, "socket");
  int error = ::connect(fd.get(), to->ai_addr, to->ai_addrlen) == 0 ? 0 : errno;
  if (error == EINPROGRESS) {
    pollfd entry{.fd = fd.get(), .events = POLLOUT, .revents = 0};
    if (::poll(&entry, 1, timeout_ms) <= 0) {
      return Status(StatusCode::kTIMED_OUT,
                    "no answer within " + std::to_string(timeout_ms) + " ms");
    }
    socklen_t bytes = sizeof error;
    ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &bytes);
  }
  return error == 0 ? Status() : Status(StatusCode::kUNAVAILABLE, std::strerror(error));
}

std::vector<std::string> own_listeners(const std::vector<uint16_t>& but) {
  std::vector<std::string> found;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", ignored)) {
    const std::string name = entry.path().filename().string();
    int fd = -1;
    std::from_chars(name.data(), name.data() + name.size(), fd);
    const std::string address = fd < 0 ? std::string() : bound_to(fd);
    if (address.empty()) continue;
    const auto port = std::strtoul(address.c_str() + address.rfind(':') + 1, nullptr, 10);
    if (std::find(but.begin(), but.end(), port) == but.end()) found.push_back(address);
  }
  return found;
}

bool is_own_listener(const std::string& address) {
  return own_listener_check()(address);
}

std::function<bool(const std::string& address)> own_listener_check() {
  return [own = std::make_shared<OwnListeners>()](const std::string& address) {
    return own->contain(address);
  };
}

double line_rate(const std::string& address) {
  const std::string host = host_of(address.substr(0, address.find(',')));
  const Addresses to = resolve(host, "9", AI_NUMERICHOST);
  if (!to) return 0;
  const UniqueFd fd(::socket(to->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_storage own{};
  socklen_t bytes = sizeof own;
  // Nothing is sent: connecting a datagram socket only chooses the way.
  if (!fd || ::connect(fd.get(), to->ai_addr, to->ai_addrlen) != 0 ||
      ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&own), &bytes) != 0) {
    return 0;
  }
  char text[NI_MAXHOST] = "";
  ::getnameinfo(reinterpret_cast<const sockaddr*>(&own), bytes, text, sizeof text, nullptr, 0,
                NI_NUMERICHOST);
  for (const auto& [interface, at] : interface_addresses()) {
    if (at != text) continue;
    ethtool_cmd link{};
    link.cmd = ETHTOOL_GSET;
    ifreq request{};
    interface.copy(request.ifr_name, sizeof request.ifr_name - 1);
    request.ifr_data = reinterpret_cast<char*>(&link);
    if (::ioctl(fd.get(), SIOCETHTOOL, &request) != 0) return 0;
    const uint32_t megabits = ethtool_cmd_speed(&link);
    return megabits == 0 || megabits == static_cast<uint32_t>(SPEED_UNKNOWN) ? 0
                                                                             : megabits * 1e6 / 8;
  }
  return 0;
}

std::string numeric_host(const std::string& host) {
  return text_of(resolve(host, "", 0));
}

std::string numeric_address(const std::string& address) {
  return text_of(resolve(address, "", AI_NUMERICHOST));
}

}  // namespace cgx::daemon
