"""What outlives a communicator: after a death, error feedback goes on with what the daemons have kept of it."""

import unittest

from cluster_case import ClusterCase
from ranks import Rank, Tensor

TENSORS = (Tensor("weight", (300, 411)),)
STEPS = 6  # the rank dies after half of them


class Kept(ClusterCase):
    MACHINES = 2
    CONFIG = {"policy": {"codec": "maxmin:2,feedback"}, "timeouts": {"residuals_ms": 5000}}

    def results(self, job, comm, steps):
        """Rank 0's after the last step; all ranks have the same."""
        for step in steps:
            job.submit(comm, step)
            job.must("wait", comm, step)
        got = [job.result(comm, rank, 0).tobytes() for rank in range(len(job.ranks))]
        self.assertTrue(all(each == got[0] for each in got))
        return got[0]

    def job_in_halves(self, first_steps):
        """Rank 1 dies after `first_steps`; it and the survivor meet again under the same name. Its last result."""
        job = self.job([0, 1], name="halves")
        comm = job.join(tensors=TENSORS)
        self.results(job, comm, range(1, first_steps + 1))
        job.submit(comm, first_steps + 1, ranks=[0])
        job.ranks[1].kill()
        self.assert_status(job.ranks[0].ask("wait", comm, first_steps + 1), "RANK_LOST", "rank 1")
        job.ranks[0].must("close_comm", comm)
        job.ranks[1].end()
        job.ranks[1] = Rank(self.daemons[1])
        job.ranks[1].must("open", job.name, "-", 8 << 20)
        for rank in range(2):
            job.create_soon(rank, first_step=first_steps + 1)
        handles = [rank.receive().value for rank in job.ranks]
        job.register(handles, TENSORS)
        job.must("commit", handles)
        result = self.results(job, handles, range(first_steps + 1, STEPS + 1))
        job.close()
        return result

    def log_lines(self, text):
        return [daemon.log().count(text) for daemon in self.daemons]

    def test_a_job_that_lost_a_rank_goes_on_as_if_it_had_not(self):
        whole = self.job([0, 1], name="halves")
        expected = self.results(whole, whole.join(tensors=TENSORS), range(1, STEPS + 1))
        whole.close()
        self.wait_until(lambda: self.residual_bytes() == [0, 0], "the end of what the first job left", timeout_s=20)
        self.assertTrue(self.job_in_halves(STEPS // 2) == expected)
        self.assertEqual(self.log_lines("error feedback goes on with what was kept"), [1, 1])
        self.assertNotEqual(self.residual_bytes(), [0, 0])
        self.wait_until(lambda: self.residual_bytes() == [0, 0], "the end of what the second job left", timeout_s=20)

    def residual_bytes(self):
        return [int(daemon.control_tool("status").get("residual_bytes", 0)) for daemon in self.daemons]


if __name__ == "__main__":
    unittest.main()
