"""A daemon that is asked to stop: jobs leave between two steps, whole, are told why, and meet again afterwards."""

import signal
import threading
import time
import unittest

from cluster_case import RAW, ClusterCase, figure
from daemons import merged
from ranks import Tensor

DRAIN_S = 3.0
BUSY_S = 2.0
LARGE = (Tensor("large", (3000, 1003)), Tensor("small", (64,)))


class Drain(ClusterCase):
    CONFIG = merged(RAW, {"timeouts": {"drain_ms": int(1000 * DRAIN_S)}})

    def tearDown(self):
        for daemon in self.daemons:
            if daemon.process.poll() is not None:
                daemon.start()

    @staticmethod
    def train_until_told(job, comm, step):
        """Steps until one is not made; returns the answers to that one."""
        while True:
            step += 1
            job.all("submit", comm, step, *range(len(job.tensors)))
            job.all("end", comm, step)
            answers = job.all("wait", comm, step)
            if not all(answer.ok for answer in answers):
                return answers

    def stop_soon(self, daemon, how):
        timer = threading.Timer(0.3, how)
        timer.start()
        self.addCleanup(timer.join)

    def test_a_training_job_leaves_between_two_steps_on_all_machines_and_is_told_why(self):
        for name, stopped in (("the coordinator's", 0), ("another", 1)):
            with self.subTest(name):
                job = self.job([0, 1, 1], arena_bytes=64 << 20)
                comm = job.join(tensors=LARGE)
                job.step(comm, 1)
                daemon = self.daemons[stopped]
                self.stop_soon(daemon, lambda d=daemon: d.process.send_signal(signal.SIGTERM))
                answers = self.train_until_told(job, comm, 1)
                for answer in answers:
                    self.assertFalse(answer.ok, "a step is whole everywhere or nowhere")
                    self.assertIn(answer.status, ("UNAVAILABLE", "DAEMON_LOST"), answer.text)
                    self.assertIn("is being stopped (SIGTERM of process", answer.text)
                self.assertEqual(daemon.process.wait(DRAIN_S + BUSY_S), 0)
                self.assertIn("drained=yes", daemon.log())
                daemon.start()
                self.assert_daemons_serve()

    def test_what_does_not_leave_in_time_is_cut_off_by_name(self):
        job = self.job([0, 1])
        comm = job.join()
        job.submit(comm, 1, ranks=[0])  # the other never comes
        job.ranks[0].send("wait", comm, 1)
        began = time.monotonic()
        self.daemons[0].process.send_signal(signal.SIGTERM)
        answer = job.ranks[0].receive()
        self.assertIn(answer.status, ("UNAVAILABLE", "DAEMON_LOST"), answer.text)
        self.assertEqual(self.daemons[0].process.wait(DRAIN_S + BUSY_S), 0)
        figure("a drain that is cut off", time.monotonic() - began, DRAIN_S)
        self.assertGreaterEqual(time.monotonic() - began, DRAIN_S - 0.1)
        self.assertRegex(self.daemons[0].log(), rf"cut off .*'grads' of job '{job.name}' in step 1")

    def test_operators_drain_with_words_others_may_not(self):
        job = self.job([0, 1])
        comm = job.join()
        job.step(comm, 1)
        daemon = self.daemons[1]
        answer = daemon.control_tool("drain", "--reason", "new kernel tonight")
        self.assertEqual(answer["communicators"], 1)
        self.assertEqual(daemon.process.wait(BUSY_S), 0)
        self.assertIn("cgxctl drain by uid", daemon.log())
        for rank in job.ranks:
            told = [rank.ask(*words).text for words in (("submit", comm, 2, 0), ("end", comm, 2), ("wait", comm, 2))]
            self.assertIn("new kernel tonight", " ".join(told))


if __name__ == "__main__":
    unittest.main()
