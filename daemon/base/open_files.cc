#include "daemon/base/open_files.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "proto/wire/unique_fd.h"

namespace cgx::daemon {
namespace {

constexpr rlim_t kReserveMax = 64;

void set_soft_limit(uint64_t files) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = files;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

// Whether `fd` is among the last of what may be open: of the reserve, or of a part of it.
bool is_among_last(int fd, rlim_t parts) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return false;
  const rlim_t reserve = std::min<rlim_t>(kReserveMax, limit.rlim_cur / 8);
  return static_cast<rlim_t>(fd) >= limit.rlim_cur - reserve / parts;
}

// Whether so many more may be opened, none of them `too_late`; `any` is one that is open.
bool has_room(int any, size_t descriptors, bool (*too_late)(int fd)) {
  std::vector<UniqueFd> next;
  while (next.size() < descriptors) {
    next.emplace_back(::fcntl(any, F_DUPFD_CLOEXEC, 0));
    if (!next.back() || too_late(next.back().get())) return false;
  }
  return true;
}

}  // namespace

OpenFilesLimit raise_open_files_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return {};
  OpenFilesLimit result{limit.rlim_cur, limit.rlim_cur};
  limit.rlim_cur = limit.rlim_max;
  if (::setrlimit(RLIMIT_NOFILE, &limit) == 0) result.now = limit.rlim_cur;
  return result;
}

OpenFiles open_files() {
  OpenFiles files;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0) files.limit = limit.rlim_cur;
  if (DIR* const folder = ::opendir("/proc/self/fd")) {
    while (const dirent* const entry = ::readdir(folder)) files.open += entry->d_name[0] != '.';
    ::closedir(folder);
    --files.open;  // the folder itself
  }
  return files;
}

std::optional<size_t> unread_descriptors(int socket) {
  const std::string path = "/proc/self/fdinfo/" + std::to_string(socket);
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  char text[512];
  const ssize_t bytes = file ? ::read(file.get(), text, sizeof(text)) : -1;
  if (bytes <= 0) return std::nullopt;
  const std::string all(text, static_cast<size_t>(bytes)), key = "\nscm_fds: ";
  const size_t at = all.find(key);
  if (at == all.npos) return std::nullopt;
  return std::strtoull(all.c_str() + at + key.size(), nullptr, 10);
}

bool in_reserve(int fd) {
  return is_among_last(fd, 1);
}

bool in_last_half_of_reserve(int fd) {
  return is_among_last(fd, 2);
}

Admission::Answer Admission::ask(int any, uint64_t now_ns, size_t descriptors, bool is_in) {
  if (has_room(any, descriptors, is_in ? in_last_half_of_reserve : in_reserve)) {
    waiting_since_ns_ = UINT64_MAX;
    in_vain_ = false;
    return Answer::kLetIn;
  }
  if (in_vain_) return Answer::kTurnAway;
  waiting_since_ns_ = std::min(waiting_since_ns_, now_ns);
  in_vain_ = now_ns - waiting_since_ns_ >= kPatienceNs;
  return in_vain_ ? Answer::kTurnAway : Answer::kWait;
}

OpenFilesAsBefore::OpenFilesAsBefore(const OpenFilesLimit& limit) : limit_(limit) {
  set_soft_limit(limit_.before);
}

OpenFilesAsBefore::~OpenFilesAsBefore() {
  set_soft_limit(limit_.now);
}

}  // namespace cgx::daemon
