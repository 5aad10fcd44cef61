// One rank that a test drives: commands on standard input, one JSON line on standard output for
// each.
//
//   -> create grads 1 4 1 60000 /tmp/meeting     words separated by blanks, "-" for the default
//   <- {"command":"create","status":"OK","text":"","began":12.3,"ended":12.4,"value":0}
//
// `began` and `ended` are CLOCK_MONOTONIC around the command, so a test can compare them with the
// moment it broke something. Tensors' data comes from and goes to files: the test knows arithmetic,
// this program knows none. Handles are numbers in order of creation. One thread; ends with its
// input.
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "cgx/cgx.h"

#define COMMS_MAX 64
#define WORDS_MAX 4096
#define HOLD_MS 20000
#define PATIENCE_MS 500

struct rank {
  cgx_session* session;
  cgx_comm* comms[COMMS_MAX];
  uint32_t comm_count;
  int failed;  // 1: this program could not do its part; `problem` says why
  char problem[256];
  double began;
  uint64_t value;   // a command's result, if it has one
  char extra[512];  // more of it, as JSON members
};

static struct rank self;
static char* words[WORDS_MAX];
static int word_count;

static double now(void) {
  struct timespec at;
  clock_gettime(CLOCK_MONOTONIC, &at);
  return (double)at.tv_sec + 1e-9 * (double)at.tv_nsec;
}

static const char* word(int index) {
  return index < word_count && strcmp(words[index], "-") != 0 ? words[index] : NULL;
}

static uint64_t number(int index) {
  const char* text = word(index);
  return text ? strtoull(text, NULL, 10) : 0;
}

static cgx_status problem(const char* what, const char* name) {
  self.failed = 1;
  snprintf(self.problem, sizeof(self.problem), "rank program: %s: %s", what, name ? name : "?");
  return CGX_OK;
}

static cgx_comm* comm_of(int index) {
  const uint64_t handle = number(index);
  return handle < self.comm_count ? self.comms[handle] : NULL;
}

// Meeting through files

struct meeting {
  const char* folder;
  int wrong_key;    // this rank misremembers the job's key
  int hold;         // this rank has told where it is, then dawdles until the file "go" exists
  int patience_ms;  // its store waits so long for a key that is not there, then says:
  int not_there;
};

static void path_of(char* path, const struct meeting* meeting, const char* key) {
  int used = snprintf(path, PATH_MAX - 1, "%s/", meeting->folder);
  for (; *key && used < PATH_MAX - 1; key++) path[used++] = *key == '/' ? '_' : *key;
  path[used] = 0;
}

static int put_file(void* user, const char* key, const void* value, size_t bytes) {
  char path[PATH_MAX], partial[PATH_MAX + 16];
  path_of(path, user, key);
  snprintf(partial, sizeof(partial), "%s.%d", path, (int)getpid());
  FILE* file = fopen(partial, "w");
  if (!file) return -1;
  const size_t written = fwrite(value, 1, bytes, file);
  return fclose(file) == 0 && written == bytes ? rename(partial, path) : -1;
}

static int await(const struct meeting* meeting, const char* key, int patience_ms) {
  char path[PATH_MAX];
  path_of(path, meeting, key);
  for (; access(path, R_OK) != 0; patience_ms--) {
    if (patience_ms <= 0) return 0;
    usleep(1000);
  }
  return 1;
}

static int get_file(void* user, const char* key, void* value, size_t capacity, size_t* bytes) {
  const struct meeting* meeting = user;
  char path[PATH_MAX];
  path_of(path, meeting, key);
  const size_t length = strlen(key);
  const int is_key = length > 4 && strcmp(key + length - 4, "/key") == 0;
  if (is_key && meeting->hold && !await(meeting, "go", HOLD_MS)) return -1;
  if (!await(meeting, key, meeting->patience_ms)) return meeting->not_there;
  FILE* file = fopen(path, "r");
  if (!file) return -1;
  *bytes = fread(value, 1, capacity, file);
  fclose(file);
  if (is_key && meeting->wrong_key) ((unsigned char*)value)[0] ^= 1;
  return 0;
}

// Commands

// become UID: takes this user's rights, for good.
static cgx_status do_become(void) {
  const uid_t uid = (uid_t)number(1);
  if (setgid(uid) != 0 || setuid(uid) != 0) return problem("cannot become user", word(1));
  return CGX_OK;
}

// open JOB SOCKET ARENA_BYTES CONNECT_MS
static cgx_status do_open(void) {
  const cgx_open_options options = {.size = sizeof(options),
                                    .job = word(1),
                                    .socket = word(2),
                                    .arena_bytes = number(3),
                                    .connect_timeout_ms = (uint32_t)number(4)};
  return cgx_open(&options, &self.session);
}

