"""What the end-to-end tests share: machines with daemons for a whole class, and checks that they live on."""

import os
import shutil
import signal
import socket
import tempfile
import time
import unittest

from daemons import SLOWER, Daemon
from machines import Machines
from ranks import Job

RAW = {"policy": {"codec": "fp32"}}


def figure(what, seconds, limit_s):
    print(f"figure: {what}: {seconds:.3f} s (limit {limit_s:g} s)", flush=True)


def stop(daemon, timeout_s=10.0):
    """SIGTERM; returns the exit status."""
    daemon.process.send_signal(signal.SIGTERM)
    return daemon.process.wait(timeout_s)


class ClusterCase(unittest.TestCase):
    """`MACHINES` machines with a daemon each, started once per class and stopped in the end: exit status 0."""

    MACHINES = 2
    CONFIG = RAW
    OWN_MESH = False  # CONFIG says all there is of `mesh` and `transport`

    @classmethod
    def setUpClass(cls):
        cls.directory = tempfile.mkdtemp(prefix="cgx-e2e-")
        cls.addClassCleanup(shutil.rmtree, cls.directory, ignore_errors=True)
        os.chmod(cls.directory, 0o755)
        cls.machines = Machines(cls.MACHINES)
        cls.addClassCleanup(cls.machines.close)
        cls.daemons = [Daemon(machine, cls.directory, cls.config_of(machine.index), own_mesh=cls.OWN_MESH,
                              prefix=cls.prefix_of(machine.index)) for machine in cls.machines]

    @classmethod
    def config_of(cls, machine):
        return cls.CONFIG

    @classmethod
    def prefix_of(cls, machine):
        """Of its daemon's command line."""
        return ()

    @classmethod
    def tearDownClass(cls):
        for daemon in cls.daemons:
            assert daemon.process.poll() is None, f"a daemon is gone:\n{daemon.log()}"
            status = stop(daemon)
            assert status == 0, f"a daemon ended with {status}:\n{daemon.log()}"

    @classmethod
    def start_bystander(cls, **options):
        """A job that goes on whatever a test does to others; bystander_steps() sees to it."""
        cls.bystander_options = options
        cls.bystander = Job(cls.daemons, [0, 1, 1], **options)
        cls.addClassCleanup(cls.bystander.close)
        cls.bystander_comm = cls.bystander.join()
        cls.bystander_step = 0

    def bystander_steps(self):
        for daemon in self.daemons:
            self.assertIsNone(daemon.process.poll(), f"a daemon is gone:\n{daemon.log()}")
        type(self).bystander_step += 1
        try:
            self.bystander.step(self.bystander_comm, self.bystander_step)
        except AssertionError:
            type(self).start_bystander(**self.bystander_options)  # a sound one for the tests that follow
            raise

    def job(self, places, **options):
        job = Job(self.daemons, places, **options)
        self.addCleanup(job.close)
        return job

    def heard(self, job, step, ranks):
        """Their daemons have read what these ranks said of the step: only those are told that it failed."""
        listed = [next(c for c in self.daemons[place].control_tool("jobs")["communicators"] if c["job"] == job.name)
                  for place in sorted({job.places[rank] for rank in ranks})]
        reached = {r.get("rank", 0): r.get("step", 0) for each in listed for r in each["rank_list"] if r.get("local")}
        return all(reached[rank] == step for rank in ranks)

    def assert_status(self, answer, status, *texts):
        self.assertEqual(answer.status, status, answer.text)
        for text in texts:
            self.assertIn(text, answer.text)

    def assert_daemons_serve(self, daemons=None):
        """A new job over all of them gets the right bits."""
        chosen = daemons or self.daemons
        job = Job(chosen, list(range(len(chosen))))
        try:
            job.step(job.join(), 1)
        finally:
            job.close()

    def packets(self):
        """A connection to the clients' socket of machine 0."""
        link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.addCleanup(link.close)
        link.settimeout(10)
        link.connect(self.daemons[0].socket)
        return link

    def await_no_job(self):
        for daemon in self.daemons:
            self.wait_until(lambda d=daemon: not d.control_tool("jobs").get("communicators"), "the end of all jobs")

    def wait_until(self, happened, what, timeout_s=5.0 * SLOWER):
        deadline = time.monotonic() + timeout_s
        while not happened():
            self.assertLess(time.monotonic(), deadline, f"{what} did not happen within {timeout_s} s")
            time.sleep(0.01)
