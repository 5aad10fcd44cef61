/* The memory a client and its daemon share besides the arena: one daemon-made memfd per session.
 *
 *   session memory  := header page, submit ring, completion ring, text slots
 *   submit ring     := CGX_SUBMIT_CAPACITY records of 128 bytes, libcgx writes, the daemon reads
 *   completion ring := CGX_COMPLETION_CAPACITY records of 64 bytes, the daemon writes
 *   text slots      := CGX_TEXT_SLOTS texts of 256 bytes, zero-terminated, the daemon writes
 *
 * Rule for both readers: copy a record once, check the copy, use the copy. Capacities are constants
 * of the version, never read from shared memory; cursors count records and never wrap in practice.
 * What a record does not need is zero; a reader refuses what it cannot do with a field that is set.
 * Plain C11, because it is an ABI. */
#ifndef CGX_PROTO_WIRE_SHM_LAYOUT_H_
#define CGX_PROTO_WIRE_SHM_LAYOUT_H_

#include <stddef.h>
#include <stdint.h>

#define CGX_SHM_MAGIC 0x31584743u /* "CGX1" */
#define CGX_SHM_VERSION 2u
#define CGX_SUBMIT_CAPACITY 4096u
#define CGX_COMPLETION_CAPACITY 8192u
#define CGX_TEXT_SLOTS 64u
#define CGX_TEXT_BYTES 256u

enum cgx_submit_kind {
  CGX_SUBMIT_TENSOR = 1,    /* a tensor of a step */
  CGX_SUBMIT_ABSENT = 2,    /* this rank will not submit `tensor` in `step` */
  CGX_SUBMIT_STEP_END = 3,  /* the rest is absent */
  CGX_SUBMIT_STEP_DONE = 4, /* flags: CGX_STEP_DROPPED or 0 (kept) */
  CGX_SUBMIT_CALL = 5,      /* a single-tensor call outside steps; `step` is the call number */
};

enum cgx_submit_flags {
  CGX_STEP_DROPPED = 1,
  CGX_RECORD_WIDE = 2, /* the second cache line of the record is written; else it counts as 0 */
};

/* What a tensor of a step needs is in the first 64 bytes. What only some calls, collectives,
 * devices and sparse tensors need is in the second, which is neither written nor read where it is
 * all 0: a cache line that passes between two cores is most of what a submit costs. */
struct cgx_submit_record {
  uint8_t kind;     /* enum cgx_submit_kind */
  uint8_t flags;    /* enum cgx_submit_flags */
  uint8_t in_arena; /* which arenas of the session */
  uint8_t out_arena;
  uint32_t comm;        /* the session's handle of the communicator */
  uint64_t step;        /* step number, or call number */
  uint32_t tensor;      /* index in the tensor table */
  uint32_t attempt;     /* which attempt of the step: grows with every redo the client asked for */
  uint64_t count;       /* calls only: elements */
  double gradient_unit; /* tensor, absent, step_end: the step's; 0: 1.0 */
  uint64_t in_offset;   /* bytes from the start of its arena */
  uint64_t out_offset;
  uint64_t cookie; /* comes back in the completion */

  uint8_t dtype;      /* calls only: proto/wire/dtypes.def */
  uint8_t op;         /* calls only: ReduceOp */
  uint8_t collective; /* calls only: proto/wire/collectives.def */
  uint8_t indices_arena;
  uint32_t root; /* the rank that a collective with one begins or ends at */
  uint32_t peer; /* the rank that is sent to or received from */
  uint32_t tag;
  uint64_t indices_offset; /* of the numbers of the rows handed over */
  uint64_t rows;           /* 0: the whole tensor */
  uint32_t word;           /* timeline word to wait for before the input is read; 0: none */
  uint32_t word_value;     /* that it reaches, cyclic */
  uint8_t indices_dtype;   /* of the row numbers: int32 or int64 */
  uint8_t reserved[23];    /* 0 */
};
#define CGX_RECORD_LINE 64u

enum cgx_completion_kind {
  CGX_COMPLETE_TENSOR = 1, /* one per tensor and step, absent ones included */
  CGX_COMPLETE_STEP = 2,   /* one per step_end, after all its tensors */
  CGX_COMPLETE_CALL = 3,
};

