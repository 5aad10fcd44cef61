// cgxd-gpu: see daemon/gpu/README.md. Started by cgxd, which hands over a socket as descriptor 3.
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "daemon/gpu/device_worker.h"
#include "proto/device/driver.h"

int main() {
  constexpr int kSocket = 3;
  ::signal(SIGINT, SIG_IGN);  // a terminal's is for cgxd, who then closes the socket
  ::signal(SIGPIPE, SIG_IGN);
  ::prctl(PR_SET_TIMERSLACK, 1'000);  // ns: by default the system doubles naps while the GPU works
  if (::fcntl(kSocket, F_SETFD, FD_CLOEXEC) != 0) {
    std::fprintf(stderr, "cgxd-gpu is started by cgxd, for a job with tensors on a GPU\n");
    return 2;
  }
  auto worker = cgx::daemon::gpu::DeviceWorker::open(
      cgx::UniqueFd(kSocket), cgx::device::mps_serves(std::getenv("CUDA_MPS_PIPE_DIRECTORY")));
  if (!worker.ok()) return 1;  // cgxd was told why
  const cgx::Status ended = (*worker)->run();
  if (ended.ok()) return 0;
  std::fprintf(stderr, "cgxd-gpu: %s\n", ended.to_string().c_str());
  std::_Exit(1);  // a context that has failed is not cleared away
}
