"""The tcp transport between real daemons: right bits, strangers at its port."""

import os
import sys
import unittest

from cluster_case import ClusterCase
from daemons import merged
from doors_test import listeners
from ranks import Tensor

TCP = {"policy": {"codec": "fp32"}, "transport": {"name": "tcp"}}
INTRUDERS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "intruders.py")
TENSORS = (Tensor("large", (1000, 1003)), Tensor("small", (64,)))


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
