// The fake daemon as a process: `fake_daemon --socket PATH [--private]`, as autostart and the
// Python tests start it.
#include <cstdio>
#include <cstring>

#include "tests/client/fake_daemon.h"

int main(int argc, char** argv) {
  cgx::testing::FakeDaemon::Options options;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--private") == 0) options.exit_when_unused = true;
    if (std::strcmp(argv[i], "--socket") == 0 && i + 1 < argc) options.socket_path = argv[++i];
  }
  if (options.socket_path.empty()) {
    std::fprintf(stderr, "usage: fake_daemon --socket PATH [--private]\n");
    return 2;
  }
  cgx::testing::FakeDaemon(options).run();
  return 0;
}