enum cgx_outcome {
  CGX_OUTCOME_RESULT = 0, /* the reduced value is in the output buffer */
  CGX_OUTCOME_FILLED = 1, /* absent here, present elsewhere: the result is in the home region */
  CGX_OUTCOME_ABSENT = 2, /* absent on all ranks: nothing was touched */
  CGX_OUTCOME_ERROR = 3,
};

struct cgx_completion_record {
  uint8_t kind;    /* enum cgx_completion_kind */
  uint8_t outcome; /* enum cgx_outcome */
  uint16_t status; /* proto/wire/status_codes.def */
  uint32_t comm;
  uint64_t step; /* or call number */
  uint32_t tensor;
  uint32_t attempt; /* of the record it answers */
  uint64_t epoch;   /* the plan that governed it */
  uint64_t policy_version;
  uint32_t text_slot;   /* valid if text_number != 0 */
  uint32_t text_number; /* 1, 2, ...: the text's number; the slot holds it while not overwritten */
  uint64_t cookie;
  uint32_t word; /* timeline word to wait for before the result is read; 0: none */
  uint32_t word_value;
};

/* Each word another process polls has a cache line of its own. */
struct cgx_shm_header {
  uint32_t magic, version;
  uint64_t communicator_ms; /* written by the daemon: the time-out of a communicator whose program
                               gives none; 0: it does not say */
  uint8_t pad0[48];
  uint64_t submit_tail; /* written by the client: records ever published */
  uint8_t pad1[56];
  uint64_t submit_head; /* written by the daemon: records ever consumed */
  uint8_t pad2[56];
  uint64_t completion_tail; /* written by the daemon */
  uint8_t pad3[56];
  uint64_t completion_head; /* written by the client */
  uint8_t pad4[56];
  uint32_t daemon_sleeping; /* 1: ring the doorbell eventfd after publishing */
  uint32_t daemon_beat; /* the daemon's loop adds 1 at least twice a second; still for seconds: it
                           is stopped. 0: it does not beat */
  uint8_t pad5[56];
  uint32_t wake_word; /* futex: the daemon adds 1 after completions, a client to wake its own */
  uint8_t pad6[60];
  uint32_t
      client_waits; /* bit 0: somebody waits on wake_word; bit 1: signal the completion eventfd */
  uint8_t pad7[60];
};

struct cgx_text_slot {
  uint32_t number; /* written last; the text belongs to this number */
  char text[CGX_TEXT_BYTES - 4];
};

#define CGX_SHM_SUBMIT_OFFSET 4096u
#define CGX_SHM_COMPLETION_OFFSET \
  (CGX_SHM_SUBMIT_OFFSET + CGX_SUBMIT_CAPACITY * (uint32_t)sizeof(struct cgx_submit_record))
#define CGX_SHM_TEXT_OFFSET    \
  (CGX_SHM_COMPLETION_OFFSET + \
   CGX_COMPLETION_CAPACITY * (uint32_t)sizeof(struct cgx_completion_record))
#define CGX_SHM_BYTES (CGX_SHM_TEXT_OFFSET + CGX_TEXT_SLOTS * CGX_TEXT_BYTES)

#ifdef __cplusplus
#define CGX_LAYOUT(condition) static_assert(condition, "ABI")
#else
#define CGX_LAYOUT(condition) _Static_assert(condition, "ABI")
#endif
CGX_LAYOUT(sizeof(struct cgx_submit_record) == 128);
CGX_LAYOUT(offsetof(struct cgx_submit_record, cookie) == 56);
CGX_LAYOUT(offsetof(struct cgx_submit_record, dtype) == CGX_RECORD_LINE);
CGX_LAYOUT(offsetof(struct cgx_submit_record, word) == 96);
CGX_LAYOUT(offsetof(struct cgx_submit_record, reserved) == 105);
CGX_LAYOUT(sizeof(struct cgx_completion_record) == 64);
CGX_LAYOUT(offsetof(struct cgx_completion_record, word) == 56);
CGX_LAYOUT(sizeof(struct cgx_shm_header) == 512);
CGX_LAYOUT(sizeof(struct cgx_text_slot) == CGX_TEXT_BYTES);
CGX_LAYOUT(CGX_SHM_SUBMIT_OFFSET % 128 == 0); /* a record is a pair of cache lines */
#undef CGX_LAYOUT

#endif
