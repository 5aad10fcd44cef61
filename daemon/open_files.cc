#include "daemon/open_files.h"

#include <sys/resource.h>

namespace cgx::daemon {
namespace {

void set_soft_limit(uint64_t files) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = files;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace

OpenFilesLimit raise_open_files_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return {};
  OpenFilesLimit result{limit.rlim_cur, limit.rlim_cur};
  limit.rlim_cur = limit.rlim_max;
  if (::setrlimit(RLIMIT_NOFILE, &limit) == 0) result.now = limit.rlim_cur;
  return result;
}

OpenFilesAsBefore::OpenFilesAsBefore(const OpenFilesLimit& limit) : limit_(limit) {
  set_soft_limit(limit_.before);
}

OpenFilesAsBefore::~OpenFilesAsBefore() {
  set_soft_limit(limit_.now);
}

}  // namespace cgx::daemon
