// How a C worker talks to the benchmark runner: one Unix stream socket, one line each way for each
// command.
//
//   worker: "rank R pid P\n"
//   runner: "allreduce BYTES REPETITIONS WARMUP\n" | "quit\n"
//   worker: one JSON object
//
// The test data is a formula of (rank, element), so every rank can check any element of a sum.
#pragma once

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

struct command_channel {
  FILE* in;
  FILE* out;
};

struct command {
  char verb[32];
  size_t bytes;
  int repetitions;
  int warmup;
};

static inline struct command_channel command_connect(const char* path, int rank) {
  int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  strncpy(address.sun_path, path, sizeof(address.sun_path) - 1);
  if (fd < 0 || connect(fd, (struct sockaddr*)&address, sizeof(address)) != 0) {
    perror(path);
    exit(1);
  }
  struct command_channel runner = {fdopen(fd, "r"), fdopen(dup(fd), "w")};
  fprintf(runner.out, "rank %d pid %d\n", rank, (int)getpid());
  fflush(runner.out);
  return runner;
}

// Returns 0 when the runner has gone or says quit.
static inline int command_next(struct command_channel* runner, struct command* command) {
  char line[256];
  memset(command, 0, sizeof(*command));
  if (!fgets(line, sizeof(line), runner->in)) return 0;
  sscanf(line, "%31s %zu %d %d", command->verb, &command->bytes, &command->repetitions,
         &command->warmup);
  return strcmp(command->verb, "quit") != 0;
}

static inline double clock_seconds(clockid_t clock) {
  struct timespec now;
  clock_gettime(clock, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static inline long minor_faults(void) {
  struct rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt;
}

// Roughly bell-shaped in (-1, 1), from an integer hash: the same on every machine and compiler.
static inline float test_value(uint32_t rank, uint32_t element) {
  uint64_t x = ((uint64_t)(rank + 1) << 32 | element) * 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 29)) * 0xBF58476D1CE4E5B9ull;
  x ^= x >> 32;
  int sum = (int)(x & 0xff) + (int)(x >> 8 & 0xff) + (int)(x >> 16 & 0xff) + (int)(x >> 24 & 0xff);
  return (float)(sum - 510) / 512.0f;
}

static inline void fill_test_values(float* data, size_t elements, uint32_t rank) {
  for (size_t i = 0; i < elements; i++) data[i] = test_value(rank, (uint32_t)i);
}

// Largest difference from scale * sum over ranks, on about a thousand elements.
static inline double largest_error(const float* result, size_t elements, int ranks, double scale) {
  double worst = 0;
  const size_t stride = elements > 1024 ? elements / 1021 : 1;
  for (size_t i = 0; i < elements; i += stride) {
    double expected = 0;
    for (int r = 0; r < ranks; r++) expected += test_value((uint32_t)r, (uint32_t)i);
    const double error = fabs((double)result[i] - scale * expected);
    if (!(error <= worst)) worst = error;  // NaN counts as worst
  }
  return worst;
}

struct sample {
  double* microseconds;  // one per repetition
  double cpu_seconds;    // of this process, over the repetitions
  long faults;
  double error;  // of the first result after a fill
};

static inline void command_reply(struct command_channel* runner, const struct command* command,
                                 const struct sample* sample) {
  FILE* out = runner->out;
  fprintf(out, "{\"cpu_s\": %.9f, \"faults\": %ld, \"error\": %.9g, \"us\": [", sample->cpu_seconds,
          sample->faults, sample->error);
  for (int i = 0; i < command->repetitions; i++) {
    fprintf(out, "%s%.3f", i ? ", " : "", sample->microseconds[i]);
  }
  fprintf(out, "]}\n");
  fflush(out);
}

// Runs a command with `operation(context)` as the allreduce, which leaves its result in `result`.
static inline void command_measure(struct command_channel* runner, const struct command* command,
                                   float* input, const float* result, int rank, int ranks,
                                   double scale, void (*operation)(void*), void* context) {
  const size_t elements = command->bytes / sizeof(float);
  struct sample sample = {.microseconds =
                              (double*)calloc((size_t)command->repetitions + 1, sizeof(double))};
  fill_test_values(input, elements, (uint32_t)rank);
  operation(context);
  sample.error = largest_error(result, elements, ranks, scale);
  for (int i = 1; i < command->warmup; i++) operation(context);
  const double cpu_before = clock_seconds(CLOCK_PROCESS_CPUTIME_ID);
  const long faults_before = minor_faults();
  for (int i = 0; i < command->repetitions; i++) {
    const double start = clock_seconds(CLOCK_MONOTONIC);
    operation(context);
    sample.microseconds[i] = 1e6 * (clock_seconds(CLOCK_MONOTONIC) - start);
  }
  sample.cpu_seconds = clock_seconds(CLOCK_PROCESS_CPUTIME_ID) - cpu_before;
  sample.faults = minor_faults() - faults_before;
  command_reply(runner, command, &sample);
  free(sample.microseconds);
}
