#include "daemon/reload.h"

namespace cgx::daemon {

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
