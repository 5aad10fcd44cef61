// A Unix socket name that only one daemon serves at a time.
//
// Invariants: the directory is ours and not writable by others; a lock file beside the socket
// arbitrates, and a stale socket is removed only while holding it; both are removed on close, but
// not if they are another daemon's by then.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

#include "daemon/net/groups.h"
#include "proto/wire/unique_fd.h"

namespace cgx::daemon {

struct FileId {
  dev_t device;
  ino_t inode;
  bool operator==(const FileId&) const = default;
};
std::optional<FileId> file_at(const std::string& path);  // a link itself

struct ListenSocketOptions {
  std::string path;
  mode_t mode = 0660;
  gid_t group = kNoGroup;  // the daemon's own
  std::string group_key;   // of the configuration, which says the group
  int type = 0;            // SOCK_SEQPACKET for sessions
};

// Why a daemon did not start, for those who look for its socket; it must not matter if that cannot
// be written.
void leave_refusal(const std::string& socket, const std::string& why);
void forget_refusal(const std::string& socket);
std::string served_by_another(const std::string& socket);  // "process 17"; empty: by none

class ListenSocket {
 public:
  // ALREADY_EXISTS names the process that serves the path.
  static Result<ListenSocket> open(const ListenSocketOptions& options);
  ListenSocket(ListenSocket&&) noexcept = default;
  ListenSocket& operator=(ListenSocket&&) = delete;
  ~ListenSocket() { close(); }

  int fd() const { return socket_.get(); }
  const std::string& path() const { return path_; }
  void close();  // removes socket and lock file where they are still its own

 private:
  ListenSocket(std::string path, UniqueFd lock) : path_(std::move(path)), lock_(std::move(lock)) {}

  std::string path_;
  UniqueFd lock_;
  UniqueFd socket_;
  std::optional<FileId> bound_;  // the socket's file
};

// Makes the socket's directory if it is missing (0755 for root, 0700 for others) and checks that
// nobody else could replace the socket in it.
Status prepare_directory(const std::string& path);

}  // namespace cgx::daemon
