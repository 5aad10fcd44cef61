#include "daemon/check_machine.h"

#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "config/config.h"
#include "daemon/daemon.h"
#include "daemon/net/groups.h"
#include "daemon/net/interfaces.h"
#include "daemon/net/reach.h"
#include "daemon/net/tcp_listener.h"
#include "daemon/options.h"
#include "daemon/transports.h"
#include "proto/wire/unique_fd.h"
#include "transport/transport.h"

namespace cgx::daemon {
namespace {

// For a transport that is only made to see whether it can be.
class Unheard final : public transport::Events {
 public:
  void on_frame(transport::PeerId, const transport::Frame&) override {}
  void on_sent(transport::PeerId, transport::SendToken, const Status&) override {}
  void on_peer_down(transport::PeerId, const Status&) override {}
};

class Findings {
 public:
  void add(const std::string& key, const std::string& text) {
    lines_ += (lines_.empty() ? "" : "\n") + (key.empty() ? "" : key + ": ") + text;
  }
  void add(const std::string& key, const Status& status) {
    if (!status.ok()) add(key, status.message());
  }
  Status status() const { return lines_.empty() ? Status() : invalid_argument(lines_); }

 private:
  std::string lines_;
};

void readable(const NamedFile& file, Findings& findings) {
  if (::access(file.path.c_str(), R_OK) == 0) return;
  findings.add(file.key, file.path + ": " + std::strerror(errno));
}

bool is_closed_but_to_root(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 && info.st_uid == 0 &&
         (info.st_mode & (S_IRGRP | S_IROTH)) == 0;
}

bool is_open_to_all(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 && (info.st_mode & S_IROTH) != 0;
}

// The folder a file or socket will be made in; run_directory itself is made by the daemon.
void has_folder(const char* key, const std::string& path, const std::string& made,
                Findings& findings) {
  const std::string folder = path.substr(0, path.rfind('/'));
  if (path.empty() || folder.empty() || folder == made) return;
  if (::access(folder.c_str(), W_OK) != 0) findings.add(key, folder + ": " + std::strerror(errno));
}

void has_group(const char* key, const std::string& group, Findings& findings) {
  findings.add("", find_group(key, group).status());  // it names the key itself
}

// Some address of the host is this machine's; which port is free shows at the start.
Status is_own(const std::string& host) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_flags = AI_PASSIVE;
  hints.ai_socktype = SOCK_STREAM;
  const int code = ::getaddrinfo(host.c_str(), nullptr, &hints, &found);
  if (code != 0) return invalid_argument(host + ": " + ::gai_strerror(code));
  int error = EADDRNOTAVAIL;
  for (const addrinfo* one = found; one != nullptr && error != 0; one = one->ai_next) {
    const UniqueFd fd(::socket(one->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    error = fd && ::bind(fd.get(), one->ai_addr, one->ai_addrlen) == 0 ? 0 : errno;
  }
  ::freeaddrinfo(found);
  return error == 0 ? Status() : invalid_argument(host + ": " + std::strerror(error));
}

// A daemon with this configuration serves: its ports are rightly taken.
bool is_served(const v1::Config& config) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string& path = config.control().socket();
  if (path.size() >= sizeof address.sun_path) return false;
  path.copy(address.sun_path, path.size());
  const UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  return fd && ::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
}

// One that is free, or any.
void has_port(const std::string& key, const std::string& address, Findings& findings) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos || address.substr(colon + 1) == "0") return;
  const Status free = TcpListener::open(address, key).status();
  if (!free.ok()) findings.add("", free);
}

void check_ports(const v1::Config& config, Findings& findings) {
  if (is_served(config)) return;
  has_port("mesh.listen", config.mesh().listen(), findings);
  has_port("control.listen", config.control().listen(), findings);
  if (config.metrics().port() == 0) return;
  has_port("metrics.port",
           address_of(config.metrics().address(), static_cast<uint16_t>(config.metrics().port())),
           findings);
}

