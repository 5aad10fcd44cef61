// What proves who a daemon is where mesh.tls is configured. Thread rule: values.
#pragma once

#include <string>

namespace cgx::daemon {

struct MeshTls {  // PEM texts; all empty: no TLS
  std::string authority, certificate, key;
  bool empty() const { return authority.empty() && certificate.empty() && key.empty(); }
};

}  // namespace cgx::daemon
