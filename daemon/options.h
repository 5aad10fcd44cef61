// From the configuration's words to what the daemon's parts take: the one place that knows both.
// Thread rule: pure but for reading key files and the group database; call before any thread
// exists.
#pragma once

#include "daemon/daemon.h"
#include "proto/messages/config.pb.h"

namespace cgx::daemon {

// `config` is complete: config::fill_defaults() and resolve_paths() have run, check() passed.
Result<DaemonOptions> daemon_options(const v1::Config& config);
// What of it a reload takes over; reads no file.
Result<scheduler::Engine::Changes> changeable_options(const v1::Config& config);
// That mesh.network does not stand beside what it is to fill.
Status check_network(const v1::Config& config);
// mesh.network in the keys it stands for: mesh.trusted_networks, and mesh.listen where that is left
// as it is by default. Both read which interfaces this machine has.
Status resolve_network(v1::Config& config);

const char* version_text();    // "cgxd 0.1.0"
const char* version_number();  // "0.1.0"

// Certificates and keys: files that are read at the start. Those that the configuration names.
struct NamedFile {
  std::string key, path;
};
std::vector<NamedFile> secret_files(const v1::Config& config);

// Permission bits and group of a socket, as the configuration writes them.
Result<mode_t> socket_mode(const std::string& text);

}  // namespace cgx::daemon
