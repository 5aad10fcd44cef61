"""Where a daemon listens: nowhere but on loopback by default, and only inside its trusted networks with others."""

import os
import subprocess
import tempfile
import unittest

from cluster_case import RAW, ClusterCase
from daemons import Daemon
from machines import Machines, isolation_possible

OUTSIDE = "192.0.2.7"  # an address of a machine in a network that nobody trusts


def listeners(daemon):
    """[(address, port)] of the TCP sockets on which a daemon listens."""
    pid = daemon.process.pid
    inodes = set()
    for name in os.listdir(f"/proc/{pid}/fd"):
        try:
            link = os.readlink(f"/proc/{pid}/fd/{name}")
        except FileNotFoundError:
            continue
        if link.startswith("socket:["):
            inodes.add(link[8:-1])
    found = []
    for family in ("tcp", "tcp6"):
        with open(f"/proc/{pid}/net/{family}", encoding="utf-8") as table:
            for line in list(table)[1:]:
                fields = line.split()
                if fields[3] == "0A" and fields[9] in inodes:
                    address, port = fields[1].split(":")
                    found.append((dotted(address), int(port, 16)))
    return sorted(found)


def dotted(text):
    """As /proc writes an IPv4 address; any other as it is."""
    return ".".join(str(b) for b in reversed(bytes.fromhex(text))) if len(text) == 8 else text


class OneMachine(unittest.TestCase):
    def setUp(self):
        self.machines = Machines(1)
        self.addCleanup(self.machines.close)
        self.directory = self.enterContext(tempfile.TemporaryDirectory(prefix="cgx-e2e-"))

    def daemon(self, mesh):
        return Daemon(self.machines[0], self.directory, {**RAW, "mesh": mesh, "transport": {"devices": []}})

    def test_by_default_it_has_one_port_on_loopback_for_other_daemons_words(self):
        found = listeners(self.daemon({"listen": "127.0.0.1:0", "trusted_networks": ["127.0.0.0/8", "::1/128"]}))
        self.assertEqual([address for address, _ in found], ["127.0.0.1"])

    def test_networks_it_is_not_in_are_refused_by_name(self):
        with self.assertRaises(RuntimeError) as refused:
            self.daemon({"listen": "127.0.0.1:0", "trusted_networks": ["198.51.100.0/24"]})
        self.assertIn("mesh.trusted_networks", str(refused.exception))
        self.assertIn("198.51.100.0/24", str(refused.exception))


class TwoMachines(ClusterCase):
    CONFIG = {**RAW, "transport": {"devices": []}}  # chosen by the daemon

    @classmethod
    def setUpClass(cls):
        if not isolation_possible():
            raise unittest.SkipTest("not root: machines have no interfaces of their own")
        super().setUpClass()

    def test_a_network_that_nobody_trusts_is_not_listened_on(self):
        for machine, daemon in zip(self.machines, self.daemons):
            for words in (("link", "add", "other0", "type", "veth", "peer", "name", "other1"),
                          ("addr", "add", f"{OUTSIDE}/24", "dev", "other0"),
                          ("link", "set", "other0", "up"), ("link", "set", "other1", "up")):
                subprocess.run(machine.command(["ip", *words]), check=True)
            daemon.process.terminate()
            daemon.process.wait(10)
            daemon.start()
            self.assertEqual({address for address, _ in listeners(daemon)}, {machine.address})
        self.assert_daemons_serve()
        for machine, daemon in zip(self.machines, self.daemons):
            self.assertEqual({address for address, _ in listeners(daemon)}, {machine.address})


if __name__ == "__main__":
    unittest.main()
