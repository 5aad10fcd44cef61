// How many descriptors this process may have open. Every session, link and operator takes some, and
// service managers start a process with few (1,024) though they allow many.
// Thread rule: main; open_files() from anywhere.
#pragma once

#include <cstdint>

namespace cgx::daemon {

struct OpenFilesLimit {
  uint64_t before = 0;
  uint64_t now = 0;
};

// Now; `open` is 0 where /proc cannot be read.
struct OpenFiles {
  uint64_t open = 0;
  uint64_t limit = 0;
};
OpenFiles open_files();

// Whether a descriptor just opened lies in the reserve, the last 64 or an eighth of what may be
// open: the kernel gives out the lowest number, so few are left. The reserve is for links and for
// what serves those who are in already.
bool in_reserve(int fd);

// To the most this process may give itself (the hard limit).
OpenFilesLimit raise_open_files_limit();

// While it lives the limit is `limit.before` again: what a command started beside us inherits
// (programs that use select() count on few).
class OpenFilesAsBefore {
 public:
  explicit OpenFilesAsBefore(const OpenFilesLimit& limit);
  ~OpenFilesAsBefore();
  OpenFilesAsBefore(const OpenFilesAsBefore&) = delete;
  OpenFilesAsBefore& operator=(const OpenFilesAsBefore&) = delete;

 private:
  const OpenFilesLimit limit_;
};

}  // namespace cgx::daemon