// create NAME RANK SIZE FIRST_STEP TIMEOUT_MS FOLDER [wrong-key|hold|impatient|broken|leader]:
// value = handle
static cgx_status do_create(void) {
  const char* const trick = word(7) ? word(7) : "";
  struct meeting meeting = {.folder = word(6),
                            .wrong_key = strcmp(trick, "wrong-key") == 0,
                            .hold = strcmp(trick, "hold") == 0,
                            .not_there = CGX_NOT_FOUND};
  if (strcmp(trick, "impatient") == 0) meeting.not_there = CGX_TIMED_OUT;
  if (strcmp(trick, "broken") == 0) meeting.not_there = -7;
  if (meeting.not_there != CGX_NOT_FOUND) meeting.patience_ms = PATIENCE_MS;
  cgx_comm_options options = {.size = sizeof(options),
                              .name = word(1),
                              .rank = (uint32_t)number(2),
                              .ranks = (uint32_t)number(3),
                              .first_step = number(4),
                              .timeout_ms = number(5),
                              .rendezvous = {.put = put_file, .get = get_file, .user = &meeting}};
  if (strcmp(trick, "leader") == 0) memset(&options.rendezvous, 0, sizeof options.rendezvous);
  if (self.comm_count == COMMS_MAX) return problem("too many communicators", word(1));
  const cgx_status status = cgx_comm_create(self.session, &options, &self.comms[self.comm_count]);
  if (status == CGX_OK) self.value = self.comm_count++;
  return status;
}

// register COMM NAME DTYPE OP DIM...: value = tensor id
static cgx_status do_register(void) {
  uint64_t shape[8] = {0};
  const uint32_t dims = (uint32_t)(word_count - 5);
  for (uint32_t i = 0; i < dims && i < 8; i++) shape[i] = number(5 + (int)i);
  const cgx_tensor_options options = {.size = sizeof(options),
                                      .name = word(2),
                                      .dtype = (cgx_dtype)number(3),
                                      .op = (cgx_op)number(4),
                                      .dims = dims,
                                      .shape = shape};
  uint32_t id = 0;
  const cgx_status status = cgx_register(comm_of(1), &options, &id);
  self.value = id;
  return status;
}

static cgx_status do_commit(void) {
  return cgx_commit(comm_of(1));
}

static cgx_status copy_file(const char* path, void* memory, size_t bytes, int write) {
  FILE* file = path ? fopen(path, write ? "w" : "r") : NULL;
  if (!file) return problem("cannot open", path);
  const size_t moved = write ? fwrite(memory, 1, bytes, file) : fread(memory, 1, bytes, file);
  if (fclose(file) != 0 || moved != bytes) return problem("wrong size", path);
  return CGX_OK;
}

// fill COMM ID PATH, dump COMM ID PATH: between a file and the tensor's home
static cgx_status home_and_file(int write) {
  void* memory = NULL;
  size_t bytes = 0;
  const cgx_status status = cgx_tensor_home(comm_of(1), (uint32_t)number(2), &memory, &bytes);
  return status == CGX_OK ? copy_file(word(3), memory, bytes, write) : status;
}
static cgx_status do_fill(void) {
  return home_and_file(0);
}
static cgx_status do_dump(void) {
  return home_and_file(1);
}

static size_t ids_from(int first, uint32_t ids[WORDS_MAX]) {
  size_t count = 0;
  for (int i = first; i < word_count; i++) ids[count++] = (uint32_t)number(i);
  return count;
}

// submit COMM STEP ID..., absent COMM STEP ID...
static cgx_status do_submit(void) {
  uint32_t ids[WORDS_MAX];
  const size_t count = ids_from(3, ids);
  return cgx_submit(comm_of(1), number(2), ids, count);
}
static cgx_status do_absent(void) {
  uint32_t ids[WORDS_MAX];
  const size_t count = ids_from(3, ids);
  return cgx_absent(comm_of(1), number(2), ids, count);
}

static cgx_status do_end(void) {
  return cgx_step_end(comm_of(1), number(2));
}

// done COMM STEP FATE
static cgx_status do_done(void) {
  return cgx_step_done(comm_of(1), number(2), (cgx_step_fate)number(3));
}

// wait COMM STEP [MS]
static cgx_status do_wait(void) {
  const int64_t timeout_ms = word(3) ? (int64_t)number(3) : -1;
  return cgx_wait(comm_of(1), number(2), timeout_ms);
}

// scribble COMM STEP ID: waits, and meanwhile writes over the end of a result of fp32
static cgx_status do_scribble(void) {
  void* memory = NULL;
  size_t bytes = 0;
  cgx_status status = cgx_tensor_home(comm_of(1), (uint32_t)number(3), &memory, &bytes);
  if (status != CGX_OK) return status;
  volatile float* const last = (float*)memory + bytes / sizeof(float) - 1;
  do {
    for (int i = 0; i < 1000; i++) *last = 123.0f;
    status = cgx_wait(comm_of(1), number(2), 0);
  } while (status == CGX_TIMED_OUT);
  return status;
}

