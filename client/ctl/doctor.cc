#include "client/ctl/doctor.h"

#include <fcntl.h>
#include <grp.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "client/ctl/program.h"
#include "proto/device/driver.h"
#include "proto/messages/config.pb.h"
#include "proto/wire/run_directory.h"

namespace cgx::ctl {
namespace {

constexpr const char kUsualConfiguration[] = "/etc/cgxd/cgxd.yaml";
// As the unit starts the daemon that reads it, whoever asks.
constexpr const char kServiceDirectory[] = "run_directory=/run/cgxd";
constexpr const char kServiceSocket[] = "/run/cgxd/control.sock";
constexpr double kLookTimeoutS = 14;

std::string host_name() {
  char name[256] = "";
  ::gethostname(name, sizeof(name) - 1);
  return name;
}

std::string octal(mode_t mode) {
  char text[8];
  std::snprintf(text, sizeof text, "%04o", mode & 0777);
  return text;
}

// Empty: there is none.
std::string beside_daemon(const std::string& program) {
  const std::string daemon = daemon_program();
  const std::string path = daemon.substr(0, daemon.rfind('/') + 1) + program;
  return ::access(path.c_str(), X_OK) == 0 ? path : "";
}

// Which ways of memory to a worker this driver and the first GPU offer to who asks. What the daemon
// may open, and whether its worker was built as this program was, only a job shows.
std::string ways_text(const device::Driver& driver) {
  const Status kernels = driver.takes_kernels_of(CGX_CUDA_VERSION);
  if (!kernels.ok()) return "; gradients there are staged: " + kernels.message() + "\n";
  device::CUdevice first = 0;
  const auto has = [&](device::CUdevice_attribute attribute) {
    int value = 0;
    return driver.cuDeviceGet(&first, 0) == device::CUDA_SUCCESS &&
           driver.cuDeviceGetAttribute(&value, attribute, first) == device::CUDA_SUCCESS &&
           value != 0;
  };
  const Status vmm = driver.lacks(device::Feature::kVmm), ipc = driver.lacks(device::Feature::kIpc);
  const bool descriptors =
      vmm.ok() && has(device::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);
  const bool some = descriptors || ipc.ok();
  std::string text =
      some ? "; cgxd-gpu could take gradients there " : "; gradients there are staged";
  if (some) text += descriptors ? "by descriptor (vmm)" : "by handle (ipc)";
  if (!descriptors) text += vmm.ok() ? ", the GPU has no descriptors" : ", " + vmm.message();
  if (!some) text += ", " + ipc.message();
  if (some) text += ", if it was built with nvcc and the daemon may open the GPU";
  return text + "\n";
}

// What becomes of gradients in the memory of a GPU here. No finding: jobs without a GPU run anyway.
std::string gpu_line() {
  const Result<device::Driver> driver = device::Driver::open();
  if (!driver.ok()) return "GPU: none is used, " + driver.status().message() + "\n";
  int count = 0;
  const Status counted = driver->check(driver->cuDeviceGetCount(&count), "counting GPUs");
  if (!counted.ok()) return "GPU: none is used, " + counted.message() + "\n";
  const std::string worker = beside_daemon("cgxd-gpu");
  const bool mps = device::mps_serves(std::getenv("CUDA_MPS_PIPE_DIRECTORY"));
  return "GPU: " + std::to_string(count) + ", driver for CUDA " + driver->version_text() +
         ", MPS " +
         (mps ? "on, for one user at a time: trainers must be the daemon's"
              : "off, so trainers and cgxd-gpu take turns on a GPU: slower") +
         (worker.empty() ? "; no cgxd-gpu beside cgxd: gradients there go through pinned memory\n"
                         : ways_text(*driver));
}

// Where this machine's daemon serves, and what is wrong with its configuration.
struct Places {
  std::string clients, operators;  // sockets; empty: not known
};

class Doctor {
 public:
  Doctor(const Options& options, const Environment& environment)
      : options_(options), environment_(environment), machine_(host_name()) {}

  int run() {
    check_configuration();
    ask_daemon();
    check_trainers_socket();
    const int written = print(report_, options_, [this](const v1::Diagnosis& shown) {
      return show(shown) + show_findings(shown) + gpu_line() + show_gpus(status_);
    });
    return written != kOk ? written : report_.findings().empty() ? kOk : kError;
  }

 private:
  void find(const std::string& key, const std::string& text) {
    v1::Finding& finding = *report_.add_findings();
    finding.set_machine(machine_);
    finding.set_key(key);
    finding.set_text(text);
  }

  // By the program that has to start with it.
  void check_configuration() {
    const bool of_service = options_.config_file.empty();
    const std::string file = of_service ? kUsualConfiguration : options_.config_file;
    const bool there = ::access(file.c_str(), of_service ? F_OK : R_OK) == 0;
    if (!there && !of_service) return find("--config", file + ": " + std::strerror(errno));
    if (!there) return;
    std::vector<std::string> command{daemon_program(), "--config", file};
    if (of_service) command.insert(command.end(), {"--set", kServiceDirectory});
    const Result<Ended> checked = run_program(with(command, "--check-config"));
    if (!checked.ok()) return find("", checked.status().message());
    if (checked->status != 0) add_lines(checked->error);
    const Result<Ended> printed = run_program(with(command, "--print-config"));
    v1::Config config;
    if (!printed.ok() || printed->status != 0 ||
        !config::load_text(printed->out, file, {}, config).ok()) {
      return;
    }
    // Where every cgxctl looks; the user's own daemon goes first there.
    if (of_service && config.control().socket() == kServiceSocket) return;
    places_ = {config.client().socket(), config.control().socket()};
  }

