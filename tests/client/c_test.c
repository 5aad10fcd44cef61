/* The public header as a C11 program uses it: one rank, every call once. */
#include <cgx/cgx.h>
#include <stdio.h>
#include <string.h>

#define CHECK(condition)                                                                     \
  do {                                                                                       \
    if (!(condition)) {                                                                      \
      fprintf(stderr, "%s:%d: %s (%s)\n", __FILE__, __LINE__, #condition, cgx_last_error()); \
      return 1;                                                                              \
    }                                                                                        \
  } while (0)
#define OK(call) CHECK((call) == CGX_OK)

static int put(void* user, const char* key, const void* value, size_t bytes) {
  (void)user, (void)key, (void)value, (void)bytes;
  return 0;
}

static int get(void* user, const char* key, void* value, size_t capacity, size_t* bytes) {
  (void)user, (void)key, (void)value, (void)capacity, (void)bytes;
  return 1;
}

static int train(cgx_session* session, cgx_comm* comm) {
  const uint64_t shape[] = {4, 8};
  cgx_tensor_options tensor = {.size = sizeof(tensor)};
  uint32_t ids[2] = {9, 9};
  const void* in_place;
  void* out_place;
  float *weight, *memory, *out;
  void* home;
  size_t bytes, pending;
  uint8_t states[2];
  uint64_t step = 0, call, seen = 0;
  int done = 0, descriptor = -1;
  cgx_step_report report = {.size = sizeof(report)};

  tensor.name = "weight";
  tensor.dims = 2;
  tensor.shape = shape;
  OK(cgx_register(comm, &tensor, &ids[0]));
  tensor.name = "bias";
  tensor.dims = 1;
  OK(cgx_arena_alloc(session, 16, 0, &tensor.home));
  OK(cgx_register(comm, &tensor, &ids[1]));
  CHECK(ids[0] == 0 && ids[1] == 1);
  OK(cgx_tensor_home(comm, 0, &home, &bytes));
  CHECK(bytes == 4 * 8 * sizeof(float));
  weight = (float*)home;
  weight[31] = 1.5f;
  OK(cgx_commit(comm));
  OK(cgx_event_fd(session, &descriptor));

  OK(cgx_submit(comm, step, ids, 1));
  OK(cgx_absent(comm, step, ids + 1, 1));
  CHECK(cgx_wait(comm, step, -1) == CGX_STEP_OPEN);
  OK(cgx_step_end(comm, step));
  OK(cgx_wait(comm, step, -1));
  OK(cgx_test(comm, step, ids, 2, states, &pending));
  CHECK(pending == 0 && states[0] == CGX_TENSOR_RESULT && states[1] == CGX_TENSOR_ABSENT);
  OK(cgx_step_info(comm, step, &report));
  CHECK(report.finished == 1 && report.results == 1 && report.absent == 1);
  OK(cgx_step_done(comm, step, CGX_KEPT));
  CHECK(cgx_step_redo(comm, &step) == CGX_STEP_ORDER);
  CHECK(strstr(cgx_last_error(), "STEP_ORDER") != NULL);

  OK(cgx_arena_alloc(session, 64, 64, &home));
  memory = (float*)home;
  OK(cgx_arena_alloc(session, 64, 64, &home));
  out = (float*)home;
  memory[0] = 2.0f;
  in_place = memory;
  out_place = out;
  OK(cgx_submit_inout(comm, 1, ids + 1, &in_place, &out_place, 1));
  OK(cgx_step_end(comm, 1));
  OK(cgx_wait(comm, 1, 10000));
  CHECK(out[0] == 2.0f);

  OK(cgx_allreduce(comm, memory, out, 16, CGX_F32, CGX_AVG));
  OK(cgx_allreduce_async(comm, memory, memory, 16, CGX_F32, CGX_SUM, &call));
  OK(cgx_wait_call(comm, call, -1));
  OK(cgx_test_call(comm, call, &done));
  CHECK(done == 1);
  OK(cgx_wake(session));
  OK(cgx_poll(session, &seen, 0));
  OK(cgx_arena_free(session, memory));
  return 0;
}

int main(void) {
  cgx_open_options options = {.size = sizeof(options)};
  cgx_comm_options world = {.size = sizeof(world)};
  cgx_session* session = NULL;
  cgx_arena* arena = NULL;
  cgx_comm* comm = NULL;
  void* memory;
  int failed;

  CHECK(strlen(cgx_version()) > 0 && cgx_abi() == CGX_ABI);
  CHECK(strcmp(cgx_status_name(CGX_FORKED), "FORKED") == 0);
  CHECK(strcmp(cgx_dtype_name(CGX_BF16), "bf16") == 0 && cgx_dtype_bytes(CGX_BF16) == 2);
  CHECK(strcmp(cgx_dtype_name(4711), "unknown") == 0 && cgx_dtype_bytes(-1) == 0);
  options.job = "c-test";
  options.arena_bytes = 1 << 20;
  OK(cgx_open(&options, &session));
  OK(cgx_arena_alloc(session, 4096, 0, &memory));
  OK(cgx_arena_retain(session, memory, &arena));
  world.name = "world";
  world.ranks = 1;
  world.rendezvous.put = put;
  world.rendezvous.get = get;
  OK(cgx_comm_create(session, &world, &comm));
  failed = train(session, comm);
  OK(cgx_comm_close(comm));
  OK(cgx_close(session));
  memset(memory, 1, 4096);
  cgx_arena_release(arena);
  return failed;
}
