// LD_PRELOAD shim: a wall clock that a test sets. CGX_TEST_WALL_CLOCK names a file with one int64,
// the nanoseconds by which it is ahead of the machine's. What counts from the boot is not touched.
// Who waits for a moment of the wall clock looks again often, because the kernel does, too, when
// somebody sets its clock.
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SECOND_NS 1000000000LL
#define LOOK_NS 20000000LL

static const int64_t* ahead_ns;
static int (*next_clock_gettime)(clockid_t, struct timespec*);
static long (*next_syscall)(long, ...);

__attribute__((constructor)) static void open_clock(void) {
  next_clock_gettime = (int (*)(clockid_t, struct timespec*))dlsym(RTLD_NEXT, "clock_gettime");
  next_syscall = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
  const char* path = getenv("CGX_TEST_WALL_CLOCK");
  const int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
  if (fd < 0) return;
  void* mapped = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, fd, 0);
  close(fd);
  if (mapped != MAP_FAILED) ahead_ns = mapped;
}

static int64_t ns_of(const struct timespec* at) {
  return at->tv_sec * SECOND_NS + at->tv_nsec;
}

static struct timespec timespec_of(int64_t ns) {
  return (struct timespec){.tv_sec = ns / SECOND_NS, .tv_nsec = ns % SECOND_NS};
}

static int64_t ahead(void) {
  return ahead_ns ? __atomic_load_n(ahead_ns, __ATOMIC_RELAXED) : 0;
}

int clock_gettime(clockid_t clock, struct timespec* at) {
  if (!next_clock_gettime) open_clock();  // asked by another library's constructor
  const int failed = next_clock_gettime(clock, at);
  const int of_day = clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE;
  if (!failed && of_day) *at = timespec_of(ns_of(at) + ahead());
  return failed;
}

int gettimeofday(struct timeval* restrict at, void* restrict zone) {
  (void)zone;
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  *at = (struct timeval){.tv_sec = now.tv_sec, .tv_usec = now.tv_nsec / 1000};
  return 0;
}

time_t time(time_t* at) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (at) *at = now.tv_sec;
  return now.tv_sec;
}

// Abseil's waits: until a moment of the wall clock.
static long wait_until(const long* words) {
  const int64_t end = ns_of((const struct timespec*)words[3]);
  for (;;) {
    struct timespec now;
    next_clock_gettime(CLOCK_REALTIME, &now);
    const int64_t there = end - ahead(), soon = ns_of(&now) + LOOK_NS;
    const struct timespec slice = timespec_of(there < 0 ? 0 : there < soon ? there : soon);
    const long result =
        next_syscall(SYS_futex, words[0], words[1], words[2], &slice, words[4], words[5]);
    if (result != -1 || errno != ETIMEDOUT) return result;
    clock_gettime(CLOCK_REALTIME, &now);
    if (ns_of(&now) >= end) {
      errno = ETIMEDOUT;
      return -1;
    }
  }
}

long syscall(long number, ...) {
  if (!next_syscall) open_clock();
  long words[6];
  va_list list;
  va_start(list, number);
  for (int i = 0; i < 6; ++i) words[i] = va_arg(list, long);
  va_end(list);
  if (number == SYS_futex && (words[1] & FUTEX_CLOCK_REALTIME) && words[3] != 0) {
    return wait_until(words);
  }
  return next_syscall(number, words[0], words[1], words[2], words[3], words[4], words[5]);
}
