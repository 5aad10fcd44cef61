// cgxd's side of the benchmarks: one rank, in place on one tensor per size, or on PIECES equal ones
// that lie behind each other, one step per allreduce, driven by the runner like the peers
// (command.h). Ranks find each other through files in a folder all of them see.
#include <errno.h>
#include <fcntl.h>
#include <limits.h>

#include "cgx/cgx.h"
#include "tests/bench/command.h"

#define SIZES_MAX 16
#define PIECES_MAX 4096

struct tensor {  // one communicator per size, so that no other tensor is absent in its steps
  cgx_comm* comm;
  size_t bytes;
  uint64_t step;
  uint32_t ids[PIECES_MAX], pieces;
  float* data;
};

struct worker {
  cgx_session* session;
  const char* folder;
  uint32_t rank, ranks, pieces;
  struct tensor tensors[SIZES_MAX];
  int tensor_count;
};

static void require(cgx_status status, const char* what) {
  if (status == CGX_OK) return;
  fprintf(stderr, "cgx_worker: %s: %s: %s\n", what, cgx_status_name(status), cgx_last_error());
  exit(1);
}

static void path_of(char* path, const char* folder, const char* key) {
  int used = snprintf(path, PATH_MAX, "%s/", folder);
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

static int get_file(void* user, const char* key, void* value, size_t capacity, size_t* bytes) {
  char path[PATH_MAX];
  path_of(path, user, key);
  for (int attempt = 0; attempt < 30000; attempt++) {
    FILE* file = fopen(path, "r");
    if (file) {
      *bytes = fread(value, 1, capacity, file);
      fclose(file);
      return 0;
    }
    usleep(1000);
  }
  return -1;
}

static void register_pieces(struct tensor* tensor) {
  const uint64_t elements = tensor->bytes / tensor->pieces / sizeof(float);
  const uint64_t shape[2] = {elements / 64, 64};  // a matrix: one-dimensional tensors travel raw
  for (uint32_t i = 0; i < tensor->pieces; i++) {
    char name[32];
    snprintf(name, sizeof(name), "gradient%u", i);
    const cgx_tensor_options description = {.size = sizeof(description),
                                            .name = name,
                                            .dtype = CGX_F32,
                                            .op = CGX_AVG,
                                            .dims = 2,
                                            .shape = shape};
    require(cgx_register(tensor->comm, &description, &tensor->ids[i]), "cgx_register");
  }
}

static float* home_of(const struct tensor* tensor, uint32_t piece) {
  void* memory = NULL;
  require(cgx_tensor_home(tensor->comm, tensor->ids[piece], &memory, NULL), "cgx_tensor_home");
  return memory;
}

static struct tensor* tensor_of(struct worker* worker, size_t bytes) {
  for (int i = 0; i < worker->tensor_count; i++) {
    if (worker->tensors[i].bytes == bytes) return &worker->tensors[i];
  }
  if (worker->tensor_count == SIZES_MAX) {
    fprintf(stderr, "cgx_worker: more than %d sizes\n", SIZES_MAX);
    exit(1);
  }
  struct tensor* tensor = &worker->tensors[worker->tensor_count++];
  *tensor = (struct tensor){.bytes = bytes, .step = 1, .pieces = worker->pieces};
  char name[32];
  snprintf(name, sizeof(name), "bytes-%zu", bytes);
  const cgx_comm_options options = {
      .size = sizeof(options),
      .name = name,
      .rank = worker->rank,
      .ranks = worker->ranks,
      .first_step = 1,
      .timeout_ms = 60000,
      .rendezvous = {.put = put_file, .get = get_file, .user = (void*)worker->folder}};
  require(cgx_comm_create(worker->session, &options, &tensor->comm), "cgx_comm_create");
  register_pieces(tensor);
  require(cgx_commit(tensor->comm), "cgx_commit");
  tensor->data = home_of(tensor, 0);
  for (uint32_t i = 1; i < tensor->pieces; i++) {
    const char* const expected = (const char*)tensor->data + i * (bytes / tensor->pieces);
    if ((const char*)home_of(tensor, i) == expected) continue;
    fprintf(stderr, "cgx_worker: piece %u does not lie behind the one before\n", i);
    exit(1);
  }
  return tensor;
}

static void allreduce(void* context) {
  struct tensor* tensor = context;
  require(cgx_submit(tensor->comm, tensor->step, tensor->ids, tensor->pieces), "cgx_submit");
  require(cgx_step_end(tensor->comm, tensor->step), "cgx_step_end");
  require(cgx_wait(tensor->comm, tensor->step, -1), "cgx_wait");
  tensor->step++;
}

int main(int argc, char** argv) {
  if (argc < 6 || argc > 8) {
    fprintf(stderr, "usage: cgx_worker COMMANDS RENDEZVOUS RANK RANKS BYTES_MAX [JOB [PIECES]]\n");
    return 2;
  }
  struct worker worker = {.folder = argv[2],
                          .rank = (uint32_t)atoi(argv[3]),
                          .ranks = (uint32_t)atoi(argv[4]),
                          .pieces = argc == 8 ? (uint32_t)atoi(argv[7]) : 1};
  if (worker.pieces < 1 || worker.pieces > PIECES_MAX) {
    fprintf(stderr, "cgx_worker: %s pieces; at most %d\n", argv[7], PIECES_MAX);
    return 2;
  }
  const cgx_open_options options = {.size = sizeof(options),
                                    .job = argc >= 7 ? argv[6] : "bench",
                                    .arena_bytes = (uint64_t)atoll(argv[5])};
  require(cgx_open(&options, &worker.session), "cgx_open");
  struct command_channel runner = command_connect(argv[1], (int)worker.rank);
  struct command command;
  while (command_next(&runner, &command)) {
    struct tensor* tensor = tensor_of(&worker, command.bytes);
    command_measure(&runner, &command, tensor->data, tensor->data, (int)worker.rank,
                    (int)worker.ranks, 1.0 / worker.ranks, allreduce, tensor);
  }
  require(cgx_close(worker.session), "cgx_close");
  return 0;
}
