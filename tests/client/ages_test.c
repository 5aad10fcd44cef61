/* Programs that were compiled with another cgx.h than the library's: their structs are hand-made
 * copies, one that ends earlier and one that goes on. Nothing of the library's header is included.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "proto/wire/shm_layout.h" /* it is C11, too */

enum { OK = 0, INVALID_ARGUMENT = 2, UNIMPLEMENTED = 9 };

int cgx_open(const void* options, void** session);
int cgx_close(void* session);
int cgx_comm_create(void* session, const void* options, void** comm);
int cgx_comm_close(void* comm);
int cgx_register(void* comm, const void* options, uint32_t* id);
int cgx_commit(void* comm);
int cgx_submit(void* comm, uint64_t step, const uint32_t* ids, size_t count);
int cgx_step_end(void* comm, uint64_t step);
int cgx_wait(void* comm, uint64_t step, int64_t timeout_ms);
int cgx_step_info(void* comm, uint64_t step, void* report);
const char* cgx_last_error(void);

#define CHECK(condition)                                                                     \
  do {                                                                                       \
    if (!(condition)) {                                                                      \
      fprintf(stderr, "%s:%d: %s (%s)\n", __FILE__, __LINE__, #condition, cgx_last_error()); \
      return 1;                                                                              \
    }                                                                                        \
  } while (0)

/* What lies behind an older struct is not the library's business. */
#define POISON 0xA5

struct older_open {
  size_t size;
  const char *socket, *job;
};
struct older_comm {
  size_t size;
  const char* name;
  uint32_t rank, ranks;
};
struct older_tensor {
  size_t size;
  const char* name;
  int dtype, op, kind;
  uint32_t dims;
  const uint64_t* shape;
};
struct older_report {
  size_t size;
  uint64_t step;
  uint32_t attempt, finished;
};

static int older(void) {
  struct {
    struct older_open options;
    unsigned char behind[64];
  } open;
  struct {
    struct older_comm options;
    unsigned char behind[64];
  } world;
  struct {
    struct older_tensor options;
    unsigned char behind[64];
  } tensor;
  struct {
    struct older_report report;
    unsigned char behind[64];
  } told;
  const uint64_t shape = 4;
  void *session = NULL, *comm = NULL;
  uint32_t id = 9;
  size_t i;

  memset(&open, POISON, sizeof(open));
  memset(&world, POISON, sizeof(world));
  memset(&tensor, POISON, sizeof(tensor));
  memset(&told, POISON, sizeof(told));
  open.options = (struct older_open){.size = sizeof(open.options), .job = "ages"};
  world.options = (struct older_comm){.size = sizeof(world.options), .name = "world", .ranks = 1};
  tensor.options = (struct older_tensor){
      .size = sizeof(tensor.options), .name = "w", .dims = 1, .shape = &shape};
  told.report = (struct older_report){.size = sizeof(told.report)};
  CHECK(cgx_open(&open, &session) == OK);
  CHECK(cgx_comm_create(session, &world, &comm) == OK);
  CHECK(cgx_register(comm, &tensor, &id) == OK);
  CHECK(cgx_commit(comm) == OK);
  CHECK(cgx_submit(comm, 0, &id, 1) == OK);
  CHECK(cgx_step_end(comm, 0) == OK);
  CHECK(cgx_wait(comm, 0, 10000) == OK);
  CHECK(cgx_step_info(comm, 0, &told) == OK);
  CHECK(told.report.finished == 1);
  for (i = 0; i < sizeof(told.behind); ++i) CHECK(told.behind[i] == POISON);
  CHECK(cgx_comm_close(comm) == OK);
  CHECK(cgx_close(session) == OK);
  return 0;
}

struct newer_open {
  size_t size;
  const char *socket, *job;
  uint64_t arena_bytes;
  uint32_t connect_timeout_ms, spin_us;
  uint64_t not_known_yet;
  double nor_this;
};

static int newer(void) {
  struct newer_open options = {.size = sizeof(options), .job = "ages"};
  void* session = NULL;

  CHECK(cgx_open(&options, &session) == OK); /* it asks for nothing the library does not know */
  CHECK(cgx_close(session) == OK);
  options.nor_this = 2.0;
  CHECK(cgx_open(&options, &session) == UNIMPLEMENTED);
  CHECK(strstr(cgx_last_error(), "cgx_open_options of 56 bytes") != NULL);
  CHECK(strstr(cgx_last_error(), "knows the first 40") != NULL);
  return 0;
}

int main(void) {
  return older() || newer();
}
