// Who changed what: one JSON line per attempt, granted or not, in the log and in a file of its own.
// What cannot be written down is not done, or, where that turns out too late, told to who did it.
// What users try has a second file: however much they try, what operators did is still there.
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
  bool of_operator = true;  // else of somebody who may change jobs of his own only
  std::string caller;       // "uid 1000", "certificate alice@example.org"
  std::string action;       // "policy apply"
  std::string job, communicator;
  std::string reason;  // the caller's words
  Status result;
  uint64_t policy_version = 0, epoch = 0, switch_step = 0;
  std::vector<std::string> changes;  // "window: 4 -> 8"
};

constexpr uint64_t kAuditFileBytes = 16 << 20;
constexpr size_t kAuditReasonBytes = 256;  // of the caller's words; what is longer is cut

// Lines of text, appended to the file of 0600 that has the name at the time; at `bytes_max` it is
// renamed to PATH.1 and begun anew.
class AuditFile {
 public:
  AuditFile(std::string path, Log& log, uint64_t bytes_max)
      : path_(std::move(path)), log_(log), bytes_max_(bytes_max) {}
  Status open();  // the others open it again where it was moved or removed
  Status make_room();
  Status append(const std::string& line);

 private:
  Status make_open() CGX_REQUIRES(mutex_);
  Status make_open_for(size_t bytes) CGX_REQUIRES(mutex_);
  Status cannot_write() const;

  const std::string path_;
  Log& log_;
  const uint64_t bytes_max_;
  Mutex mutex_;
  UniqueFd file_ CGX_GUARDED_BY(mutex_);
  uint64_t bytes_ CGX_GUARDED_BY(mutex_) = 0;  // as make_open() found it
};

class AuditLog {
 public:
  // An empty path: the log only. What users try is in PATH.users.
  static Result<std::unique_ptr<AuditLog>> open(const std::string& path, Log& log,
                                                uint64_t file_bytes_max = kAuditFileBytes);
  // Before a change: an error where no line could be written after it, as on a full disk.
  Status make_room(bool of_operator);
  Status write(const AuditRecord& record);

 private:
  AuditLog(const std::string& path, Log& log, uint64_t file_bytes_max)
      : keeps_(!path.empty()),
        log_(log),
        operators_(path, log, file_bytes_max),
        users_(path + ".users", log, file_bytes_max) {}

  const bool keeps_;
  Log& log_;
  AuditFile operators_, users_;
};

}  // namespace cgx::daemon
