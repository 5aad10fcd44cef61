// How many descriptors this process may have open. Every session, link and operator takes some, and
// service managers start a process with few (1,024) though they allow many.
// Thread rule: main.
#pragma once

#include <cstdint>

namespace cgx::daemon {

struct OpenFilesLimit {
  uint64_t before = 0;
  uint64_t now = 0;
};

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
