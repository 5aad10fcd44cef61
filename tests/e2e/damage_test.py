"""What is damaged is told on all machines, and stays where it was: values that are no numbers, results that differ."""

import unittest

import numpy as np

import sums
from cluster_case import ClusterCase
from ranks import Tensor

BUCKET = 512
TENSORS = (Tensor("layer.weight", (40, BUCKET)), Tensor("exact", (100, 30)))
HURT = 7 * BUCKET + 11  # an element of bucket 7
STEPS_MAX = 500  # until a result is hashed while somebody writes there


class Damage(ClusterCase):
    CONFIG = {"policy": {"codec": f"maxmin:4,feedback,bucket={BUCKET}", "min_elements": 64, "replica_check_steps": 1,
                         "stats_steps": 0, "rules": [{"match": "exact", "codec": "fp32"}]}}

    def start(self, places=(0, 1, 1)):
        job = self.job(list(places))
        return job, job.join(tensors=TENSORS)

    def step(self, job, comm, step, hurt=None):
        """Results by tensor, the same on all ranks; `hurt`: what rank 2 has in one place of each tensor."""
        job.fill(comm, step)
        for index, tensor in enumerate(TENSORS if hurt is not None else ()):
            values = job.data(step, 2, index).reshape(-1)
            values[HURT % values.size] = hurt
            path = job.path("hurt", index)
            values.tofile(path)
            job.ranks[2].must("fill", comm, index, path)
        job.must("submit", comm, step, 0, 1)
        job.must("end", comm, step)
        job.must("wait", comm, step)
        results = []
        for index in range(len(TENSORS)):
            bits = {job.result(comm, rank, index).tobytes() for rank in range(3)}
            self.assertEqual(len(bits), 1, "ranks have different bits")
            results.append(np.frombuffer(bits.pop(), np.float32))
        return results

    def test_what_is_no_number_spoils_its_bucket_everywhere_and_no_later_step(self):
        job, comm = self.start()
        clean = self.step(job, comm, 1)
        self.assertTrue(np.isfinite(clean[0]).all())
        for step, hurt in ((2, np.nan), (4, np.inf), (6, -np.inf)):
            with self.subTest(hurt=hurt):
                compressed, exact = self.step(job, comm, step, hurt)
                spoilt = np.isnan(compressed.reshape(-1, BUCKET))
                self.assertTrue(spoilt[7].all(), "its bucket")
                self.assertFalse(np.delete(spoilt, 7, axis=0).any(), "other buckets")
                right = job.expected(step, 1).reshape(-1).copy()
                right[HURT % right.size] = hurt
                self.assertTrue(np.array_equal(exact, right, equal_nan=True))
                after, exact = self.step(job, comm, step + 1)
                wanted = job.expected(step + 1, 0).reshape(-1)
                self.assertTrue(np.isfinite(after).all(), "the error feedback is spoilt")
                # A residual is at most half a level of what was sent before, on three ranks' machines and at the owner.
                self.assertLess(np.abs(after - wanted).max(), 4.0)
                self.assertEqual(exact.tobytes(), job.expected(step + 1, 1).tobytes())

    def wrong_step(self, job, comm, step):
        """What ranks are told when rank 1 writes over the end of a result before it is told that it is there."""
        job.fill(comm, step)
        for words in (("submit", comm, step, 0, 1), ("end", comm, step)):
            told = job.all(*words)
            if not all(answer.ok for answer in told):
                return told
        job.ranks[1].send("scribble", comm, step, 0)
        return [job.ranks[0].ask("wait", comm, step), job.ranks[1].receive()]

    def test_results_that_differ_end_the_job_by_name(self):
        job = self.job([0, 1])
        comm = job.join(tensors=TENSORS)
        bystander, beside = self.start()
        for step in range(1, STEPS_MAX + 1):
            told = self.wrong_step(job, comm, step)
            if not all(answer.ok for answer in told):
                break
        else:
            self.fail(f"nobody noticed in {STEPS_MAX} steps")
        told = [answer if not answer.ok else job.ranks[rank].ask("redo", comm) for rank, answer in enumerate(told)]
        for answer in told:
            self.assert_status(answer, "REPLICA_DIVERGED", "'layer.weight' in step", "machine 0", "machine 1", "lane")
        self.wait_until(lambda: self.daemons[0].counters()["replica_divergences"] == 1, "its counter")
        self.step(bystander, beside, 1)


if __name__ == "__main__":
    unittest.main()
