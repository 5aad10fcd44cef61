"""Many short jobs, one after another, leave the daemons as they were: descriptors, sockets, memory.

CGX_ENDURANCE_JOBS sets how many (default 60); 1,000 take a few minutes.
"""

import os
import time
import unittest

import sums
from cluster_case import ClusterCase
from ranks import Job, Tensor
from use import Use, settle

JOBS = int(os.environ.get("CGX_ENDURANCE_JOBS", "60"))
KILLED_EACH = 10  # every tenth job is killed instead of closed
LINGER_S = 3.0    # a link outlives its job by this
PACE_S = 0.15     # a job begins no sooner after the one before, so that most links end before the last job
TENSORS = (Tensor("weight", (64, 33)), Tensor("bias", (33,)))
JOB_BYTES_MAX = 4096  # that a job may leave in the daemon's memory (names, counters), on average


def short_job(daemons, number):
    """A step and a call between the first two; returns the moments when it began and ended."""
    began = time.monotonic()
    job = Job(daemons, [0, 1], arena_bytes=1 << 20)
    try:
        comm = job.join(tensors=TENSORS)
        job.step(comm, 1)
        for rank, each in enumerate(job.ranks):
            path = job.path("in", rank)
            job.data(1, rank, 0).tofile(path)
            each.send("allreduce", comm, sums.DTYPES["fp32"][0], sums.SUM, 64 * 33, 64 * 33 * 4, path, job.path("out", rank))
        for rank in job.ranks:
            answer = rank.receive()
            assert answer.ok, answer.text
        if number % KILLED_EACH == 0:
            for rank in job.ranks:
                rank.kill()
        else:
            job.must("close")
    finally:
        job.close()
    ended = time.monotonic()
    time.sleep(max(0.0, began + PACE_S - ended))
    return began, ended


class ShortJobs(ClusterCase):
    def test_leave_the_daemons_as_they_were(self):
        for number in range(5):
            short_job(self.daemons, number)
        settle(self.daemons, LINGER_S + 1)
        before = [Use(daemon) for daemon in self.daemons]
        times = [short_job(self.daemons, number) for number in range(JOBS)]
        settle(self.daemons, LINGER_S + 1)
        # A connection waits for the next link to that daemon: as many as there were links at once.
        at_once = max(sum(1 for began, ended in times if began <= at < ended + LINGER_S + 0.5) for at, _ in times)
        for daemon, was in zip(self.daemons, before):
            now = Use(daemon)
            print(f"figure: machine {daemon.machine.index}: {was} before {JOBS} jobs, {now} after; "
                  f"{at_once} links at once", flush=True)
            self.assertLessEqual(now.descriptors, was.descriptors + min(at_once, JOBS * 3 // 4) + 2)
            self.assertLessEqual(now.memory_bytes, was.memory_bytes + (4 << 20) + JOBS * JOB_BYTES_MAX)
        self.assert_daemons_serve()


if __name__ == "__main__":
    unittest.main()
