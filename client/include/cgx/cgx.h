/* libcgx: the C11 interface of a training process to its machine's cgxd.
 *
 * A session connects to the local daemon and shares memory (arenas) with it. A communicator joins
 * the ranks that reduce together. Tensors are registered once by name; then every pass over the
 * model is a step: submit each tensor when its gradient is ready, end the step, wait, use the
 * results. Single tensors outside steps go through cgx_allreduce.
 *
 * Conventions
 *  - Handles are opaque. Whoever creates one closes it; closing a session closes its communicators.
 *  - A function that can fail returns cgx_status: CGX_OK (0), or a code whose text is
 *    cgx_last_error() of the same thread, until that thread's next failing call. Results come
 *    through the last arguments, and only on success, except where a function says otherwise.
 *  - Option structs begin with their size, so that programs and libraries of different age meet:
 *    `cgx_open_options options = {.size = sizeof options};`. In the rest zero means "the default".
 * A library takes a struct of an older header, and one of a newer header unless a field that it
 *    does not know is set: CGX_UNIMPLEMENTED names the struct. Strings are copied.
 *  - Enumerations are passed as int, so that a wrong number is an error and not undefined.
 *  - Time-outs are milliseconds. Negative: the communicator's own time-out. 0: look, do not wait.
 *  - "In the arena" means: inside one allocation of cgx_arena_alloc of the same session, or in
 *    memory that it has imported.
 *  - A wait that timed out ends nothing: the daemon goes on using the buffers of that call or step,
 *    until cgx_comm_close of its communicator has returned CGX_OK. Use other memory, or close it.
 *  - What a later version will do is declared here with the word UNIMPLEMENTED: asking for it is
 *    answered with that status, which names what is missing, and nothing else happens.
 *
 * Threads
 *  - Every function may be called from any thread at any time, cgx_close being the last one for its
 *    session. Calls that wait do not hold up others. Submits of one step may come from several
 *    threads; its cgx_step_end must come after all of them.
 *  - All ranks make the same cgx_comm_create, cgx_commit and cgx_allreduce calls in the same order;
 *    the order of submits inside a step is free.
 *
 * Fork
 *  - In a forked child the arena stays readable and writable, and every call on a session or
 *    communicator of the parent answers CGX_FORKED; cgx_close there only frees the child's copy. A
 *    child that wants to reduce opens its own session.
 *
 * Failure
 *  - Nothing waits longer than its time-out. If the daemon dies or is stopped every waiting call
 *    answers CGX_DAEMON_LOST within seconds, and so does every later one: close and open again.
 *  - After a failed step the buffers of its tensors are undefined: cgx_step_redo, fill them again,
 *    submit. */
#ifndef CGX_CGX_H_
#define CGX_CGX_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CGX_API __attribute__((visibility("default")))

/* Grows with every change that a compiled program could notice; cgx_abi() is the library's. */
#define CGX_ABI 2

/* Status codes: CGX_OK = 0, CGX_CANCELLED, CGX_INVALID_ARGUMENT, ... The list with its meanings. */
typedef enum cgx_status {
#define X(name, number, meaning) CGX_##name = number,
#include "cgx/status_codes.def"
#undef X
} cgx_status;

/* Element types: CGX_F32 = 0, CGX_F16, CGX_BF16, CGX_F64, CGX_I8, CGX_U8, CGX_I32, CGX_I64. */
typedef enum cgx_dtype {
#define X(name, number, bytes, text) CGX_##name = number,
#include "cgx/dtypes.def"
#undef X
} cgx_dtype;

typedef enum cgx_op {
  CGX_SUM = 0,
  CGX_AVG = 1, /* the sum times 1 / ranks, for fp64 in fp64, else in fp32; all ranks count, absent
                * ones too */
} cgx_op;

typedef struct cgx_session cgx_session;
typedef struct cgx_comm cgx_comm;
typedef struct cgx_arena cgx_arena;

/* --- About the library ------------------------------------------------------------------------ */

