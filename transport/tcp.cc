#include "transport/tcp.h"

#include "transport/tcp_transport.h"

namespace cgx::transport {

Result<TcpSeal> find_tcp_seal(std::string_view name) {
  for (const TcpSeal seal : {TcpSeal::kLink, TcpSeal::kFrame, TcpSeal::kEncrypt}) {
    if (tcp_seal_name(seal) == name) return seal;
  }
  return invalid_argument("\"" + std::string(name) + "\" is no seal: link, frame or encrypt");
}

std::string_view tcp_seal_name(TcpSeal seal) {
  switch (seal) {
    case TcpSeal::kLink:
      return "link";
    case TcpSeal::kFrame:
      return "frame";
    case TcpSeal::kEncrypt:
      return "encrypt";
  }
  return "";
}

Result<std::unique_ptr<Transport>> make_tcp_transport(const TcpOptions& options, Events& events) {
  auto transport = std::make_unique<TcpTransport>(options, events);
  CGX_RETURN_IF_ERROR(transport->open());
  return Result<std::unique_ptr<Transport>>(std::move(transport));
}

}  // namespace cgx::transport