// What Daemon::start() asks of the address that other machines are told.
Status check_mesh(const v1::Mesh& mesh) {
  CGX_ASSIGN_OR_RETURN(
      const NetworkList trusted,
      NetworkList::parse({mesh.trusted_networks().begin(), mesh.trusted_networks().end()}));
  const std::string host = host_of(mesh.listen());
  if (!mesh.advertise().empty() || host.empty()) return {};
  return check_listen(numeric_host(host), trusted);
}

void has_address(const char* key, const std::string& address, Findings& findings) {
  if (address.empty()) return;
  std::string host = address.substr(0, address.rfind(':'));
  if (host.size() > 2 && host.front() == '[') host = host.substr(1, host.size() - 2);
  findings.add(key, is_own(host));
}

void check_files(const v1::Config& config, Findings& findings) {
  for (const NamedFile& file : secret_files(config)) readable(file, findings);
  const std::string& made = config.run_directory();
  has_folder("client.socket", config.client().socket(), made, findings);
  has_folder("control.socket", config.control().socket(), made, findings);
  has_folder("control.audit_file", config.control().audit_file(), made, findings);
}

void check_devices(const v1::Config& config, Findings& findings) {
  const auto& transports = config.transport().ucx_transports();
  const bool only_tcp =
      config.transport().name() == "tcp" || (transports.size() == 1 && transports[0] == "tcp");
  for (const std::string& device : config.transport().devices()) {
    const bool here = !only_tcp || ::if_nametoindex(device.c_str()) != 0;
    if (!here) findings.add("transport.devices", "this machine has no interface " + device);
  }
}

void check_congestion_control(const std::string& name, Findings& findings) {
  if (name.empty()) return;
  const UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const auto length = static_cast<socklen_t>(name.size());
  if (::setsockopt(fd.get(), IPPROTO_TCP, TCP_CONGESTION, name.data(), length) == 0) return;
  findings.add("transport.congestion_control",
               name + ": " + std::strerror(errno) +
                   "; net.ipv4.tcp_available_congestion_control lists what there is, "
                   "net.ipv4.tcp_allowed_congestion_control what this user may have");
}

// Its sockets and devices.
Status check_transport_here(const v1::Config& config) {
  CGX_ASSIGN_OR_RETURN(TransportChoice transport, choose_transport(config));
  if (is_served(config)) return {};
  Unheard events;
  return transport.make(events).status();
}

}  // namespace

Status check_machine(const v1::Config& config) {
  Findings findings;
  check_files(config, findings);
  has_group("client.socket_group", config.client().socket_group(), findings);
  has_group("control.socket_group", config.control().socket_group(), findings);
  has_group("control.operators_group", config.control().operators_group(), findings);
  check_devices(config, findings);
  check_congestion_control(config.transport().congestion_control(), findings);
  has_address("mesh.listen", config.mesh().listen(), findings);
  has_address("control.listen", config.control().listen(), findings);
  if (config.metrics().port() != 0) {
    findings.add("metrics.address", is_own(config.metrics().address()));
  }
  if (!findings.status().ok()) return findings.status();
  CGX_ASSIGN_OR_RETURN(const DaemonOptions options, daemon_options(config));  // reads the files
  // A daemon that serves was let start; its cores need not be those of whoever asks.
  if (!is_served(config)) CGX_RETURN_IF_ERROR(Daemon::check(options));
  CGX_RETURN_IF_ERROR(check_mesh(config.mesh()));
  check_ports(config, findings);
  CGX_RETURN_IF_ERROR(findings.status());
  return check_transport_here(config);
}

std::vector<std::string> secrets_warnings(const v1::Config& config, const std::string& file) {
  std::vector<std::string> warnings;
  v1::Config written;  // without what the command line says
  if (!file.empty() && config::load_file(file, {}, written).ok() &&
      !written.mesh().cluster_key().empty() && is_open_to_all(file)) {
    warnings.push_back("mesh.cluster_key: every user of this machine can read " + file +
                       "; mesh.key_file names a file that they cannot");
  }
  for (const NamedFile& each : secret_files(config)) {
    if (::geteuid() != 0 || !is_closed_but_to_root(each.path)) continue;
    warnings.push_back(each.key + ": root can read " + each.path +
                       "; the service cannot if its unit gives it another user (User=)");
  }
  return warnings;
}

}  // namespace cgx::daemon
