"""Real launchers start ranks on two machines: Open MPI's mpirun with autostart, Slurm with its prolog and epilog.

Slurm (Debian's slurm-wlm and munge) is tried where CGX_TEST_SLURM=1: a controller and two nodes of its own, in namespaces.
"""

import contextlib
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

from daemons import ROOT, binary, python_environment
from machines import Machines, isolation_possible

HERE = os.path.dirname(os.path.abspath(__file__))
RANK = [sys.executable, os.path.join(HERE, "launched_rank.py")]
LIMIT_S = 60
SLURM = ("munged", "slurmctld", "slurmd", "srun", "sinfo")
SLURM_CONFIGURATION = """
ClusterName=cgx
SlurmctldHost={controller}({addresses[0]})
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdSpoolDir={folder}/spool-%n
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/linear
ReturnToService=2
MailProg=/bin/true
Prolog={folder}/prolog
Epilog={folder}/epilog
TaskProlog={folder}/task_prolog
PrologFlags=Alloc
NodeName={nodes[0]} NodeAddr={addresses[0]} CPUs=2
NodeName={nodes[1]} NodeAddr={addresses[1]} CPUs=2
PartitionName=all Nodes={nodes[0]},{nodes[1]} Default=YES State=UP
"""


class Launched(unittest.TestCase):
    def setUp(self):
        self.folder = self.enterContext(tempfile.TemporaryDirectory(prefix="cgx-launch-"))
        os.chmod(self.folder, 0o755)
        self.machines = self.enterContext(contextlib.closing(Machines(2)))
        self.network = self.machines[0].address.rsplit(".", 1)[0] + ".0/24"
        self.leader = f"{self.machines[0].address}:4800"

    def assert_added_up(self, done, ranks, hosts):
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        lines = re.findall(r"rank (\d+) of (\d+) on (\S+): (\d+)", done.stdout)
        self.assertEqual(sorted(int(line[0]) for line in lines), list(range(ranks)), done.stdout + done.stderr)
        self.assertEqual({line[1:2] + line[3:] for line in lines}, {(str(ranks), str(ranks * (ranks + 1) // 2))})
        self.assertEqual(len({line[2] for line in lines}), hosts)


@unittest.skipUnless(isolation_possible() and shutil.which("mpirun"), "needs network namespaces and Open MPI (openmpi-bin)")
class Mpirun(Launched):
    def launch(self, per_machine, **more):
        """No daemon, no network is named: each machine's first rank starts one, in the network that mpirun itself uses."""
        environment = python_environment(CGX_AUTOSTART="1", CGXD=binary("cgxd"), CGX_LEADER=self.leader,
                                         XDG_RUNTIME_DIR=self.folder, **more)
        names = [name for name in environment if name.startswith(("CGX", "PYTHONPATH", "XDG_RUNTIME_DIR"))]
        hosts = ",".join(f"{machine.netns}:{per_machine}" for machine in self.machines)
        agent = os.path.join(ROOT, "tests", "bench", "netns_rsh")
        command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "--host", hosts, "-np", str(2 * per_machine),
                   "--mca", "plm_rsh_agent", agent, "--mca", "oob_tcp_if_include", "eth0", *(f"-x{name}" for name in names)]
        command = [word for each in command for word in ((each[:2], each[2:]) if each.startswith("-x") else (each,))]
        wrapped = ["sh", "-c", f'export CGX_SOCKET="{self.folder}/$(hostname).sock"; exec "$@"', "-", *RANK]
        front = ["unshare", "--uts", "sh", "-c", 'hostname "$0"; exec "$@"', self.machines[0].netns]
        return self.machines[0].run([*front, *command, *wrapped], env=environment, cwd=self.folder, capture_output=True,
                                    text=True, timeout=LIMIT_S)

    def test_ranks_of_two_machines_bring_their_daemons_in_mpiruns_network(self):
        self.assert_added_up(self.launch(2), ranks=4, hosts=2)
        logs = glob.glob(os.path.join(self.folder, "*.sock.log"))
        self.assertEqual(len(logs), 2)
        for log in logs:
            with open(log, encoding="utf-8") as file:
                self.assertRegex(file.read(), rf"mesh={self.network.rsplit('.', 1)[0]}\.\d+:")


def slurm_possible():
    return os.environ.get("CGX_TEST_SLURM") == "1"


@unittest.skipUnless(slurm_possible(), "asked for with CGX_TEST_SLURM=1")
class Slurm(Launched):
    def setUp(self):
        missing = [name for name in SLURM if not shutil.which(name)]
        if missing or not isolation_possible():
            self.skipTest(f"needs network namespaces and Debian's slurm-wlm and munge; missing: {', '.join(missing) or 'root'}")
        super().setUp()
        self.nodes = [machine.netns for machine in self.machines]
        self.environment = python_environment(SLURM_CONF=os.path.join(self.folder, "slurm.conf"))
        self.write_scripts()
        self.start_munge()
        self.on(0, ["slurmctld", "-c", "-D"], "slurmctld.log")
        for index, node in enumerate(self.nodes):
            self.on(index, ["slurmd", "-D", "-N", node], f"slurmd-{index}.log")
        self.wait_for_nodes()

    def write_scripts(self):
        """As /etc/default/cgxd-slurm would say it; the two nodes share the files of one machine."""
        given = (f"export CGX_NETWORK={self.network} CGXD={binary('cgxd')} CGX_NODE_SOCKET={self.folder}/none "
                 f"CGX_SLURM_DIRECTORY={self.folder}/jobs-$(hostname) PATH=/usr/sbin:/usr/bin:/sbin:/bin\n")
        for name in ("prolog", "epilog", "task_prolog"):
            self.write(name, f"#!/bin/sh\n{given}exec {os.path.join(ROOT, 'deploy', 'slurm', name)}\n", 0o755)
        os.mkdir(os.path.join(self.folder, "state"))
        self.write("slurm.conf", SLURM_CONFIGURATION.format(folder=self.folder, controller=self.nodes[0], nodes=self.nodes,
                                                            addresses=[machine.address for machine in self.machines]))

    def write(self, name, text, mode=0o644):
        with open(os.path.join(self.folder, name), "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(os.path.join(self.folder, name), mode)

    def start_munge(self):
        place = os.path.join(self.folder, "munge")
        os.mkdir(place, 0o755)
        with open(os.path.join(place, "key"), "wb") as file:
            os.fchmod(file.fileno(), 0o400)
            file.write(os.urandom(1024))
        self.on(0, ["munged", "--foreground", "--force", f"--key-file={place}/key", f"--socket={place}/socket",
                    f"--pid-file={place}/pid", f"--log-file={place}/log", f"--seed-file={place}/seed"], "munged.log")
        self.wait_until(lambda: os.path.exists(f"{place}/socket"), "munge")

    def on(self, index, command, log):
        """A program of a machine with a name, which ends with the machines."""
        named = ["unshare", "--uts", "sh", "-c", 'hostname "$0"; exec "$@"', self.nodes[index]]
        with open(os.path.join(self.folder, log), "w", encoding="utf-8") as file:
            process = self.machines[index].start([*named, *command], env=self.environment, stdout=file, stderr=file)
        self.addCleanup(process.wait, 20)
        self.addCleanup(process.terminate)

    def ask(self, *words):
        return self.machines[0].run(list(words), env=self.environment, capture_output=True, text=True, timeout=LIMIT_S)

    def wait_until(self, happened, what):
        deadline = time.monotonic() + 30
        while not happened():
            self.assertLess(time.monotonic(), deadline, what)
            time.sleep(0.1)

    def wait_for_nodes(self):
        def idle():
            return self.ask("sinfo", "-h", "-N", "-o", "%T").stdout.split() == ["idle", "idle"]
        try:
            self.wait_until(idle, "two idle nodes")
        except AssertionError:
            told = "".join(open(path, encoding="utf-8").read()[-1500:] for path in glob.glob(f"{self.folder}/slurm*.log"))
            self.skipTest(f"no Slurm comes up here: {told}")

    def daemons(self):
        return [path for node in self.nodes for path in glob.glob(f"{self.folder}/jobs-{node}/*.pid")]

    def test_a_job_has_daemons_on_both_nodes_from_prolog_to_epilog(self):
        self.environment["CGX_LEADER"] = self.leader
        done = self.ask("srun", "-N2", "-n4", *RANK)
        self.assert_added_up(done, ranks=4, hosts=2)
        self.wait_until(lambda: not self.daemons(), "the epilog ends the daemons")
        alone = self.ask("srun", "-N1", "-n2", *RANK)
        self.assert_added_up(alone, ranks=2, hosts=1)


if __name__ == "__main__":
    unittest.main()
