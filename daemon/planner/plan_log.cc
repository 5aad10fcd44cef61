#include "daemon/planner/plan_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

namespace cgx::daemon {
namespace {

Status file_error(const char* what, const std::string& path) {
  return {StatusCode::kUNAVAILABLE, std::string(what) + " " + path + ": " + std::strerror(errno)};
}

constexpr int kFilesMax = 9999;  // of one name

int create_new(const std::string& path) {
  return ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0644);
}

// A daemon that was killed may have left a part of its last line.
Result<std::vector<scheduler::PlanEntry>> parse(const std::string& text) {
  Result<std::vector<scheduler::PlanEntry>> entries = scheduler::parse_plan_history(text);
  const size_t end = text.rfind('\n');
  if (entries.ok() || end == std::string::npos || end + 1 == text.size()) return entries;
  Result<std::vector<scheduler::PlanEntry>> whole =
      scheduler::parse_plan_history(text.substr(0, end + 1));
  return whole.ok() ? std::move(whole) : std::move(entries);
}

}  // namespace

Result<std::unique_ptr<PlanFile>> PlanFile::create(const std::string& wanted,
                                                   scheduler::EventSink& events) {
  std::string path = wanted;
  UniqueFd file(create_new(path));
  for (int next = 1; !file && errno == EEXIST && next <= kFilesMax; ++next) {
    path = wanted + "." + std::to_string(next);
    file.reset(create_new(path));
  }
  if (!file) return file_error("--record-plans: cannot create", path);
  if (path != wanted) {
    events.event(scheduler::EventLevel::kInfo,
                 "--record-plans: " + wanted + " is there already; plans are recorded in " + path);
  }
  std::unique_ptr<PlanFile> made(new PlanFile(path, std::move(file), events));
  CGX_RETURN_IF_ERROR(made->write(scheduler::kPlanHistoryHead));
  return made;
}

Result<std::shared_ptr<const std::vector<scheduler::PlanEntry>>> PlanFile::read(
    const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) return file_error("--replay-plans: cannot read", path);
  Result<std::vector<scheduler::PlanEntry>> entries = parse(text.str());
  if (!entries.ok()) {
    return Status(entries.status().code(),
                  "--replay-plans: " + path + ": " + entries.status().message());
  }
  return std::make_shared<const std::vector<scheduler::PlanEntry>>(*std::move(entries));
}

// The whole line or nothing of it.
Status PlanFile::write(std::string_view line) {
  for (std::string_view text = line; !text.empty();) {
    const ssize_t written = ::write(file_.get(), text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      const Status failed = file_error("--record-plans: cannot write", path_);
      (void)::ftruncate(file_.get(), static_cast<off_t>(bytes_));
      return failed;
    }
    text.remove_prefix(static_cast<size_t>(written));
  }
  bytes_ += line.size();
  return {};
}

void PlanFile::took_force(const scheduler::PlanEntry& entry) {
  record(scheduler::format_plan_entry(entry));
}

void PlanFile::looked_at(const scheduler::PlanRemark& remark) {
  record(scheduler::format_plan_remark(remark));
}

void PlanFile::record(const std::string& line) {
  if (!file_) return;
  const Status status = write(line);
  if (status.ok()) return;
  events_.event(scheduler::EventLevel::kError, status.message() + "; no more plans are recorded");
  file_ = UniqueFd();
}

}  // namespace cgx::daemon
