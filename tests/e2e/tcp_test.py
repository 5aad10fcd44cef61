"""The tcp transport between real daemons: right bits, strangers at its port."""

import os
import re
import sys
import time
import unittest

import troubles
from cluster_case import ClusterCase
from daemons import ROOT, merged
from doors_test import listeners
from machines import isolation_possible
from ranks import Tensor

TCP = {"policy": {"codec": "fp32"}, "transport": {"name": "tcp"}}
INTRUDERS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "intruders.py")
TOLD_S = 8.0  # timeouts.peer_lost_ms is 4 s
TENSORS = (Tensor("large", (1000, 1003)), Tensor("small", (64,)))


def listed_errors():
    """Patterns of the errors that the table of deploy/two-machines.md explains."""
    with open(os.path.join(ROOT, "deploy", "two-machines.md"), encoding="utf-8") as page:
        cells = re.findall(r"^\| (`.*?) \| ", page.read(), re.MULTILINE)
    spans = [span for cell in cells for span in re.findall(r"`([^`]+)`", cell) if "..." in span]
    return [".*".join(map(re.escape, span.split("..."))) for span in spans]


class OverTcp(ClusterCase):
    CONFIG = TCP

    def test_training_gets_the_right_bits(self):
        job = self.job([0, 0, 1])
        comm = job.join(tensors=TENSORS)
        for step in range(1, 6):
            job.step(comm, step)

    def test_it_listens_on_the_machines_address_only(self):
        self.assert_daemons_serve()
        for machine, daemon in zip(self.machines, self.daemons):
            self.assertEqual({address for address, _ in listeners(daemon)}, {machine.address})

    def test_junk_at_its_port_disturbs_nobody(self):
        self.start_bystander()
        self.bystander_steps()
        mesh = int(self.daemons[0].config["mesh"]["listen"].rsplit(":", 1)[1])
        ports = [port for _, port in listeners(self.daemons[0]) if port != mesh]
        self.assertTrue(ports)
        seed = 11
        for port in ports:
            self.machines[1].run([sys.executable, INTRUDERS, "junk", self.machines[0].address, str(port), "500", str(seed)],
                                 check=True, timeout=60)
            self.bystander_steps()
        self.wait_until(lambda: self.daemons[0].counters()["connections_refused"] > 300, "refusing")


@unittest.skipUnless(isolation_possible(), "firewalls of our own need root")
class ClosedPort(ClusterCase):
    """The mesh's port is open, the one for gradients is not: the side that waits to be dialed notices, too."""

    PORT = 20000
    CONFIG = merged(TCP, {"transport": {"ports": f"{PORT}-{PORT}"}})

    def test_both_sides_are_told_who_has_not_been_reached_and_where(self):
        with troubles.closed(self.machines[0], self.PORT), troubles.closed(self.machines[1], self.PORT):
            job = self.job([0, 1])
            began = time.monotonic()
            for rank in (0, 1):
                job.create_soon(rank)
            answers = [rank.receive() for rank in job.ranks]
            self.assertLess(time.monotonic() - began, TOLD_S)
        for rank, answer in enumerate(answers):
            self.assert_status(answer, "PEER_LOST", f"{self.machines[1 - rank].address}:", f" {self.PORT}")
            self.assertTrue(any(re.search(each, answer.text) for each in listed_errors()), answer.text)
        texts = "\n".join(answer.text for answer in answers)
        self.assertIn("no answer in time; tried", texts)
        self.assertIn("has not connected for gradients within 4000 ms; it must be able to reach", texts)
        job = self.job([0, 1])
        job.step(job.join(tensors=TENSORS), 1)


class Sealed(ClusterCase):
    """Each seal carries jobs; two that differ are refused by name."""

    MACHINES = 4
    SEALS = ("encrypt", "encrypt", "frame", "frame")

    @classmethod
    def config_of(cls, machine):
        return merged(TCP, {"transport": {"seal": cls.SEALS[machine]}})

    def test_encrypted_and_authenticated_frames_carry_the_right_bits(self):
        for places in ([0, 1], [2, 3]):
            job = self.job(places)
            comm = job.join(tensors=TENSORS)
            for step in (1, 2, 3):
                job.step(comm, step)

    def test_daemons_with_different_seals_say_so(self):
        job = self.job([0, 2])
        for rank in (0, 1):
            job.create_soon(rank)
        for rank in job.ranks:
            answer = rank.receive()
            self.assert_status(answer, "MISMATCH", "tcp/1;seal=encrypt", "tcp/1;seal=frame")


if __name__ == "__main__":
    unittest.main()
