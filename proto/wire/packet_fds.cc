#include "proto/wire/packet_fds.h"

#include <cstring>

namespace cgx::wire {

void attach_fds(msghdr& message, std::span<char> room, std::span<const int> fds) {
  if (fds.empty()) return;
  CGX_ASSERT(CMSG_SPACE(fds.size_bytes()) <= room.size());
  message.msg_control = room.data();
  message.msg_controllen = CMSG_SPACE(fds.size_bytes());
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(fds.size_bytes());
  std::memcpy(CMSG_DATA(header), fds.data(), fds.size_bytes());
}

void take_fds(const msghdr& message, std::vector<UniqueFd>& fds) {
  auto* walked = const_cast<msghdr*>(&message);
  for (cmsghdr* each = CMSG_FIRSTHDR(walked); each != nullptr; each = CMSG_NXTHDR(walked, each)) {
    if (each->cmsg_level != SOL_SOCKET || each->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (each->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(each) + i * sizeof(int), sizeof(int));
      fds.emplace_back(fd);
    }
  }
}

}  // namespace cgx::wire