// info COMM STEP
static cgx_status do_info(void) {
  cgx_step_report report = {.size = sizeof(report)};
  const cgx_status status = cgx_step_info(comm_of(1), number(2), &report);
  if (status != CGX_OK) return status;
  snprintf(self.extra, sizeof(self.extra),
           ",\"attempt\":%u,\"epoch\":%llu,\"policy_version\":%llu,\"results\":%u,\"filled\":%u,"
           "\"absent\":%u,\"failed\":%u",
           report.attempt, (unsigned long long)report.epoch,
           (unsigned long long)report.policy_version, report.results, report.filled, report.absent,
           report.failed);
  return CGX_OK;
}

// redo COMM: value = the step to submit again
static cgx_status do_redo(void) {
  return cgx_step_redo(comm_of(1), &self.value);
}

// allreduce COMM DTYPE OP COUNT BYTES IN OUT: one call outside steps, from a file to a file
static cgx_status do_allreduce(void) {
  const size_t bytes = number(5);
  void* memory = NULL;
  cgx_status status = cgx_arena_alloc(self.session, bytes, 0, &memory);
  if (status != CGX_OK) return status;
  copy_file(word(6), memory, bytes, 0);
  status =
      cgx_allreduce(comm_of(1), memory, memory, number(4), (cgx_dtype)number(2), (cgx_op)number(3));
  if (status == CGX_OK) copy_file(word(7), memory, bytes, 1);
  const cgx_status freed = cgx_arena_free(self.session, memory);
  return status == CGX_OK ? freed : status;
}

// alloc BYTES: touches what it got
static cgx_status do_alloc(void) {
  void* memory = NULL;
  const cgx_status status = cgx_arena_alloc(self.session, number(1), 0, &memory);
  if (status == CGX_OK) memset(memory, 1, number(1));
  return status;
}

static cgx_status do_close_comm(void) {
  const cgx_status status = cgx_comm_close(comm_of(1));
  self.comms[number(1)] = NULL;
  return status;
}

static cgx_status do_close(void) {
  cgx_session* const session = self.session;
  self.session = NULL;
  return cgx_close(session);
}

// fork: value = pid of a child that keeps every descriptor (no handler of fork() runs in it).
static cgx_status do_fork(void) {
  const long child = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
  if (child == 0) {
    signal(SIGALRM, SIG_DFL);
    alarm(60);  // should the test not come to end it
    for (;;) pause();
  }
  self.value = (uint64_t)child;
  return CGX_OK;
}

static const struct {
  const char* name;
  cgx_status (*run)(void);
} kCommands[] = {
    {"become", do_become},     {"open", do_open},
    {"create", do_create},     {"register", do_register},
    {"commit", do_commit},     {"fill", do_fill},
    {"dump", do_dump},         {"submit", do_submit},
    {"absent", do_absent},     {"end", do_end},
    {"done", do_done},         {"wait", do_wait},
    {"scribble", do_scribble}, {"info", do_info},
    {"redo", do_redo},         {"allreduce", do_allreduce},
    {"alloc", do_alloc},       {"close_comm", do_close_comm},
    {"close", do_close},       {"fork", do_fork},
};

// The conversation

static void print_text(const char* text) {
  putchar('"');
  for (; *text; text++) {
    if (*text == '"' || *text == '\\') putchar('\\');
    if ((unsigned char)*text >= ' ') putchar(*text);
  }
  putchar('"');
}

static void answer(const char* command, cgx_status status) {
  printf("{\"command\":\"%s\",\"status\":\"%s\",\"text\":", command,
         self.failed ? "PROGRAM" : cgx_status_name(status));
  print_text(self.failed ? self.problem : status == CGX_OK ? "" : cgx_last_error());
  printf(",\"began\":%.6f,\"ended\":%.6f,\"value\":%llu%s}\n", self.began, now(),
         (unsigned long long)self.value, self.extra);
  fflush(stdout);
}

static void obey(void) {
  self.failed = 0;
  self.value = 0;
  self.extra[0] = 0;
  self.began = now();
  for (size_t i = 0; i < sizeof(kCommands) / sizeof(kCommands[0]); i++) {
    if (strcmp(kCommands[i].name, words[0]) == 0) return answer(words[0], kCommands[i].run());
  }
  answer(words[0], problem("no such command", words[0]));
}

int main(void) {
  static char line[1 << 16];
  while (fgets(line, sizeof(line), stdin)) {
    word_count = 0;
    for (char* next = strtok(line, " \n"); next; next = strtok(NULL, " \n")) {
      if (word_count < WORDS_MAX) words[word_count++] = next;
    }
    if (word_count > 0) obey();
  }
  return 0;
}
