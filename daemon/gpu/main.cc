// cgxd-gpu: see daemon/gpu/README.md. Started by cgxd, which hands over a socket as descriptor 3.
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "daemon/gpu/device_worker.h"
#include "proto/device/driver.h"

namespace {

// Where memory is short the kernel ends this process before cgxd, which is in the same control
// group: its job is lost, and no other. Anybody may raise the score that it has inherited.
void go_before_the_daemon() {
  constexpr int kAbove = 900, kMost = 1000;
  std::fstream score("/proc/self/oom_score_adj");
  int inherited = 0;
  if (score >> inherited) score.seekp(0) << std::min(inherited + kAbove, kMost) << std::flush;
  if (score) return;
  std::fprintf(stderr,
               "cgxd-gpu: cannot write /proc/self/oom_score_adj: where memory is short "
               "the kernel may end cgxd instead of this process\n");
}

// A terminal and a service manager send them to all processes. cgxd lets its jobs leave, for which
// they need this one, and then closes the socket; it kills a worker that does not end by that.
void leave_signals_to_the_daemon() {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) ::signal(signal, SIG_IGN);
}

}  // namespace

int main() {
  constexpr int kSocket = 3;
  leave_signals_to_the_daemon();
  for (const int fails_instead : {SIGPIPE, SIGXFSZ}) ::signal(fails_instead, SIG_IGN);
  ::prctl(PR_SET_TIMERSLACK, 1'000);  // ns: by default the system doubles naps while the GPU works
  if (::fcntl(kSocket, F_SETFD, FD_CLOEXEC) != 0) {
    std::fprintf(stderr, "cgxd-gpu is started by cgxd, for a job with tensors on a GPU\n");
    return 2;
  }
  go_before_the_daemon();
  auto worker = cgx::daemon::gpu::DeviceWorker::open(
      cgx::UniqueFd(kSocket), cgx::device::mps_serves(std::getenv("CUDA_MPS_PIPE_DIRECTORY")));
  if (!worker.ok()) return 1;  // cgxd was told why
  const cgx::Status ended = (*worker)->run();
  if (ended.ok()) return 0;
  std::fprintf(stderr, "cgxd-gpu: %s\n", ended.to_string().c_str());
  std::_Exit(1);  // a context that has failed is not cleared away
}