CGX_API const char* cgx_version(void);
CGX_API uint32_t cgx_abi(void);
/* "STEP_OPEN"; "UNKNOWN" for a number outside the list. */
CGX_API const char* cgx_status_name(int status);
CGX_API const char* cgx_status_meaning(int status);
/* "fp32", and 4; "unknown" and 0 for a number outside the list. */
CGX_API const char* cgx_dtype_name(int dtype);
CGX_API size_t cgx_dtype_bytes(int dtype);
/* "broadcast"; "unknown" for a number outside the list. */
CGX_API const char* cgx_collective_name(int collective);
/* What went wrong in this thread's last failing call; "" if none failed. Never NULL. */
CGX_API const char* cgx_last_error(void);

/* --- Session ---------------------------------------------------------------------------------- */

typedef struct cgx_open_options {
  size_t size; /* sizeof(cgx_open_options) */
  /* NULL: $CGX_SOCKET, else the user's daemon, else the machine's (client/README.md). */
  const char* socket;
  /* NULL: $CGX_JOB, else "default". A job belongs to (user, name). */
  const char* job;
  /* Size of the first arena; 0: 64 MiB. More are added on demand, 64 at most. On a GPU the size of
   * each that needs no more, up to 64 MiB, unless the GPU has less memory left. */
  uint64_t arena_bytes;
  /* 0: 10,000. Includes starting a daemon with CGX_AUTOSTART=1. */
  uint32_t connect_timeout_ms;
  /* Spin before sleeping in waits; 0: $CGX_SPIN_US, else sleep at once. CGX_RESOURCE_EXHAUSTED when
   * ranks and daemon do not have a core each. */
  uint32_t spin_us;
} cgx_open_options;

/* `options` NULL: the defaults. */
CGX_API cgx_status cgx_open(const cgx_open_options* options, cgx_session** session);
/* Closes communicators, wakes their waiters with CGX_CANCELLED, ends the connection. Arena memory
 * stays mapped while somebody retains it. Waits for what streams still do with tensors that were
 * handed over on them. CGX_TIMED_OUT: they have not done it for 10 s; the session is over, and its
 * memory stays until the process ends. NULL is allowed. */
CGX_API cgx_status cgx_close(cgx_session* session);

/* --- Arena ------------------------------------------------------------------------------------ */

/* Memory shared with the daemon, prefaulted, aligned to `alignment` (a power of two up to 4096; 0:
 * 64). CGX_ARENA_FULL when 64 arenas are full, CGX_RESOURCE_EXHAUSTED when the machine is, or the
 * daemon's limits.arena_bytes. */
CGX_API cgx_status cgx_arena_alloc(cgx_session* session, size_t bytes, size_t alignment,
                                   void** memory);

typedef enum cgx_arena_kind {
  CGX_ARENA_HOST = 0,
  CGX_ARENA_DEVICE = 1, /* of the GPU of the current CUDA context, which `device` names */
} cgx_arena_kind;

typedef struct cgx_arena_options {
  size_t size; /* sizeof(cgx_arena_options) */
  size_t bytes;
  size_t alignment;   /* as for cgx_arena_alloc */
  int kind;           /* cgx_arena_kind */
  uint32_t reserved;  /* 0 */
  uint8_t device[16]; /* its UUID; 0 on the host */
} cgx_arena_options;

/* The same, where the options say. */
CGX_API cgx_status cgx_arena_alloc_at(cgx_session* session, const cgx_arena_options* options,
                                      void** memory);
/* Memory of a GPU that the caller has allocated itself (cuMemAlloc, cudaMalloc, torch's allocator)
 * and frees itself: tensors in it are read and written in place, as in memory of
 * cgx_arena_alloc_at. `options`: kind CGX_ARENA_DEVICE, the device, bytes (8 or more), alignment 0;
 * `memory` begins at a multiple of 64, in one allocation, all of which the daemon's worker opens,
 * once: several parts of it may be imported, and a part several times. While this call runs nobody
 * may touch the first 8 bytes of `memory`, through which the worker is found; they are the same
 * afterwards. CGX_UNIMPLEMENTED: such memory has no CUDA IPC handle (torch's expandable segments,
 * other memory that cuMemAlloc did not make), or the machine lets none through; hand it over as it
 * is, and it is copied. */
CGX_API cgx_status cgx_arena_import(cgx_session* session, const cgx_arena_options* options,
                                    void* memory);
