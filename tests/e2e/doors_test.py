"""Where a daemon listens: nowhere but on loopback by default, and only inside its trusted networks with others."""

import grp
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import unittest

from cluster_case import RAW, ClusterCase
from daemons import Daemon, binary, merged
from machines import Machines, isolation_possible

NETWORK = "10.77.0.0/24"  # of the machines
SOMEBODY = 54321          # a user and a group
OUTSIDE = "192.0.2.7"     # an address of each in a network that nobody trusts


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

    def daemon(self, **mesh):
        return Daemon(self.machines[0], self.directory, {**RAW, "mesh": mesh}, own_mesh=True)

    def assert_refused(self, *texts, **mesh):
        with self.assertRaises(RuntimeError) as refused:
            self.daemon(**mesh)
        for text in texts:
            self.assertIn(text, str(refused.exception))

    def test_by_default_it_has_one_port_on_loopback_for_other_daemons_words(self):
        self.assertEqual([address for address, _ in listeners(self.daemon())], ["127.0.0.1"])

    def test_networks_it_is_not_in_are_refused_with_the_addresses_it_has(self):
        self.assert_refused("mesh.trusted_networks: no interface", "198.51.100.0/24", "127.0.0.1 (lo)",
                            trusted_networks=["198.51.100.0/24"])
        self.assert_refused("mesh.network: no interface", "198.51.100.0/24", "127.0.0.1 (lo)",
                            network=["198.51.100.0/24"])

    def test_one_key_does_not_go_with_those_it_stands_for(self):
        self.assert_refused("is set beside mesh.trusted_networks", network=["127.0.0.0/8"],
                            trusted_networks=["127.0.0.0/16"])

    @unittest.skipUnless(os.geteuid() == 0 and shutil.which("setpriv"), "needs root and setpriv")
    def test_a_group_of_operators_takes_the_control_socket_from_nobody(self):
        os.chmod(self.directory, 0o755)
        daemon = Daemon(self.machines[0], self.directory, {**RAW, "control": {"operators_group": "daemon"}})
        own, operators = os.getegid(), grp.getgrnam("daemon").gr_gid

        def control_tool(groups, *words):
            user = ["setpriv", f"--reuid={SOMEBODY}", f"--regid={SOMEBODY}", "--groups=" + ",".join(map(str, groups))]
            return self.machines[0].run([*user, binary("cgxctl"), "--socket", daemon.control, *words], capture_output=True,
                                        text=True, stdin=subprocess.DEVNULL)

        self.assertEqual(control_tool([SOMEBODY], "jobs").returncode, 3)
        self.assertEqual(control_tool([own], "jobs").returncode, 0)
        refused = control_tool([own], "drain")
        self.assertEqual((refused.returncode, "only operators may drain" in refused.stderr), (1, True), refused.stderr)
        drained = control_tool([own, operators], "drain")
        self.assertEqual(drained.returncode, 0, drained.stderr)


class Isolated(ClusterCase):
    """Machines with interfaces of their own."""

    OWN_MESH = True

    @classmethod
    def setUpClass(cls):
        if not isolation_possible():
            raise unittest.SkipTest("not root: machines have no interfaces of their own")
        super().setUpClass()

    def assert_listens_on_its_network_only(self):
        for machine, daemon in zip(self.machines, self.daemons):
            self.assertEqual({address for address, _ in listeners(daemon)}, {machine.address})


class OneKey(Isolated):
    CONFIG = {**RAW, "mesh": {"network": [NETWORK]}}

    def test_a_reload_while_the_interface_has_no_address_changes_other_keys(self):
        daemon, machine = self.daemons[0], self.machines[0]
        address = ("ip", "-n", machine.netns, "address")
        subprocess.run([*address, "flush", "dev", machine.interface], check=True)
        try:
            with open(daemon.config_path, "w", encoding="utf-8") as file:
                json.dump(merged(daemon.config, {"log": {"level": "debug"}}), file)
            daemon.process.send_signal(signal.SIGHUP)
            self.wait_until(lambda: "reload" in daemon.log(), "the reload")
            self.wait_until(lambda: re.search("reloaded|reload refused", daemon.log()), "its end")
        finally:
            subprocess.run([*address, "add", f"{machine.address}/24", "dev", machine.interface], check=True)
        self.assertIn("reloaded changed=1 waiting=0", daemon.log())

    def test_joins_machines_and_listens_nowhere_else(self):
        for machine, daemon in zip(self.machines, self.daemons):
            for words in (("link", "add", "other0", "type", "veth", "peer", "name", "other1"),
                          ("addr", "add", f"{OUTSIDE}/24", "dev", "other0"),
                          ("link", "set", "other0", "up"), ("link", "set", "other1", "up")):
                subprocess.run(machine.command(["ip", *words]), check=True)
            daemon.process.terminate()
            daemon.process.wait(10)
            daemon.start()
        self.assert_listens_on_its_network_only()
        self.assert_daemons_serve()
        self.assert_listens_on_its_network_only()

    def test_the_port_is_the_usual_one_where_it_is_free(self):
        with tempfile.TemporaryDirectory(prefix="cgx-e2e-") as directory:
            second = Daemon(self.machines[0], directory, self.CONFIG, own_mesh=True)
            self.addCleanup(second.process.kill)
            first = self.daemons[0]
            self.assertIn((self.machines[0].address, 7070), listeners(first))
            self.assertEqual([address for address, _ in listeners(second)], 2 * [self.machines[0].address])
            self.assertEqual(set(listeners(first)) & set(listeners(second)), set())


