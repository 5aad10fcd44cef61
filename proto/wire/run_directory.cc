#include "proto/wire/run_directory.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace cgx {

std::string control_socket_beside(const std::string& socket) {
  const size_t slash = socket.rfind('/') + 1;
  const std::string name = socket.substr(slash);
  const std::string stem = name.substr(0, name.rfind(".sock"));
  return socket.substr(0, slash) +
         (name == kClientSocketName ? kControlSocketName : stem + "-" + kControlSocketName);
}

std::string refusal_path(const std::string& socket) {
  return socket + ".refused";
}

std::string read_refusal(const std::string& socket) {
  constexpr size_t kBytesMax = 1024;
  const int fd = ::open(refusal_path(socket).c_str(),
                        O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
  if (fd < 0) return {};
  struct stat info {};
  std::string text(kBytesMax, '\0');
  const bool plain = ::fstat(fd, &info) == 0 && S_ISREG(info.st_mode);
  const ssize_t bytes = plain ? ::read(fd, text.data(), text.size()) : 0;
  ::close(fd);
  text.resize(bytes > 0 ? static_cast<size_t>(bytes) : 0);
  while (!text.empty() && text.back() == '\n') text.pop_back();
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < ' ' || c == '\x7f') c = ' ';
  }
  return text;
}

std::string default_run_directory(uint32_t uid, const char* xdg_runtime_dir) {
  if (uid == 0) return kSystemRunDirectory;
  if (xdg_runtime_dir != nullptr && xdg_runtime_dir[0] == '/') {
    return std::string(xdg_runtime_dir) + "/cgxd";
  }
  return "/tmp/cgxd-" + std::to_string(uid);
}

Status check_run_directory(const std::string& path, uint32_t uid) {
  struct stat info {};
  if (lstat(path.c_str(), &info) != 0) {
    return {StatusCode::kNOT_FOUND, "run directory " + path + ": " + std::strerror(errno)};
  }
  if (!S_ISDIR(info.st_mode)) {
    return {StatusCode::kPERMISSION_DENIED, "run directory " + path + " is not a directory"};
  }
  const bool only_root_makes_it = path == kSystemRunDirectory;
  if (!only_root_makes_it && info.st_uid != 0 && info.st_uid != uid) {
    return {StatusCode::kPERMISSION_DENIED, "run directory " + path + " belongs to user " +
                                                std::to_string(info.st_uid) + ", not to user " +
                                                std::to_string(uid) + " or root"};
  }
  if ((info.st_mode & 022) != 0) {
    return {StatusCode::kPERMISSION_DENIED,
            "run directory " + path + " is writable by others than its owner"};
  }
  return Status();
}

}  // namespace cgx
