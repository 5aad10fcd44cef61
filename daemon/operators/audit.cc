#include "daemon/operators/audit.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <ctime>

#include "config/text.h"

namespace cgx::daemon {
namespace {

constexpr off_t kRoomBytes = 64 * 1024;  // more than the longest line
constexpr size_t kMessageBytes = 1024;
constexpr size_t kChangesBytes = 16 * 1024;

std::string wall_time() {
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  tm utc{};
  gmtime_r(&now.tv_sec, &utc);
  char text[40];
  const size_t length = std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &utc);
  std::snprintf(text + length, sizeof text - length, ".%03ldZ", now.tv_nsec / 1'000'000);
  return text;
}

std::string cut(const std::string& text, size_t bytes) {
  if (text.size() <= bytes) return text;
  return text.substr(0, bytes) + " (" + std::to_string(text.size() - bytes) + " bytes more)";
}

std::vector<std::string> cut(const std::vector<std::string>& texts, size_t bytes) {
  std::vector<std::string> kept;
  for (const std::string& text : texts) {
    kept.push_back(cut(text, bytes));
    bytes -= std::min(bytes, text.size() + 1);
    if (bytes > 0 || kept.size() == texts.size()) continue;
    kept.push_back(std::to_string(texts.size() - kept.size()) + " changes more");
    break;
  }
  return kept;
}

std::string quoted(const std::string& text) {
  return config::json_quoted(config::plain_text(text));
}

class JsonLine {
 public:
  void text(const char* key, const std::string& value) { raw(key, quoted(value)); }
  void number(const char* key, uint64_t value) { raw(key, std::to_string(value)); }
  void list(const char* key, const std::vector<std::string>& values) {
    std::string all;
    for (const std::string& value : values) {
      all += (all.empty() ? "" : ",") + quoted(value);
    }
    raw(key, "[" + all + "]");
  }
  std::string take() { return "{" + std::move(out_) + "}\n"; }

 private:
  void raw(const char* key, const std::string& value) {
    out_ += (out_.empty() ? "" : ",") + quoted(key) + ":" + value;
  }
  std::string out_;
};

std::string to_line(const AuditRecord& record) {
  JsonLine line;
  line.text("time", wall_time());
  line.text("caller", record.caller);
  line.text("action", record.action);
  line.text("job", cut(record.job, kAuditReasonBytes));
  line.text("communicator", cut(record.communicator, kAuditReasonBytes));
  line.text("reason", cut(record.reason, kAuditReasonBytes));
  line.text("result", std::string(status_name(record.result.code())));
  line.text("message", cut(record.result.message(), kMessageBytes));
  line.number("policy_version", record.policy_version);
  line.number("epoch", record.epoch);
  line.number("switch_step", record.switch_step);
  line.list("changes", cut(record.changes, kChangesBytes));
  return line.take();
}

}  // namespace

Status AuditFile::open() {
  const MutexLock lock(mutex_);
  return make_open();
}

// Somebody may have moved, removed or emptied the file of that name since.
Status AuditFile::make_open() {
  struct stat held {};
  struct stat named {};
  const bool holds = file_ && ::fstat(file_.get(), &held) == 0;
  const bool there = holds && ::lstat(path_.c_str(), &named) == 0;
  if (!there || held.st_dev != named.st_dev || held.st_ino != named.st_ino) {
    file_.reset(
        ::open(path_.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!file_ || ::fstat(file_.get(), &held) != 0) {
      return errno_status(StatusCode::kPERMISSION_DENIED, "cannot open the audit file " + path_);
    }
  }
  bytes_ = static_cast<uint64_t>(held.st_size);
  return {};
}

// A file that cannot be renamed grows on: what it says matters more than its size.
Status AuditFile::make_open_for(size_t bytes) {
  CGX_RETURN_IF_ERROR(make_open());
  if (bytes_ == 0 || bytes_ + bytes <= bytes_max_) return {};
  if (::rename(path_.c_str(), (path_ + ".1").c_str()) != 0) {
    log_.write(LogLevel::kError, "the audit file is too large and cannot be renamed",
               {{"file", path_}, {"bytes", bytes_}, {"cause", std::strerror(errno)}});
    return {};
  }
  return make_open();
}

Status AuditFile::cannot_write() const {
  return errno_status(StatusCode::kRESOURCE_EXHAUSTED,
                      "the audit file " + path_ + " cannot be written");
}

// Blocks behind the end of the file, which a full disk does not have.
Status AuditFile::make_room() {
  const MutexLock lock(mutex_);
  CGX_RETURN_IF_ERROR(make_open_for(std::min<uint64_t>(kRoomBytes, bytes_max_)));
  const auto end = static_cast<off_t>(bytes_);
  if (::fallocate(file_.get(), FALLOC_FL_KEEP_SIZE, end, kRoomBytes) == 0) return {};
  const bool disk_full = errno == ENOSPC || errno == EDQUOT || errno == EFBIG || errno == EIO;
  return disk_full ? cannot_write() : Status();  // else its file system cannot say
}

Status AuditFile::append(const std::string& line) {
  const MutexLock lock(mutex_);
  CGX_RETURN_IF_ERROR(make_open_for(line.size()));
  const ssize_t written = ::write(file_.get(), line.data(), line.size());
  if (written == static_cast<ssize_t>(line.size())) return {};
  const Status status = cannot_write();
  // Half a line would spoil the next one.
  if (written > 0 && ::ftruncate(file_.get(), static_cast<off_t>(bytes_)) != 0) {
    log_.write(LogLevel::kError, "the audit file ends with half a line", {{"file", path_}});
  }
  return status;
}

Result<std::unique_ptr<AuditLog>> AuditLog::open(const std::string& path, Log& log,
                                                 uint64_t file_bytes_max) {
  std::unique_ptr<AuditLog> audit(new AuditLog(path, log, file_bytes_max));
  if (!audit->keeps_) return audit;
  CGX_RETURN_IF_ERROR(audit->operators_.open());
  CGX_RETURN_IF_ERROR(audit->users_.open());
  return audit;
}

Status AuditLog::make_room(bool of_operator) {
  if (!keeps_) return {};
  return (of_operator ? operators_ : users_).make_room();
}

Status AuditLog::write(const AuditRecord& record) {
  log_.record("audit", {{"caller", record.caller},
                        {"action", record.action},
                        {"job", cut(record.job, kAuditReasonBytes)},
                        {"communicator", cut(record.communicator, kAuditReasonBytes)},
                        {"result", status_name(record.result.code())},
                        {"switch_step", record.switch_step}});
  if (!keeps_) return {};
  const Status status = (record.of_operator ? operators_ : users_).append(to_line(record));
  if (!status.ok()) log_.write(LogLevel::kError, status.message());
  return status;
}

}  // namespace cgx::daemon
