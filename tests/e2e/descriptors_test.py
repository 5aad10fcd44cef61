"""Daemons with few descriptors: who came while one was stopped, and what ends one that has become deaf."""

import contextlib
import itertools
import os
import resource
import socket
import struct
import subprocess
import sys
import unittest

from cluster_case import RAW, ClusterCase
from daemons import merged, stopped
from doors_test import listeners
from nemesis_deeds import CROWD
from ranks import Rank
from strangers_test import greeting, words
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


@contextlib.contextmanager
def few_descriptors_free(process, outside):
    """Meanwhile the process may open so many, and those of the reserve; gives the reserve's first and last."""
    pid = process.pid
    most = max(int(name) for name in os.listdir(f"/proc/{pid}/fd"))
    limit = next(limit for limit in itertools.count(most) if limit - min(64, limit // 8) > most + outside)
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (limit, before[1]))
    try:
        yield limit - min(64, limit // 8), limit - 1
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


class Reserve(ClusterCase):
    """Greetings that were held until nothing else is left, and then become sessions all at once."""

    CONFIG = merged(RAW, {"timeouts": {"handshake_ms": 30000}})
    GREETINGS, RESOURCE_EXHAUSTED = 40, 6
    WELCOME, REPLY = 2, 3

    def answer(self, link):
        """None: welcome; or the status and text of the refusal."""
        packet, descriptors, _, _ = socket.recv_fds(link, 1 << 17, 8)
        for descriptor in descriptors:
            os.close(descriptor)
        kind, = struct.unpack_from("<H", packet, 6)
        self.assertIn(kind, (self.WELCOME, self.REPLY))
        if kind == self.WELCOME:
            return None
        code, length = struct.unpack_from("<HI", packet, 16)
        return code, packet[22:22 + length].decode()

    def test_is_not_for_sessions_which_are_refused_by_name(self):
        process = self.daemons[0].process
        job = self.job([0, 1])
        comm = job.join()
        job.step(comm, 1)
        held = [self.packets() for _ in range(self.GREETINGS)]
        self.wait_until(lambda: Use(self.daemons[0]).sockets > self.GREETINGS, "their connections")
        with few_descriptors_free(process, outside=12) as (first, last):
            for link in held:
                link.send(greeting(body=words("job", "stranger")))
            said = [self.answer(link) for link in held]
            refusals = [each for each in said if each is not None]
            self.assertIn(None, said)
            self.assertTrue(refusals)
            for refusal in refusals:
                self.assertEqual(refusal, (self.RESOURCE_EXHAUSTED, "the daemon has no descriptor left (ulimit -n)"))
            taken = [number for number in range(first, last + 1) if os.path.lexists(f"/proc/{process.pid}/fd/{number}")]
            self.assertEqual(taken, [])
            job.step(comm, 2)
        self.assert_daemons_serve()


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
