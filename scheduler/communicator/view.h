// Who takes part in a term of a communicator: immutable, handed to the runners when the term starts
// and kept by them until the next. Machines are numbered in the order of their lowest rank, so
// machine 0 is the coordinator. A machine is a site: a daemon with ranks on several GPUs is as many
// machines, which stand beside each other.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "proto/wire/session_messages.h"

namespace cgx::scheduler {

struct View {
  std::string job, name;
  uint32_t uid = 0;
  std::string holder;  // who its shares count for
  uint64_t id = 0;     // in frames: the same on all machines, secret enough not to be guessed
  uint32_t term = 0;   // of the view; the communicator's own has the first one's
  uint32_t machine = 0;
  std::vector<uint32_t> machine_of_rank;
  std::vector<uint32_t> lowest_rank;        // per machine
  std::vector<wire::InstanceId> instances;  // per machine
  std::vector<std::string> addresses;       // per machine
  std::vector<wire::DeviceId> devices;      // per machine: its GPU; zero: the host

  uint32_t ranks() const { return static_cast<uint32_t>(machine_of_rank.size()); }
  uint32_t machines() const { return static_cast<uint32_t>(lowest_rank.size()); }
  bool coordinator() const { return machine == 0; }
  // Another site of this daemon.
  bool beside(uint32_t other) const {
    return other != machine && instances[other] == instances[machine];
  }
  bool alone() const {  // no other daemon takes part
    for (uint32_t k = 0; k < machines(); ++k) {
      if (k != machine && !beside(k)) return false;
    }
    return true;
  }

  bool one_of_several(uint32_t of_machine) const {  // its daemon has other sites, too
    return std::count(instances.begin(), instances.end(), instances[of_machine]) > 1;
  }

  // How many machines each daemon is, if they stand beside each other and are as many everywhere;
  // 0: they do not, are not, or are alone.
  uint32_t sites_each() const {
    uint32_t each = 0;
    while (each < machines() && instances[each] == instances.front()) ++each;
    if (each < 2 || machines() % each != 0) return 0;
    for (uint32_t k = 0; k < machines(); ++k) {
      if (instances[k] != instances[k / each * each]) return 0;
      if (k % each == 0 && k > 0 && instances[k] == instances[k - 1]) return 0;
    }
    return each;
  }

  std::string ranks_of(uint32_t of_machine) const {  // "rank 3" or "ranks 3, 4"
    std::string text;
    uint32_t count = 0;
    for (uint32_t rank = 0; rank < ranks(); ++rank) {
      if (machine_of_rank[rank] != of_machine) continue;
      text += (count++ ? ", " : "") + std::to_string(rank);
    }
    return (count == 1 ? "rank " : "ranks ") + text;
  }
  std::string device_name(uint32_t of_machine) const {  // empty: the host
    const wire::DeviceId& device = devices[of_machine];
    return device == wire::DeviceId{} ? "" : wire::to_text(device);
  }
  std::string machine_name(uint32_t of_machine) const {
    const std::string gpu = device_name(of_machine);
    const bool named = !gpu.empty() && one_of_several(of_machine);
    return "machine " + std::to_string(of_machine) +
           (addresses[of_machine].empty() ? "" : " (" + addresses[of_machine] + ")") +
           (named ? ", GPU " + gpu : "") + " with " + ranks_of(of_machine);
  }
  std::string title() const { return "communicator '" + name + "' of job '" + job + "'"; }
};
using ViewPtr = std::shared_ptr<const View>;

}  // namespace cgx::scheduler
