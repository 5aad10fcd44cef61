#include "daemon/notify.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <string>

#include "proto/wire/unique_fd.h"

namespace cgx::daemon {

void notify_manager(std::string_view state) {
  const char* path = std::getenv("NOTIFY_SOCKET");
  sockaddr_un address{};
  if (path == nullptr || std::string_view(path).size() >= sizeof(address.sun_path)) return;
  address.sun_family = AF_UNIX;
  const size_t bytes = std::string_view(path).copy(address.sun_path, sizeof(address.sun_path) - 1);
  if (address.sun_path[0] == '@') address.sun_path[0] = '\0';  // an abstract name
  const UniqueFd socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + bytes);
  ::sendto(socket.get(), state.data(), state.size(), MSG_NOSIGNAL,
           reinterpret_cast<const sockaddr*>(&address), length);
}

uint64_t watchdog_ns() {
  const auto number = [](const char* text) -> uint64_t {
    return text == nullptr ? 0 : std::strtoull(text, nullptr, 10);
  };
  const uint64_t pid = number(std::getenv("WATCHDOG_PID"));
  if (pid != 0 && pid != static_cast<uint64_t>(::getpid())) return 0;
  return number(std::getenv("WATCHDOG_USEC")) * 1'000;
}

}  // namespace cgx::daemon
