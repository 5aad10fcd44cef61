#include "daemon/operators/audit.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cstdio>
#include <ctime>

#include "config/text.h"

namespace cgx::daemon {
namespace {

constexpr off_t kRoomBytes = 64 * 1024;

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
  line.text("job", record.job);
  line.text("communicator", record.communicator);
  line.text("reason", record.reason);
  line.text("result", std::string(status_name(record.result.code())));
  line.text("message", record.result.message());
  line.number("policy_version", record.policy_version);
  line.number("epoch", record.epoch);
  line.number("switch_step", record.switch_step);
  line.list("changes", record.changes);
  return line.take();
}

}  // namespace

Result<std::unique_ptr<AuditLog>> AuditLog::open(const std::string& path, Log& log,
                                                 uint64_t file_bytes_max) {
  std::unique_ptr<AuditLog> audit(new AuditLog(path, log, file_bytes_max));
  if (path.empty()) return audit;
  {
    const MutexLock lock(audit->mutex_);
    CGX_RETURN_IF_ERROR(audit->open_file());
  }
  return audit;
}

Status AuditLog::open_file() {
  file_.reset(::open(path_.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  struct stat info {};
  if (!file_ || ::fstat(file_.get(), &info) != 0) {
    return errno_status(StatusCode::kPERMISSION_DENIED, "cannot open the audit file " + path_);
  }
  file_bytes_ = static_cast<uint64_t>(info.st_size);
  return {};
}

Status AuditLog::cannot_write() const {
  return errno_status(StatusCode::kRESOURCE_EXHAUSTED,
                      "the audit file " + path_ + " cannot be written");
}

// Blocks behind the end of the file, which a full disk does not have.
Status AuditLog::make_room() {
  if (path_.empty()) return {};
  const MutexLock lock(mutex_);
  if (!file_) CGX_RETURN_IF_ERROR(open_file());
  const auto end = static_cast<off_t>(file_bytes_);
  if (::fallocate(file_.get(), FALLOC_FL_KEEP_SIZE, end, kRoomBytes) == 0) return {};
  const bool disk_full = errno == ENOSPC || errno == EDQUOT || errno == EFBIG || errno == EIO;
  return disk_full ? cannot_write() : Status();  // else its file system cannot say
}

Status AuditLog::write(const AuditRecord& record) {
  log_.write(LogLevel::kInfo, "audit",
             {{"caller", record.caller},
              {"action", record.action},
              {"job", record.job},
              {"communicator", record.communicator},
              {"result", status_name(record.result.code())},
              {"switch_step", record.switch_step}});
  if (path_.empty()) return {};
  const Status status = append(to_line(record));
  if (!status.ok()) log_.write(LogLevel::kError, status.message());
  return status;
}

Status AuditLog::append(const std::string& line) {
  const MutexLock lock(mutex_);
  if (file_bytes_ + line.size() > file_bytes_max_) {
    ::rename(path_.c_str(), (path_ + ".1").c_str());
    CGX_RETURN_IF_ERROR(open_file());
  }
  const ssize_t written = ::write(file_.get(), line.data(), line.size());
  if (written == static_cast<ssize_t>(line.size())) {
    file_bytes_ += line.size();
    return {};
  }
  const Status status = cannot_write();
  // Half a line would spoil the next one.
  if (written > 0 && ::ftruncate(file_.get(), static_cast<off_t>(file_bytes_)) != 0) {
    file_bytes_ += static_cast<uint64_t>(written);
  }
  return status;
}

}  // namespace cgx::daemon