class OneKeyOverUcx(OneKey):
    """UCX proves no key: whoever reaches its port may end the daemon or write to it. So nobody outside the network does."""

    CONFIG = {**OneKey.CONFIG, "transport": {"name": "ucx"}}
    # What does so: UCX's first word and a header that makes no sense, a message to write memory with, a cut one.
    MAGIC = (0xCAFEBABE12345678).to_bytes(8, "little")
    PACKETS = (MAGIC + b"\xff" * 5, MAGIC + bytes((33,)) + (64).to_bytes(4, "little") + (0x414141410000).to_bytes(8, "little") + bytes(56),
               MAGIC[:3])
    ELSEWHERE = "192.0.2.9"  # of machine 1, on the very wire of the network
    SCRIPT = ("import socket, sys\n"
              "for packet in sys.argv[4:]:\n"
              "    try:\n"
              "        with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=1, source_address=(sys.argv[3], 0)) as link:\n"
              "            link.sendall(bytes.fromhex(packet))\n"
              "            link.settimeout(1)\n"
              "            link.recv(1)\n"
              "        print('reached')\n"
              "    except OSError as error: print(type(error).__name__)\n")

    def say(self, machine, source, target, port):
        """What becomes of each packet."""
        return machine.run(["/usr/bin/python3", "-c", self.SCRIPT, target, str(port), source, *(p.hex() for p in self.PACKETS)],
                           capture_output=True, text=True).stdout.split()

    def test_the_packets_that_end_a_daemon_do_not_reach_it_at_other_addresses(self):
        machine = self.machines[0]
        subprocess.run(machine.command(["ip", "addr", "replace", f"{OUTSIDE}/32", "dev", "lo"]), check=True)
        self.assert_daemons_serve()
        for address, port in listeners(self.daemons[0]):
            for target in ("127.0.0.1", OUTSIDE):
                self.assertEqual(self.say(machine, target, target, port), 3 * ["ConnectionRefusedError"],
                                 f"{target}:{port}, where {address} listens")
        self.assert_daemons_serve()

    def test_the_packets_that_end_a_daemon_do_not_reach_it_from_elsewhere(self):
        target, stranger = self.machines[:2]
        subprocess.run(stranger.command(["ip", "addr", "replace", f"{self.ELSEWHERE}/32", "dev", "eth0"]), check=True)
        subprocess.run(target.command(["ip", "route", "replace", f"{self.ELSEWHERE}/32", "dev", "eth0"]), check=True)
        self.assert_daemons_serve()
        doors = listeners(self.daemons[0])
        mesh, = [door for door in doors if door[1] == 7070]
        for address, port in doors:
            said = self.say(stranger, self.ELSEWHERE, address, port)
            if (address, port) == mesh:  # the way is there: this door takes the connection and hangs up
                self.assertNotIn("TimeoutError", said)
            else:
                self.assertEqual(said, 3 * ["TimeoutError"], f"{address}:{port}")
        self.assert_daemons_serve()


class OneKeyOverUcxBesideRdma(OneKey):
    """No machine here has RDMA: what is left of it is TCP, on the interfaces that TCP alone would have."""

    CONFIG = {**OneKey.CONFIG, "transport": {"name": "ucx", "ucx_transports": ["tcp", "rc"]}}


class DifferentNetworks(Isolated):
    """Machine 1 was given another network, in which it has an address, too."""

    STARTS, TOLD_S = 20, 2.0

    @classmethod
    def config_of(cls, machine):
        if machine == 0:
            return {**RAW, "mesh": {"network": [NETWORK]}}
        subprocess.run(cls.machines[1].command(["ip", "addr", "add", f"{OUTSIDE}/24", "dev", "eth0"]), check=True)
        return {**RAW, "mesh": {"network": [f"{OUTSIDE}/24"]}}

    def test_every_start_is_refused_on_both_sides_at_once(self):
        said = [set(), set()]
        for start in range(self.STARTS):
            job = self.job([0, 1])
            for rank in (0, 1):
                job.create_soon(rank)
            for side, rank in enumerate(job.ranks):
                answer = rank.receive(timeout_s=30)
                self.assertFalse(answer.ok, f"start {start}")
                self.assertIn("is in none of the networks of", answer.text)
                self.assertIn("mesh.network", answer.text)
                self.assertLess(answer.seconds, self.TOLD_S, answer.text)
                said[side].add(answer.text)
            job.close()
        self.assertEqual([len(texts) for texts in said], [1, 1], said)
        ours, theirs = (re.sub(r"\b[0-9a-f]{8}\b|\d[\d./:]+|(machine|rank) \d", "*", text) for (text,) in said)
        self.assertEqual(ours, theirs, "the same sentence, each about the other side")


class NoKey(Isolated):
    """Daemons as they come, on two machines."""

    TOLD_S = 4.0  # a second, and a busy machine

    def test_both_ranks_are_told_it_soon(self):
        job = self.job([0, 1])
        for rank in (0, 1):
            job.create_soon(rank)
        for rank in job.ranks:
            answer = rank.receive(timeout_s=30)
            self.assertFalse(answer.ok)
            self.assertIn("set mesh.network on both", answer.text)
            self.assertLess(answer.seconds, self.TOLD_S, answer.text)


if __name__ == "__main__":
    unittest.main()
