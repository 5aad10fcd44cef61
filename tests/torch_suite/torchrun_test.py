"""torchrun on two machines, as deploy/two-machines.md says, with the example as the script. Needs root and a torch whose torchrun works."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
for name in ("e2e", "deploy"):
    sys.path.insert(0, os.path.join(ROOT, "tests", name))

from commands_test import blocks  # noqa: E402
from daemons import Daemon, python_environment  # noqa: E402
from machines import Machines, isolation_possible  # noqa: E402

TORCHRUN = os.path.join(os.path.dirname(sys.executable), "torchrun")
SECONDS = 240


@unittest.skipUnless(isolation_possible() and os.path.exists(TORCHRUN), "needs root and torchrun beside this Python")
class Torchrun(unittest.TestCase):
    def setUp(self):
        self.folder = self.enterContext(tempfile.TemporaryDirectory(prefix="cgx-torchrun-"))
        os.chmod(self.folder, 0o755)
        self.machines = self.enterContext(Machines(2))

    def start(self, machine, command, socket):
        environment = python_environment(CGX_SOCKET=socket, OMP_NUM_THREADS="1",
                                         PATH=os.path.dirname(TORCHRUN) + os.pathsep + os.environ["PATH"])
        return machine.start(["sh", "-c", command], cwd=self.folder, env=environment, stdin=subprocess.DEVNULL,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def test_the_pages_command_trains_on_both(self):
        command, = [block.text for block in blocks("deploy/two-machines.md") if block.text.startswith("torchrun ")]
        command = command.replace("10.1.0.2", self.machines[0].address).replace("--nproc-per-node 4", "--nproc-per-node 2")
        shutil.copy(os.path.join(ROOT, "client", "python", "cgx", "example.py"), os.path.join(self.folder, "train.py"))
        daemons = [Daemon(machine, self.folder, {"mesh": {"network": ["10.77.0.0/24"]}}, own_mesh=True)
                   for machine in self.machines]
        jobs = [self.start(daemon.machine, command.replace("--node-rank 0", f"--node-rank {place}"), daemon.socket)
                for place, daemon in enumerate(daemons)]
        said = [job.communicate(timeout=SECONDS)[0] for job in jobs]
        self.assertEqual([job.returncode for job in jobs], [0, 0], "\n".join(said))
        self.assertRegex(said[0], r"cgx: 1\.1 M gradients, .*x fewer bytes, 2 machines x 2 ranks")
        self.assertIn("all ranks have the same parameters", said[0])
        losses = [float(loss) for loss in re.findall(r"loss (\d+\.\d+)", said[0])]
        self.assertLess(losses[-1], losses[0] / 2)


if __name__ == "__main__":
    unittest.main()
