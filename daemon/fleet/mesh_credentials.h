// gRPC credentials of the mesh. Thread rule: pure functions.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>

#include "daemon/fleet/mesh_tls.h"

namespace cgx::daemon {

inline std::shared_ptr<grpc::ServerCredentials> server_credentials(const MeshTls& tls) {
  if (tls.empty()) return grpc::InsecureServerCredentials();
  grpc::SslServerCredentialsOptions options(
      GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  options.pem_root_certs = tls.authority;
  options.pem_key_cert_pairs.push_back({tls.key, tls.certificate});
  return grpc::SslServerCredentials(options);
}

inline std::shared_ptr<grpc::ChannelCredentials> channel_credentials(const MeshTls& tls) {
  if (tls.empty()) return grpc::InsecureChannelCredentials();
  return grpc::SslCredentials({tls.authority, tls.key, tls.certificate});
}

}  // namespace cgx::daemon