/* Undoes one import, before the memory may be freed. Waits until nothing names it (calls, submits,
 * homes of tensors: see cgx_arena_free), streams have done what was handed over on them, and the
 * worker has closed the allocation, unless other imports need it; CGX_TIMED_OUT: nothing is undone.
 * Negative: for ever. cgx_close ends all. */
CGX_API cgx_status cgx_arena_end_import(cgx_session* session, void* memory, int64_t timeout_ms);
/* Legal at any time. What the daemon may still read or write is not given out again before it is
 * done: memory of calls and submits that are unfinished, also after a time-out, and the home of a
 * tensor, until cgx_comm_close of the communicator has returned CGX_OK. */
CGX_API cgx_status cgx_arena_free(cgx_session* session, void* memory);
/* Keeps the mapping around `memory` alive beyond cgx_close, until released. */
CGX_API cgx_status cgx_arena_retain(cgx_session* session, const void* memory, cgx_arena** arena);
CGX_API void cgx_arena_release(cgx_arena* arena);

/* --- Communicator ----------------------------------------------------------------------------- */

/* How ranks find each other: a small key-value store all of them reach (torch's store, MPI, ...).
 * Keys are zero-terminated. Both return 0 on success. `put` takes the place of an earlier value,
 * without which ranks meet only once. `get` copies at most `capacity` bytes and stores the value's
 * size in *bytes. For a key that does not exist yet it returns CGX_NOT_FOUND and is asked again,
 * within the communicator's time-out; the error then names the missing ranks. It may instead wait
 * until the key exists, within a time-out of its own, which then counts: it returns CGX_TIMED_OUT.
 * Anything else ends the meeting as CGX_UNAVAILABLE, with the number. */
typedef struct cgx_rendezvous {
  int (*put)(void* user, const char* key, const void* value, size_t bytes);
  int (*get)(void* user, const char* key, void* value, size_t capacity, size_t* bytes);
  void* user;
} cgx_rendezvous;

typedef struct cgx_comm_options {
  size_t size;               /* sizeof(cgx_comm_options) */
  const char* name;          /* same on all ranks, unique among the job's open communicators */
  uint32_t rank, ranks;      /* this process's place; ranks 0 means 1 */
  uint64_t first_step;       /* same on all ranks */
  uint64_t timeout_ms;       /* bounds every wait of this communicator; 0: as the daemon has it,
                              * timeouts.communicator_ms, 30 minutes by default */
  cgx_rendezvous rendezvous; /* may be empty when ranks is 1 or $CGX_LEADER=host:port is set: rank 0
                              * serves there, see deploy/REFERENCE.md */
  uint8_t device[16]; /* UUID of the GPU of the current CUDA context: its tensors are reduced there,
                       * by the daemon's worker, and must be of fp32, fp16 or bf16; 0: on the host.
                       * The same for all ranks of a machine. Where the GPU's memory cannot be
                       * shared the tensors are staged on the host, as without it. */
} cgx_comm_options;

/* Collective: returns when every rank has joined on every machine. */
CGX_API cgx_status cgx_comm_create(cgx_session* session, const cgx_comm_options* options,
                                   cgx_comm** comm);
/* What bounds the waits of this communicator: the caller's timeout_ms or, without it, the daemon's
 * own. */
CGX_API cgx_status cgx_comm_timeout(cgx_comm* comm, uint64_t* timeout_ms);
/* Every call under way in other threads and every later one answers CGX_CANCELLED, within a second
 * (a cgx_register that makes memory does that first); cgx_comm_close is what is left to do. */
CGX_API cgx_status cgx_comm_cancel(cgx_comm* comm);
/* The same, then leaves and frees: no other thread may use `comm` from now on, those that are
 * inside leave first. Returns when the daemon has said that nothing of this communicator is read or
 * written in this session's arenas any more; until then, at most the communicator's time-out, what
 * was under way goes on. CGX_TIMED_OUT: it did not say so in time; the communicator is gone, and
 * the memory of what was unfinished is not given out again while the session is open. So it is,
 * with CGX_OK, where the daemon was lost. CGX_TIMED_OUT, too, where a stream has not made a copy of
 * a tensor within that time: the copy keeps its memory. NULL is allowed. */
