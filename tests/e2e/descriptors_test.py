"""Daemons with few descriptors: who came while one was stopped, and what ends one that has become deaf."""

import contextlib
import itertools
import os
import resource
import subprocess
import sys
import unittest

from cluster_case import RAW, ClusterCase
from daemons import merged, stopped
from doors_test import listeners
from nemesis_deeds import CROWD
from ranks import Rank
from use import Use

OPEN_FILES = 256
TIMES = int(os.environ.get("CGX_WAKES", "10"))


def come_and_go(machine, doors):
    """As many as find room behind every door, and go again; returns how many."""
    crowd = machine.start([sys.executable, "-c", CROWD, *doors], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    came = int(crowd.stdout.readline())
    crowd.communicate(b"", timeout=10)
    return came


class FewDescriptors(ClusterCase):
    MACHINES = 1
    CONFIG = {**RAW, "client": {"socket_mode": "0666"}, "metrics": {"port": 9466}}

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        for daemon in cls.daemons:
            daemon.process.terminate()
            daemon.process.wait(10)
            daemon.prefix = ("prlimit", f"--nofile={OPEN_FILES}:{OPEN_FILES}", "--")
            daemon.start()

    def doors(self):
        daemon = self.daemons[0]
        return [f"{address}:{port}" for address, port in listeners(daemon)] + [daemon.control, daemon.socket]

    def test_a_session_is_opened_behind_a_crowd_that_came_while_the_daemon_was_stopped(self):
        daemon = self.daemons[0]
        for time in range(TIMES):
            with stopped(daemon.process):
                came = come_and_go(self.machines[0], self.doors())
                rank = Rank(daemon)
                self.addCleanup(rank.end)
                rank.send("open", f"late{time}", "-", 1 << 20)
                self.wait_until(lambda: Use(rank).sockets > 0, "its connection")
            self.assertGreater(came, OPEN_FILES)
            self.assert_status(rank.receive(), "OK")
            rank.must("close")


@contextlib.contextmanager
def no_descriptor_free(process):
    """Meanwhile the process can open nothing, as amid a crowd that has taken all it may have."""
    pid = process.pid
    free = next(number for number in itertools.count() if not os.path.lexists(f"/proc/{pid}/fd/{number}"))
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (free, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


class DeafOverUcx(ClusterCase):
    """UCX closes its listeners when it is out of descriptors and never opens them again: such a daemon ends by name."""

    CONFIG = merged(RAW, {"transport": {"name": "ucx"}, "timeouts": {"drain_ms": 2000}})
    END_S = 8.0

    def test_the_daemon_ends_says_why_and_serves_again_when_it_is_started_again(self):
        daemon = self.daemons[1]
        job = self.job([0, 1])
        comm = job.join()
        job.step(comm, 1)
        doors = listeners(daemon)
        with no_descriptor_free(daemon.process):
            come_and_go(self.machines[0], [f"{address}:{port}" for address, port in doors])
            self.wait_until(lambda: listeners(daemon) != doors, "UCX to close its listener")
        self.assertEqual(daemon.process.wait(self.END_S), 1)
        self.assertRegex(daemon.log(), r"UCX no longer listens at [0-9.]+ [0-9]+.*\(ulimit -n\)")
        self.assertIsNone(self.daemons[0].process.poll(), self.daemons[0].log())
        for rank in job.ranks:
            told = " ".join(rank.ask(*words).text for words in (("submit", comm, 2, 0), ("end", comm, 2), ("wait", comm, 2)))
            self.assertIn("UCX no longer listens", told)
        daemon.start()
        self.assert_daemons_serve()


if __name__ == "__main__":
    unittest.main()
