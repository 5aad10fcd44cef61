#include "client/ctl/connection.h"

#include <grpcpp/grpcpp.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>

#include "proto/wire/run_directory.h"

namespace cgx::ctl {
namespace {

constexpr int kAnswerBytesMax = 256 << 20;  // tensor lists of large models

Status unavailable(const std::string& what) {
  return {StatusCode::kUNAVAILABLE, what};
}

// gRPC would only say "connection failed"; this says why. An untouched connection is not junk.
Status probe(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) {
    return invalid_argument("socket path " + path + " is longer than " +
                            std::to_string(sizeof address.sun_path - 1) + " bytes");
  }
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int result = ::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address);
  const int error = errno;
  ::close(fd);
  if (result == 0) return {};
  const char* const rights = error == EACCES ? " (its group may: control.socket_group)" : "";
  return unavailable(path + ": " + std::strerror(error) + rights);
}

Status probe_default(const std::string& path, const Environment& environment) {
  const std::string directory = path.substr(0, path.rfind('/'));
  const Status trusted = check_run_directory(directory, environment.uid);
  if (trusted.code() == StatusCode::kPERMISSION_DENIED) return unavailable(trusted.message());
  return probe(path);
}

Connection open(const std::string& target, const std::shared_ptr<grpc::ChannelCredentials>& with) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kAnswerBytesMax);
  return {target, v1::Control::NewStub(grpc::CreateCustomChannel(target, with, arguments))};
}

Connection open_unix(const std::string& path) {
  return open("unix:" + path, grpc::InsecureChannelCredentials());
}

Result<std::string> read_file(const char* option, const std::string& path) {
  if (path.empty()) {
    return invalid_argument(std::string("a host:port address needs ") + option +
                            ": there is no TCP without TLS");
  }
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  if (text.empty()) return invalid_argument(std::string(option) + ": cannot read " + path);
  return text;
}

Result<Connection> open_tls(const Address& address) {
  grpc::SslCredentialsOptions options;
  CGX_ASSIGN_OR_RETURN(options.pem_root_certs, read_file("--ca", address.ca_file));
  CGX_ASSIGN_OR_RETURN(options.pem_cert_chain,
                       read_file("--certificate", address.certificate_file));
  CGX_ASSIGN_OR_RETURN(options.pem_private_key, read_file("--key", address.key_file));
  return open(address.text, grpc::SslCredentials(options));
}

bool exists(const std::string& path) {
  return ::access(path.c_str(), F_OK) == 0;
}

// A daemon with its control socket elsewhere is looked for elsewhere; one that is gone is not, as
// another one would answer.
bool lies_beside(const std::string& control, const std::string& trainers) {
  return exists(control) || !exists(trainers);
}

Result<Connection> open_named(const std::string& path, const char* by) {
  const Status reached = probe(path);
  if (reached.ok()) return open_unix(path);
  if (reached.code() != StatusCode::kUNAVAILABLE) return reached;
  return unavailable(std::string("no daemon answers at the socket of ") + by + ", " +
                     reached.message());
}

Result<Connection> open_default(const Environment& environment) {
  const std::string& trainers = environment.client_socket;
  const std::string control = control_socket_beside(trainers);
  if (!trainers.empty() && lies_beside(control, trainers)) {
    return open_named(control, "operators beside CGX_SOCKET's");
  }
  std::string tried;
  for (const std::string& path : default_sockets(environment)) {
    const Status status = probe_default(path, environment);
    if (status.ok()) return open_unix(path);
    tried += "\n  " + status.message();
  }
  return unavailable(
      "no daemon answers here; start one (systemctl start cgxd, or cgxd for yourself), or name one "
      "with --address; tried" +
      tried);
}

}  // namespace

std::vector<std::string> default_sockets(const Environment& environment) {
  const std::string name = std::string("/") + kControlSocketName;
  const std::string own =
      default_run_directory(environment.uid, environment.xdg_runtime_dir.c_str());
  if (own == kSystemRunDirectory) return {own + name};
  return {own + name, kSystemRunDirectory + name};
}

Result<Connection> connect(const Address& address, const Environment& environment) {
  Address wanted = address;
  if (wanted.text.empty()) wanted.text = environment.control;
  if (wanted.text.empty()) return open_default(environment);
  if (wanted.text.starts_with("unix:")) wanted.text.erase(0, 5);
  if (wanted.text.starts_with("/")) {
    return open_named(wanted.text, address.text.empty() ? "CGX_CONTROL" : "--address");
  }
  if (wanted.text.find(':') == std::string::npos) {
    return invalid_argument("address \"" + wanted.text +
                            "\" is neither a path (/run/cgxd/control.sock) nor host:port");
  }
  return open_tls(wanted);
}

}  // namespace cgx::ctl