CGX_API cgx_status cgx_comm_close(cgx_comm* comm);

/* --- Tensors ---------------------------------------------------------------------------------- */

typedef enum cgx_tensor_kind {
  CGX_TENSOR_DENSE = 0,
  CGX_TENSOR_ROWS = 1, /* UNIMPLEMENTED: some rows of a matrix in each step, named by indices */
} cgx_tensor_kind;

typedef struct cgx_tensor_options {
  size_t size;      /* sizeof(cgx_tensor_options) */
  const char* name; /* unique in the communicator; policy rules match it */
  int dtype;        /* cgx_dtype */
  int op;           /* cgx_op */
  int kind;         /* cgx_tensor_kind */
  uint32_t dims;    /* 0..8; 0 is one element */
  const uint64_t* shape;
  void* home; /* in the arena; NULL: the library allocates it, and frees it with the communicator */
} cgx_tensor_options;

/* The tensor's id, counted from 0. All ranks register the same tensors in the same order. */
CGX_API cgx_status cgx_register(cgx_comm* comm, const cgx_tensor_options* options, uint32_t* id);
/* The home region: where in-place submits read and write, where an absent rank gets the result. */
CGX_API cgx_status cgx_tensor_home(cgx_comm* comm, uint32_t id, void** memory, size_t* bytes);
/* Collective, between steps: compares the tables of all ranks and prepares the plan. */
CGX_API cgx_status cgx_commit(cgx_comm* comm);

/* --- Steps ------------------------------------------------------------------------------------ */

typedef enum cgx_tensor_state {
  CGX_TENSOR_PENDING = 0,
  CGX_TENSOR_RESULT = 1, /* the reduced value is in the output buffer */
  CGX_TENSOR_FILLED = 2, /* absent here, present elsewhere: the result is in the home region */
  CGX_TENSOR_ABSENT = 3, /* absent on all ranks: nothing was touched */
  CGX_TENSOR_FAILED = 4,
} cgx_tensor_state;

/* Hands over tensors at home: the daemon reads them there and writes the results there. The first
 * submit of a step opens it and keeps the one before (see cgx_step_done). At most two steps are
 * unfinished. */
CGX_API cgx_status cgx_submit(cgx_comm* comm, uint64_t step, const uint32_t* ids, size_t count);
/* Reads ids[i] at in[i], writes its result at out[i], both in the arena; they may be equal, else
 * they must not overlap. */
CGX_API cgx_status cgx_submit_inout(cgx_comm* comm, uint64_t step, const uint32_t* ids,
                                    const void* const* in, void* const* out, size_t count);
/* Says early that this rank will not submit these tensors in this step. */
CGX_API cgx_status cgx_absent(cgx_comm* comm, uint64_t step, const uint32_t* ids, size_t count);
/* The rest is absent. Only after it may the step be waited for. */
CGX_API cgx_status cgx_step_end(cgx_comm* comm, uint64_t step);

/* For error feedback: in which unit this rank's gradients are from the next step that opens on, as
 * loss scale / learning rate; 1 until it is called. Without it a residual of before a change of
 * either would count too much or too little after it. Finite and above 0; the same on all ranks of
 * a machine. */
CGX_API cgx_status cgx_set_gradient_unit(cgx_comm* comm, double unit);

typedef enum cgx_step_fate {
  CGX_KEPT = 0,    /* the update is applied; implied by the first submit of the next step */
  CGX_DROPPED = 1, /* the update is skipped (overflow): residuals of the step are dropped too */
} cgx_step_fate;
/* Same on all ranks; after the step is complete and before the next one begins. */
CGX_API cgx_status cgx_step_done(cgx_comm* comm, uint64_t step, int fate);
/* After a failed step, by every rank that was told so: *step is the number to submit again. Told is
 * who had spoken of the step before it failed, as the daemons saw it; what another rank says of it
 * later counts, and its cgx_wait ends when the others have redone the step. */
CGX_API cgx_status cgx_step_redo(cgx_comm* comm, uint64_t* step);

/* Waits until the step is finished here; the failure's status if it failed, CGX_STEP_OPEN before
 * this rank's own cgx_step_end. */
