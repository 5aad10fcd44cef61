#include "client/environment.h"

#include <unistd.h>

#include <charconv>
#include <cstdlib>

#include "proto/wire/run_directory.h"

namespace cgx::client {
namespace {

constexpr char kMachineDir[] = "/run/cgxd";
constexpr char kSocketName[] = "/cgxd.sock";

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

Result<uint32_t> number(const char* name, uint32_t max) {
  const std::string text = variable(name);
  uint32_t value = 0;
  if (text.empty()) return value;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value > max) {
    return invalid_argument(std::string(name) + "=" + text + " must be a whole number from 0 to " +
                            std::to_string(max));
  }
  return value;
}

// A launcher's variable that cannot be read counts as not there.
uint32_t count(const char* name) {
  const std::string text = variable(name);
  uint32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() ? value : 0;
}

// torchrun's before Open MPI's before Slurm's: the innermost launcher knows best.
LauncherWords launcher_words() {
  LauncherWords words{.network = variable("CGX_NETWORK"),
                      .host = variable("MASTER_ADDR"),
                      .ranks = count("WORLD_SIZE"),
                      .local_ranks = count("LOCAL_WORLD_SIZE"),
                      .machines = 0};
  if (words.ranks == 0) {
    words.ranks = count("OMPI_COMM_WORLD_SIZE");
    words.local_ranks = count("OMPI_COMM_WORLD_LOCAL_SIZE");
  }
  if (words.ranks == 0) {
    words.machines = count("SLURM_NNODES");
    words.step_ranks = count("SLURM_STEP_NUM_TASKS");
    words.step_machines = count("SLURM_STEP_NUM_NODES");
  }
  if (words.host.empty()) words.host = host_of_uri(variable("OMPI_MCA_orte_hnp_uri"));
  if (words.host.empty()) words.host = variable("SLURM_LAUNCH_NODE_IPADDR");
  return words;
}

}  // namespace

Result<Environment> read_environment() {
  Environment result;
  result.uid = ::getuid();
  result.socket = variable("CGX_SOCKET");
  result.job = variable("CGX_JOB");
  result.leader = variable("CGX_LEADER");
  result.daemon_binary = variable("CGXD");
  result.path = variable("PATH");
  result.runtime_dir = default_run_directory(result.uid, std::getenv("XDG_RUNTIME_DIR"));
  result.launcher = launcher_words();
  CGX_ASSIGN_OR_RETURN(const uint32_t autostart, number("CGX_AUTOSTART", 1));
  result.autostart = autostart == 1;
  CGX_ASSIGN_OR_RETURN(result.spin_us, number("CGX_SPIN_US", kSpinUsMax));
  return result;
}

std::vector<std::string> candidate_sockets(const Environment& environment,
                                           const std::string& asked_for) {
  if (!asked_for.empty()) return {asked_for};
  if (!environment.socket.empty()) return {environment.socket};
  const std::string own = environment.runtime_dir + kSocketName;
  const std::string machine = std::string(kMachineDir) + kSocketName;
  if (own == machine) return {machine};
  return {own, machine};
}

Status check_runtime_dir(const std::string& directory, uint32_t uid) {
  const Status status = check_run_directory(directory, uid);
  return status.code() == StatusCode::kNOT_FOUND ? Status() : status;
}

}  // namespace cgx::client
