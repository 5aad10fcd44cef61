#include "config/effective.h"

#include <unistd.h>

#include <cstdlib>

#include "proto/wire/run_directory.h"

namespace cgx::config {

void resolve_paths(v1::Config& config) {
  if (config.run_directory().empty()) {
    config.set_run_directory(default_run_directory(geteuid(), std::getenv("XDG_RUNTIME_DIR")));
  }
  const std::string directory = config.run_directory() + "/";
  if (config.client().socket().empty()) {
    config.mutable_client()->set_socket(directory + kClientSocketName);
  }
  if (config.control().socket().empty()) {
    config.mutable_control()->set_socket(directory + kControlSocketName);
  }
}

}  // namespace cgx::config