CGX_API cgx_status cgx_wait(cgx_comm* comm, uint64_t step, int64_t timeout_ms);
/* Looks without waiting, at any time: states[i] (may be NULL) is the cgx_tensor_state of ids[i],
 * *pending how many are unfinished. If some failed: the failure's status, with states and *pending
 * written. */
CGX_API cgx_status cgx_test(cgx_comm* comm, uint64_t step, const uint32_t* ids, size_t count,
                            uint8_t* states, size_t* pending);

typedef struct cgx_step_report {
  size_t size; /* sizeof(cgx_step_report), set by the caller; no more than that is written */
  uint64_t step;
  uint32_t attempt;  /* grows with every redo */
  uint32_t finished; /* 1: nothing of it is under way any more */
  uint64_t epoch;    /* the plan that governed it; 0 while unknown */
  uint64_t policy_version;
  uint32_t results, filled, absent, failed; /* tensors by state */
} cgx_step_report;
/* About one of the last four steps. DAEMON_LOST: it is unfinished, and stays so. */
CGX_API cgx_status cgx_step_info(cgx_comm* comm, uint64_t step, cgx_step_report* report);

/* --- Calls outside steps ---------------------------------------------------------------------- */

/* One tensor, now (dtype: cgx_dtype, op: cgx_op): same order on all ranks, legal inside an open
 * step too. `in` and `out` as for cgx_submit_inout. At most 4 are in flight per communicator; a
 * fifth waits for room. */
CGX_API cgx_status cgx_allreduce(cgx_comm* comm, const void* in, void* out, uint64_t count,
                                 int dtype, int op);
/* Returns at once with the call's number. Outcomes are kept for the last 64 calls. */
CGX_API cgx_status cgx_allreduce_async(cgx_comm* comm, const void* in, void* out, uint64_t count,
                                       int dtype, int op, uint64_t* call);
CGX_API cgx_status cgx_wait_call(cgx_comm* comm, uint64_t call, int64_t timeout_ms);
/* *done: 1 when finished; then the call's status is returned. */
CGX_API cgx_status cgx_test_call(cgx_comm* comm, uint64_t call, int* done);

/* --- Whatever can be handed over -------------------------------------------------------------- */

/* CGX_ALLREDUCE = 0, CGX_REDUCE_SCATTER, CGX_ALL_GATHER, ... All but CGX_ALLREDUCE: UNIMPLEMENTED.
 */
typedef enum cgx_collective {
#define X(name, number, text) CGX_##name = number,
#include "cgx/collectives.def"
#undef X
} cgx_collective;

typedef enum cgx_post_kind {
  CGX_POST_CALL = 0,   /* outside steps, as cgx_allreduce_async */
  CGX_POST_TENSOR = 1, /* of a step, as cgx_submit and cgx_submit_inout */
} cgx_post_kind;

typedef enum cgx_memory {
  CGX_MEMORY_ARENA = 0,
  CGX_MEMORY_CUDA = 1, /* of a GPU: see "Tensors in the memory of a GPU" */
} cgx_memory;

typedef struct cgx_post_options {
  size_t size;     /* sizeof(cgx_post_options) */
  int kind;        /* cgx_post_kind */
  int collective;  /* calls: cgx_collective */
  const void* in;  /* tensors: NULL, and `out` NULL: at home */
  void* out;       /* may be equal to `in` */
  uint64_t count;  /* calls: elements */
  int dtype;       /* calls: cgx_dtype */
  int op;          /* calls: cgx_op */
  uint64_t step;   /* tensors */
  uint32_t tensor; /* tensors: the id */
  uint32_t root; /* UNIMPLEMENTED: the rank where broadcast, reduce, gather, scatter have theirs */
  uint32_t peer, tag;  /* UNIMPLEMENTED: of send and recv */
  const void* indices; /* UNIMPLEMENTED: in the arena, the numbers of the rows that `in` has */
  uint64_t rows;       /* UNIMPLEMENTED: how many */
  int indices_dtype;   /* UNIMPLEMENTED: CGX_I32 or CGX_I64 */
  uint32_t word_value; /* UNIMPLEMENTED: `in` may be read when *word has reached this value */
  uint32_t* word;      /* UNIMPLEMENTED: a timeline word that the caller's stream writes */
  void* stream;        /* GPU: the CUstream that `in` is ready on; NULL: the default stream */
  int memory;          /* cgx_memory */
  uint32_t reserved;   /* 0 */
} cgx_post_options;

