// What a running daemon takes over from a changed configuration, and what waits for a restart.
// Thread rule: pure functions, but FilesAtStart looks at files.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/config.h"
#include "daemon/options.h"
#include "proto/messages/config.pb.h"

namespace cgx::daemon {

struct Reload {
  v1::Config effective;                      // the running configuration with what may change
  std::vector<config::KeyDifference> taken;  // over, with both values
  std::vector<std::string> waiting;          // keys that differ and count after a restart
};

// The configuration, read once more.
struct Written {
  v1::Config config;       // complete
  std::string file, text;  // empty: there is none
};

// An error where the file has lost keys, as one that was cut off or emptied: it says nothing, or
// nothing below a section, and values of the running configuration would go with that; or it no
// longer says that gradients travel exactly, and not how else.
Status check_whole(const v1::Config& running, const Written& written);

// What travels exactly by `running` and is compressed by `changed`: "policy.codec: fp32 -> fp16".
std::vector<std::string> made_lossy(const v1::Config& running, const v1::Config& changed);

// What is read at the start only, for keys and certificates.
class FilesAtStart {
 public:
  explicit FilesAtStart(const v1::Config& config);
  std::vector<std::string> changed() const;  // keys whose files are not those of then

 private:
  struct File {
    NamedFile named;
    uint64_t mark = 0;  // 0: there is none
  };
  std::vector<File> files_;
};

// Both are complete, as they came from the loader.
Reload plan_reload(const v1::Config& running, const v1::Config& changed);

}  // namespace cgx::daemon
