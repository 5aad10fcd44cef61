// Which network a daemon that is started for this trainer shares with the job's other machines, as
// the launcher's variables tell it. Thread rule: the calling thread; asks the resolver and the
// routing table.
#pragma once

#include <cstdint>
#include <string>

namespace cgx::client {

struct LauncherWords {
  std::string network;  // said outright
  // Where rank 0 or the launcher is; empty: not known.
  std::string host;
  // 0: not known. Those of torchrun, Open MPI; machines: Slurm's.
  uint32_t ranks = 0, local_ranks = 0, machines = 0;
  uint32_t step_ranks = 0, step_machines = 0;  // of what one srun started
};

// Several machines have a part in the job; a host and nothing else that speaks against it is
// enough.
bool several_machines(const LauncherWords& words);

// Of so many ranks some are surely on other machines. More than the launcher knows of are not its
// own.
bool some_elsewhere(const LauncherWords& words, uint32_t ranks);

// "10.1.0.0/24": the network of the address this machine reaches the host from. Empty: the job has
// one machine only, or nobody knows.
std::string cluster_network(const LauncherWords& words);

// "1234.0;tcp://10.1.0.2,172.17.0.1:41023" -> "10.1.0.2"; empty: no such form.
std::string host_of_uri(const std::string& uri);

}  // namespace cgx::client
