#include "transport/ucx.h"

#include "transport/ucx_transport.h"

namespace cgx::transport {

Result<std::unique_ptr<Transport>> make_ucx_transport(const UcxOptions& options, Events& events) {
  const std::set<int> before = listening_sockets();
  CGX_ASSIGN_OR_RETURN(UcxContext ucx, make_ucx_context(options));
  std::set<int> listening = listening_sockets();
  for (const int socket : before) listening.erase(socket);
  if (!options.admitted.empty()) {
    CGX_RETURN_IF_ERROR(admit_only(listening, options.admitted));
  }
  auto transport = std::make_unique<UcxTransport>(std::move(ucx), options, listening, events);
  CGX_RETURN_IF_ERROR(transport->open());
  return Result<std::unique_ptr<Transport>>(std::move(transport));
}

}  // namespace cgx::transport
