// Who changed what: one JSON line per attempt, granted or not, in the log and in a file of its own.
// What cannot be written down is not done, or, where that turns out too late, told to who did it.
// Thread rule: write() from anywhere.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "daemon/base/log.h"
#include "proto/wire/mutex.h"
#include "proto/wire/unique_fd.h"

namespace cgx::daemon {

struct AuditRecord {
  std::string caller;  // "uid 1000", "certificate alice@example.org"
  std::string action;  // "policy apply"
  std::string job, communicator;
  std::string reason;  // the caller's words
  Status result;
  uint64_t policy_version = 0, epoch = 0, switch_step = 0;
  std::vector<std::string> changes;  // "window: 4 -> 8"
};

constexpr uint64_t kAuditFileBytes = 16 << 20;

class AuditLog {
 public:
  // An empty path: the log only. The file is appended to, 0600; at `file_bytes_max` it is renamed
  // to PATH.1 and begun anew.
  static Result<std::unique_ptr<AuditLog>> open(const std::string& path, Log& log,
                                                uint64_t file_bytes_max = kAuditFileBytes);
  // Before a change: an error where no line could be written after it, as on a full disk.
  Status make_room();
  Status write(const AuditRecord& record);

 private:
  AuditLog(std::string path, Log& log, uint64_t file_bytes_max)
      : path_(std::move(path)), log_(log), file_bytes_max_(file_bytes_max) {}
  Status open_file() CGX_REQUIRES(mutex_);
  Status append(const std::string& line);
  Status cannot_write() const;

  const std::string path_;
  Log& log_;
  const uint64_t file_bytes_max_;
  Mutex mutex_;
  UniqueFd file_ CGX_GUARDED_BY(mutex_);
  uint64_t file_bytes_ CGX_GUARDED_BY(mutex_) = 0;
};

}  // namespace cgx::daemon
