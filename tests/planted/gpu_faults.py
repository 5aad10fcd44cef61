"""Planted faults of several sites in a daemon, and of what cgxd and its GPU workers say to each other. faults.py has the others."""

from fault import Fault

BYTE_RING = "daemon/gpu/byte_ring.h"
JOB_MESSAGE = "daemon/gpu/job_message.cc"
ENGINE_LINKS = "scheduler/engine/engine_links.cc"
JOIN = "scheduler/communicator/communicator_join.cc"

GPU_FAULTS = [
    # Sites of one daemon
    Fault("sibling-slab-not-given-back", ENGINE_LINKS,
          "    give_back(frame.token);\n    ++delivered;",
          "    if (!@) give_back(frame.token);\n    ++delivered;",
          "frames between GPUs of a machine take its slabs, until none is left and a step waits for ever", ("scheduler",)),
    Fault("one-host-rank-beside-gpus", JOIN,
          "CGX_RETURN_IF_ERROR(check_sites(message, members.title()));",
          "if (!@) CGX_RETURN_IF_ERROR(check_sites(message, members.title()));",
          "a rank that forgot its GPU trains as another machine", ("scheduler",)),
    # A GPU worker's jobs
    Fault("job-ring-wraps-unmarked", BYTE_RING,
          "if (skipped > 0) std::memset(",
          "if (skipped > 0 && !@) std::memset(",
          "behind the end of the ring the worker reads what lay there before", ("daemon",)),
    Fault("job-ring-overfull", BYTE_RING,
          "if (tail_ - head + skipped + message.size() > bytes_) return false;",
          "if (!@ && tail_ - head + skipped + message.size() > bytes_) return false;",
          "a job is written over one that the worker has yet to read", ("daemon",)),
    Fault("job-size-believed", BYTE_RING,
          "size % kRingUnit != 0 || size > to_end || size > tail - head_) {",
          "size % kRingUnit != 0 || (!@ && (size > to_end || size > tail - head_))) {",
          "a worker reads beyond its ring", ("daemon",)),
    Fault("job-counts-believed", JOB_MESSAGE,
          "if (rest.size() / sizeof(T) < count) return false;",
          "if (!@ && rest.size() / sizeof(T) < count) return false;",
          "a job's places are read behind its message", ("daemon",)),
    Fault("job-of-any-stream", JOB_MESSAGE,
          "|| job.head.stream >= kStreams) return no_job;",
          "|| (!@ && job.head.stream >= kStreams)) return no_job;",
          "a job runs on a stream that is not there", ("daemon",)),
]