  static std::vector<std::string> with(std::vector<std::string> command, const char* option) {
    command.emplace_back(option);
    return command;
  }

  void add_lines(const std::string& text) {
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = std::min(text.find('\n', begin), text.size());
      *report_.add_findings() = finding_of(machine_, text.substr(begin, end - begin));
      begin = end + 1;
    }
  }

  void ask_daemon() {
    Address address = options_.address;
    if (address.text.empty()) address.text = environment_.control;
    if (address.text.empty()) address.text = places_.operators;
    if (places_.clients.empty()) places_.clients = beside(address.text);
    Result<Connection> connection = connect(address, environment_);
    if (!connection.ok()) return find_no_daemon(connection.status());
    if (places_.clients.empty()) places_.clients = beside(connection->address);
    v1::DiagnoseRequest request;
    for (const std::string& peer : options_.peers) request.add_peers(peer);
    request.set_linked(options_.peers.empty());
    Caller caller(*std::move(connection), options_);
    v1::Diagnosis seen;
    const grpc::Status status =
        caller.call(&v1::Control::Stub::Diagnose, request, seen, kLookTimeoutS);
    if (!status.ok()) return find("", caller.why(status));
    drop_denials();
    report_.MergeFrom(seen);
    // Only to say more: a daemon that answers no status has said why above.
    static_cast<void>(
        caller.call(&v1::Control::Stub::GetStatus, v1::GetStatusRequest(), status_, kReadTimeoutS));
  }

  // The daemon that answers has read what this user may not.
  void drop_denials() {
    auto& findings = *report_.mutable_findings();
    for (int i = findings.size() - 1; i >= 0; --i) {
      if (findings[i].text().ends_with(": Permission denied")) findings.DeleteSubrange(i, 1);
    }
  }

  void find_no_daemon(const Status& why) {
    const bool kept_out = why.message().find("Permission denied") != std::string::npos;
    find(kept_out ? "control.socket_mode" : "control.socket", why.message());
    const std::string refusal = places_.clients.empty() ? "" : read_refusal(places_.clients);
    if (!refusal.empty()) {
      v1::Finding finding = finding_of(machine_, refusal);
      finding.set_text("the last daemon did not start: " + finding.text());
      *report_.add_findings() = finding;
    }
  }

  // Trainers need to write to it; a connection made to try that would be logged as a rude one.
  void check_trainers_socket() {
    const std::string socket =
        environment_.client_socket.empty() ? places_.clients : environment_.client_socket;
    struct stat info {};
    if (socket.empty() || ::stat(socket.c_str(), &info) != 0) {
      if (report_.has_here()) find("client.socket", "no trainers' socket at " + socket);
      return;
    }
    if (::faccessat(AT_FDCWD, socket.c_str(), W_OK, AT_EACCESS) == 0) return;
    const group* const owner = ::getgrgid(info.st_gid);
    find("client.socket_mode",
         "user " + std::to_string(::geteuid()) + " may not train here: " + socket + " is " +
             octal(info.st_mode) + " of group " +
             (owner != nullptr ? owner->gr_name : std::to_string(info.st_gid)) +
             "; client.socket_group and client.socket_mode say who may");
  }

  // The trainers' socket lies beside the operators'.
  static std::string beside(std::string control) {
    if (control.starts_with("unix:")) control.erase(0, 5);
    if (!control.starts_with("/")) return {};
    const size_t slash = control.rfind('/') + 1;
    const std::string name = control.substr(slash);
    if (name == kControlSocketName) return control.substr(0, slash) + kClientSocketName;
    const size_t end = name.rfind(std::string("-") + kControlSocketName);
    return end == std::string::npos ? "" : control.substr(0, slash) + name.substr(0, end) + ".sock";
  }

  const Options& options_;
  const Environment& environment_;
  const std::string machine_;
  Places places_;
  v1::Diagnosis report_;
  v1::DaemonStatus status_;
};

}  // namespace

v1::Finding finding_of(const std::string& machine, const std::string& line) {
  std::string text = line;
  for (const char* prefix : {"cgxd: ", "INVALID_ARGUMENT: ", "UNAVAILABLE: "}) {
    if (text.starts_with(prefix)) text.erase(0, std::string(prefix).size());
  }
  v1::Finding finding;
  finding.set_machine(machine);
  const size_t colon = text.find(": ");
  const std::string key = text.substr(0, colon == std::string::npos ? 0 : colon);
  constexpr const char kKeyLetters[] = "abcdefghijklmnopqrstuvwxyz0123456789_.[]";
  const bool is_key = !key.empty() && key.find_first_not_of(kKeyLetters) == std::string::npos;
  finding.set_key(is_key ? key : "");
  finding.set_text(is_key ? text.substr(colon + 2) : text);
  return finding;
}

void add_doctor(CLI::App& app, Options& options, const Environment& environment, Run& run) {
  CLI::App& command = *app.add_subcommand(
      "doctor", "What would keep a job from running, by machine and key; exit 1 if anything would");
  command.add_option(
      "peer", options.peers,
      "Other machines, as host or host:port of their mesh.listen (without a port: that of the "
      "daemon here); default: those linked now");
  command.add_option("--config", options.config_file,
                     std::string("The daemon's configuration; default: ") + kUsualConfiguration);
  command.callback([&options, &environment, &run] {
    run = [&options, &environment] { return Doctor(options, environment).run(); };
  });
}

}  // namespace cgx::ctl
