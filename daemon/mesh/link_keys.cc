#include "daemon/mesh/link_keys.h"

#include <algorithm>

namespace cgx::daemon {
namespace {

constexpr size_t kKeptMax = 1024;

}  // namespace

void LinkKeys::keep(const JobOwner& of, const LinkKey& key) {
  const MutexLock lock(mutex_);
  const KeyId id = key.id();
  std::erase_if(kept_, [&](const Kept& one) { return one.of == of && one.id == id; });
  kept_.push_front({of, id, key});
  if (kept_.size() > kKeptMax) kept_.pop_back();
}

std::optional<LinkKey> LinkKeys::newest(const JobOwner& of) const {
  const MutexLock lock(mutex_);
  const auto found =
      std::find_if(kept_.begin(), kept_.end(), [&](const Kept& one) { return one.of == of; });
  if (found == kept_.end()) return std::nullopt;
  return found->key;
}

std::optional<LinkKey> LinkKeys::find(const JobOwner& of, const KeyId& id) const {
  const MutexLock lock(mutex_);
  const auto found = std::find_if(kept_.begin(), kept_.end(),
                                  [&](const Kept& one) { return one.of == of && one.id == id; });
  if (found == kept_.end()) return std::nullopt;
  return found->key;
}

}  // namespace cgx::daemon
