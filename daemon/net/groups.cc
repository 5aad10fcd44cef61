#include "daemon/net/groups.h"

#include <grp.h>

#include <charconv>
#include <vector>

namespace cgx::daemon {

Result<gid_t> find_group(const std::string& key, const std::string& text) {
  if (text.empty()) return kNoGroup;
  gid_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error == std::errc() && end == text.data() + text.size()) return number;
  group entry{};
  group* found = nullptr;
  std::vector<char> buffer(16 * 1024);
  ::getgrnam_r(text.c_str(), &entry, buffer.data(), buffer.size(), &found);
  if (found != nullptr) return found->gr_gid;
  return Status(StatusCode::kNOT_FOUND,
                key + ": there is no group " + text + " on this machine (getent group lists them)");
}

}  // namespace cgx::daemon