/* Hands over one tensor of a step, or begins a call and stores its number in *call (NULL: nobody
 * asks). */
CGX_API cgx_status cgx_post(cgx_comm* comm, const cgx_post_options* options, uint64_t* call);

/* --- Tensors in the memory of a GPU ---------------------------------------------------------- */

/* cgx_post with memory = CGX_MEMORY_CUDA: `in` and `out` are memory of the GPU whose context is
 * current in this thread, each within one allocation or within pieces of a pool that are mapped
 * side by side. The tensor's bytes are copied by `stream`, behind what it holds, into pinned
 * memory of the arena; the daemon gets them when they are there, and the caller does not wait.
 * Until then, what this thread and others hand over to the same communicator queues up behind it.
 * The CUDA driver is loaded by the first such call.
 * CGX_NOT_FOUND: there is none; CGX_INVALID_ARGUMENT: no current context, memory of another one,
 * freed or too short, a stream that is being captured in a CUDA graph. Where the GPU fails before
 * the bytes have come (CGX_DEVICE_LOST) this rank leaves the communicator: every later call answers
 * that status, other ranks hear that it left.
 * `out` is untouched until one of these has waited for the step or the call (as cgx_wait and
 * cgx_wait_call do) and enqueued the copies to the GPU on `stream`, of the same context: what is
 * enqueued there from then on sees the results. A result is copied once.
 * In a communicator with a `device` the daemon's worker reads and writes the GPU's memory itself:
 * `in` and `out` of cgx_arena_alloc_at on that device, or of cgx_arena_import, are used in place
 * (also NULL and NULL: at home), other memory of the GPU is copied there and back, on the same
 * streams. The worker waits for what `stream` holds; nothing on a stream of this process waits for
 * the worker or the network. The home of a tensor that this rank leaves out may be written from
 * cgx_absent or cgx_step_end on, whatever streams still hold: no stream orders that.
 * CGX_DEVICE_LOST: the worker or its GPU is gone, for this job only; a new communicator gets a new
 * worker. */
CGX_API cgx_status cgx_stream_wait(cgx_comm* comm, uint64_t step, void* stream, int64_t timeout_ms);
CGX_API cgx_status cgx_stream_wait_call(cgx_comm* comm, uint64_t call, void* stream,
                                        int64_t timeout_ms);
/* Has the CUDA driver pin the arena around `memory`, so that copies between it and a GPU need no
 * host; until cgx_close. */
CGX_API cgx_status cgx_arena_pin(cgx_session* session, const void* memory);

/* --- Events ----------------------------------------------------------------------------------- */

/* Takes in what the daemon finished. *seen is the event count the caller saw last (start with 0):
 * while it equals the session's count the call waits, at most timeout_ms (negative: for ever); it
 * is updated on success. CGX_TIMED_OUT if nothing happened. */
CGX_API cgx_status cgx_poll(cgx_session* session, uint64_t* seen, int64_t timeout_ms);
/* Adds one to the event count, so that a cgx_poll in another thread returns. */
CGX_API cgx_status cgx_wake(cgx_session* session);
/* For event loops: becomes readable when something finished; cgx_poll(.., 0) makes it unreadable.
 * It belongs to the session and does not tell of a lost daemon: poll with a time-out. */
CGX_API cgx_status cgx_event_fd(cgx_session* session, int* descriptor);

/* --- For people ------------------------------------------------------------------------------- */

/* How the communicator's tensors travel, as lines of fields separated by tabs (their meaning:
 * daemon/data/session_report.h): one page from tensor `first` on (begin with 0). *next is the first
 * tensor of the next page, 0 after the last one. `text` has room for CGX_REPORT_BYTES and ends in
 * a zero byte. */
#define CGX_REPORT_BYTES 98304
CGX_API cgx_status cgx_report(cgx_comm* comm, uint32_t first, char* text, uint32_t* next);

#ifdef __cplusplus
}
#endif

#endif
