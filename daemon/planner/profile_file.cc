#include "daemon/planner/profile_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "proto/wire/unique_fd.h"

namespace cgx::daemon {
namespace {

using scheduler::KeptProfiles;

constexpr size_t kUnwrittenMax = 64;

Status failed(const std::string& what) {
  return {StatusCode::kUNAVAILABLE, what + ": " + std::strerror(errno)};
}

// Empty: there is none.
Result<std::string> read_file(const std::string& path) {
  UniqueFd file(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!file && errno == ENOENT) return std::string();
  struct stat found {};
  if (!file || ::fstat(file.get(), &found) != 0) return failed("it cannot be opened");
  if (!S_ISREG(found.st_mode) || found.st_uid != ::geteuid()) {
    return Status(StatusCode::kPERMISSION_DENIED, "it is not a file of this user");
  }
  const auto size = static_cast<uint64_t>(found.st_size);
  if (size > KeptProfiles::kTextMax) {
    return invalid_argument("it holds " + std::to_string(size) + " bytes, more than " +
                            std::to_string(KeptProfiles::kTextMax));
  }
  std::string text(size, '\0');
  size_t have = 0;
  while (have < size) {
    const ssize_t count = ::read(file.get(), text.data() + have, size - have);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return failed("it cannot be read");
    if (count == 0) break;
    have += static_cast<size_t>(count);
  }
  text.resize(have);
  return text;
}

Result<KeptProfiles> read_profiles(const std::string& path) {
  CGX_ASSIGN_OR_RETURN(const std::string text, read_file(path));
  return text.empty() ? KeptProfiles() : KeptProfiles::parse(text);
}

Status write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return failed("it cannot be written");
    text.remove_prefix(static_cast<size_t>(written));
  }
  return ::fsync(fd) == 0 ? Status() : failed("it cannot be written");
}

// One daemon after the other changes the file: those of one user share a run directory.
Result<UniqueFd> lock_file(const std::string& path) {
  constexpr int kTries = 50;
  constexpr timespec kBetween{.tv_sec = 0, .tv_nsec = 10'000'000};
  const std::string beside = path + ".lock";
  UniqueFd lock(::open(beside.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!lock) return failed("it cannot be made");
  for (int i = 0; ::flock(lock.get(), LOCK_EX | LOCK_NB) != 0; ++i) {
    if (i == kTries) return failed("another daemon is writing it");
    ::nanosleep(&kBetween, nullptr);
  }
  return lock;
}

// Whoever reads the path finds the old text or the new one, never a part. REQUIRES: the lock.
Status replace_file(const std::string& path, std::string_view text) {
  const std::string beside = path + ".new";
  constexpr int kFlags = O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC;
  UniqueFd file(::open(beside.c_str(), kFlags, 0600));
  if (!file) return failed("it cannot be made");
  CGX_RETURN_IF_ERROR(write_all(file.get(), text));
  return std::rename(beside.c_str(), path.c_str()) == 0 ? Status() : failed("it cannot be named");
}

}  // namespace

ProfileFile::ProfileFile(std::string path, scheduler::EventSink& events)
    : path_(std::move(path)), events_(events) {
  Result<KeptProfiles> found = read_profiles(path_);
  if (found.ok()) {
    profiles_ = *std::move(found);
    return;
  }
  events_.event(scheduler::EventLevel::kWarning,
                "plans that were kept in " + path_ + " are left out: " + found.status().message());
}

void ProfileFile::kept(const scheduler::KeptFor& whose, const scheduler::Profile& profile) {
  change([whose, profile](KeptProfiles& profiles) { profiles.keep(whose, profile); });
}

void ProfileFile::forgotten(const scheduler::KeptFor& whose) {
  change([whose](KeptProfiles& profiles) { profiles.forget(whose); });
}

// Of what is there now: other daemons may have kept plans since.
void ProfileFile::change(Change what) {
  const bool said = !unwritten_.empty();
  if (unwritten_.size() == kUnwrittenMax) unwritten_.pop_front();
  unwritten_.push_back(std::move(what));
  const Result<UniqueFd> lock = lock_file(path_);
  Result<KeptProfiles> found = lock.ok() ? read_profiles(path_) : lock.status();
  const Status reading = found.status();
  const bool of_others = reading.code() == StatusCode::kPERMISSION_DENIED;
  if (found.ok()) profiles_ = *std::move(found);
  for (const Change& each : unwritten_) each(profiles_);
  const Status status = !lock.ok()  ? lock.status()
                        : of_others ? reading
                                    : replace_file(path_, profiles_.to_text());
  if (!status.ok() && !said) {
    events_.event(scheduler::EventLevel::kWarning,
                  "plans are not kept in " + path_ + ": " + status.message());
  }
  if (status.ok()) unwritten_.clear();
}

}  // namespace cgx::daemon
