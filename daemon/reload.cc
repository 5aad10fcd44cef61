#include "daemon/reload.h"

#include <sys/stat.h>

#include <utility>

namespace cgx::daemon {
namespace {

// Another one for another file of the name, and for other contents.
uint64_t mark_of(const std::string& path) {
  struct stat found {};
  if (::stat(path.c_str(), &found) != 0) return 0;
  const auto changed_ns = static_cast<uint64_t>(found.st_mtim.tv_sec) * 1'000'000'000 +
                          static_cast<uint64_t>(found.st_mtim.tv_nsec);
  return changed_ns ^ (static_cast<uint64_t>(found.st_ino) << 40);
}

}  // namespace

FilesAtStart::FilesAtStart(const v1::Config& config) {
  for (NamedFile& file : secret_files(config)) {
    const uint64_t mark = mark_of(file.path);
    files_.push_back({std::move(file), mark});
  }
}

std::vector<std::string> FilesAtStart::changed() const {
  std::vector<std::string> keys;
  for (const File& file : files_) {
    if (mark_of(file.named.path) != file.mark) keys.push_back(file.named.key);
  }
  return keys;
}

Reload plan_reload(const v1::Config& running, const v1::Config& changed) {
  Reload reload{.effective = running, .taken = {}, .waiting = {}};
  config::take_reloaded(changed, reload.effective);
  reload.taken = config::diff(running, reload.effective);
  for (const config::KeyDifference& one : config::diff(reload.effective, changed)) {
    reload.waiting.push_back(one.key);
  }
  return reload;
}

}  // namespace cgx::daemon
