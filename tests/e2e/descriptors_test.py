"""A daemon with few descriptors: who came while it was stopped and has gone again costs nobody else a session."""

import os
import signal
import socket
import subprocess
import sys
import unittest

from cluster_case import RAW, ClusterCase
from doors_test import listeners
from nemesis_deeds import CROWD
from ranks import Rank
from use import Use

OPEN_FILES = 256
TIMES = int(os.environ.get("CGX_WAKES", "10"))


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

    def come_and_go(self):
        """As many as find room behind every door."""
        crowd = self.machines[0].start([sys.executable, "-c", CROWD, *self.doors()], stdin=subprocess.PIPE,
                                       stdout=subprocess.PIPE)
        came = int(crowd.stdout.readline())
        crowd.communicate(b"", timeout=10)
        return came

    def test_a_session_is_opened_behind_a_crowd_that_came_while_the_daemon_was_stopped(self):
        daemon = self.daemons[0]
        for time in range(TIMES):
            daemon.process.send_signal(signal.SIGSTOP)
            os.waitpid(daemon.process.pid, os.WUNTRACED)
            try:
                came = self.come_and_go()
                rank = Rank(daemon)
                self.addCleanup(rank.end)
                rank.send("open", f"late{time}", "-", 1 << 20)
                self.wait_until(lambda: Use(rank).sockets > 0, "its connection")
            finally:
                daemon.process.send_signal(signal.SIGCONT)
            self.assertGreater(came, OPEN_FILES)
            self.assert_status(rank.receive(), "OK")
            rank.must("close")


if __name__ == "__main__":
    unittest.main()
