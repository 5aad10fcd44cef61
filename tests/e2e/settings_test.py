"""Daemons configured differently: the coordinator's policy counts on all of them, or they say what does not fit."""

import unittest

import sums
from cluster_case import ClusterCase
from daemons import merged
from ranks import Tensor

COMPRESSED, RAW, NARROW, ODD = range(4)  # machines
MATRIX = (Tensor("matrix", (300, 411), op=sums.AVG),)
CONFIGS = {
    COMPRESSED: {"policy": {"codec": "maxmin:4,bucket=512,feedback"}},
    RAW: {"policy": {"codec": "fp32"}},
    NARROW: {"limits": {"plan_bytes": "128 MiB"}},
    ODD: {"transport": {"segment_bytes": "128 KiB"}},
}


class DifferentSettings(ClusterCase):
    MACHINES = 4

    @classmethod
    def config_of(cls, machine):
        return merged({"timeouts": {"join_ms": 20000}}, CONFIGS[machine])

    def results(self, places):
        """Every rank's result of a step, the reference's last."""
        job = self.job(places)
        comm = job.join(tensors=MATRIX)
        job.submit(comm, 1)
        job.must("wait", comm, 1)
        return [job.result(comm, rank, 0).tobytes() for rank in range(len(places))] + [job.expected(1, 0).tobytes()]

    def test_where_policies_differ_the_lowest_ranks_counts_for_all(self):
        ours, theirs, right = self.results([RAW, COMPRESSED])
        self.assertTrue(ours == theirs == right)
        ours, theirs, right = self.results([COMPRESSED, RAW])
        self.assertTrue(ours == theirs != right)

    def test_a_plan_that_does_not_fit_on_a_machine_is_refused_on_all_by_its_name(self):
        job = self.job([COMPRESSED, NARROW], arena_bytes=96 << 20)
        comm = job.create()
        job.register(comm, (Tensor("large", (4096, 5120)),))  # 80 MiB
        for answer in job.all("commit", comm):
            self.assert_status(answer, "RESOURCE_EXHAUSTED", "machine 1", "plan_bytes")

    def test_transport_settings_that_must_agree_are_told_on_both_sides(self):
        for places in ([RAW, ODD], [ODD, RAW]):
            with self.subTest(places=places):
                job = self.job(places)
                for answer in job.all("create", "grads", "%d", 2, 1, 60000, job.folder):
                    self.assert_status(answer, "MISMATCH", str(128 << 10), str(256 << 10))
                    self.assertLess(answer.seconds, 5, "told, not timed out")

    def tearDown(self):
        self.assertTrue(all(daemon.process.poll() is None for daemon in self.daemons))
        ours, theirs, right = self.results([RAW, NARROW])
        self.assertTrue(ours == theirs == right)


if __name__ == "__main__":
    unittest.main()
