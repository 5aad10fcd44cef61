// How many descriptors this process may have open. Every session, link and operator takes some, and
// service managers start a process with few (1,024) though they allow many.
// Thread rule: main; open_files() and unread_descriptors() from anywhere.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

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

// How many wait in a Unix socket for being received; nothing: the kernel does not tell.
std::optional<size_t> unread_descriptors(int socket);

// Whether a descriptor just opened lies in the reserve, the last 64 or an eighth of what may be
// open: the kernel gives out the lowest number, so few are left. The reserve is for links and for
// what serves those who are in already.
bool in_reserve(int fd);
// Likewise: in the half of it that nobody takes who has not proved who they are.
bool in_last_half_of_reserve(int fd);

// Whether one more may come in. Where descriptors for it are not free outside the reserve, whoever
// comes waits a moment at the door: others may be about to let go of theirs. (A process that was
// stopped finds all who came and went meanwhile, and closing takes longer than accepting.) Where
// the moment was in vain, they are turned away until there is room again.
// Thread rule: as the door that owns it.
class Admission {
 public:
  enum class Answer : uint8_t { kLetIn, kWait, kTurnAway };

  static constexpr uint64_t kPatienceNs = 250'000'000;
  static constexpr uint64_t kLookAgainNs = 1'000'000;  // while somebody waits

  // `any`: an open descriptor, as that of the door. Who `is_in` already may take half of the
  // reserve.
  Answer ask(int any, uint64_t now_ns, size_t descriptors = 1, bool is_in = false);

 private:
  uint64_t waiting_since_ns_ = UINT64_MAX;  // and that: nobody waits
  bool in_vain_ = false;
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
