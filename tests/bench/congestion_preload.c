// LD_PRELOAD shim for benchmark peers: every TCP socket they make uses CGX_BENCH_CONGESTION (e.g.
// cubic), so that the host's default (bbr on some, which slows gloo and Open MPI by 1.4-1.8x)
// flatters nobody. cgxd has its own option. A socket whose algorithm cannot be set keeps the
// default; the runner checks beforehand that it can.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

int socket(int domain, int type, int protocol) {
  static int (*next)(int, int, int);
  if (!next) next = (int (*)(int, int, int))dlsym(RTLD_NEXT, "socket");
  int fd = next(domain, type, protocol);
  const char* name = getenv("CGX_BENCH_CONGESTION");
  const int is_stream = (type & ~(SOCK_CLOEXEC | SOCK_NONBLOCK)) == SOCK_STREAM;
  if (fd >= 0 && name && is_stream && (domain == AF_INET || domain == AF_INET6)) {
    (void)setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, strlen(name));
  }
  return fd;
}
