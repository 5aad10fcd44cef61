"""Training scripts that go on after a rank has died: torchrun starts all of them anew, or a loop makes the process group again."""

import os
import re
import signal
import subprocess
import sys
import tempfile
import unittest

import torch

from private_daemon import BUILD, PrivateDaemon

HERE = os.path.dirname(os.path.abspath(__file__))
SCRIPT = os.path.join(HERE, "torch_again_ranks.py")
SECONDS = 100
RANKS = 3


class Again(unittest.TestCase):
    def setUp(self):
        self.daemon = PrivateDaemon(arguments=("--set", "policy.codec=maxmin:4,feedback"))
        self.addCleanup(self.daemon.stop)
        self.folder = self.enterContext(tempfile.TemporaryDirectory(prefix="cgx-again-"))

    def start(self, *command):
        environment = dict(os.environ, CGX_SOCKET=self.daemon.socket, CGX_BUILD_DIR=BUILD, OMP_NUM_THREADS="1")
        process = subprocess.Popen([sys.executable, *command], env=environment, stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.addCleanup(self.end, process)
        return process

    @staticmethod
    def end(process):
        if process.poll() is None:
            process.terminate()  # torchrun ends its ranks
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
        process.communicate()

    def assert_trained_on(self, said):
        """In the second attempt, from where the first one was saved, to the same parameters on all ranks."""
        ends = re.findall(r"attempt 1: rank (\d) took steps (\d) to 6: (\S+)", said)
        self.assertEqual(sorted(rank for rank, _, _ in ends), [str(rank) for rank in range(RANKS)], said)
        self.assertEqual({first for _, first, _ in ends}, {"3"}, said)
        self.assertEqual(len({total for _, _, total in ends}), 1, said)

    @unittest.skipIf(torch.__version__.startswith("1.") and sys.version_info >= (3, 11), "torchrun of torch 1.x starts nothing")
    def test_torchrun_starts_all_ranks_anew_and_they_train_on(self):
        job = self.start("-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={RANKS}", "--max_restarts=1",
                         "--monitor_interval=0.1", SCRIPT, "restart", self.folder)
        said, _ = job.communicate(timeout=SECONDS)
        self.assertEqual(job.returncode, 0, f"{said}\n{self.daemon.log()}")
        self.assert_trained_on(said)

    def test_a_loop_that_makes_its_group_again_trains_on_beside_a_rank_started_anew(self):
        jobs = [self.start(SCRIPT, "retry", self.folder, str(rank), str(RANKS), "0") for rank in range(RANKS)]
        self.assertEqual(jobs[1].wait(SECONDS), -signal.SIGKILL)
        again = self.start(SCRIPT, "retry", self.folder, "1", str(RANKS), "1")
        ends = [(job, job.communicate(timeout=SECONDS)[0]) for job in (jobs[0], again, jobs[2])]
        said = "\n".join(text for _, text in ends)
        self.assertEqual([job.returncode for job, _ in ends], [0, 0, 0], f"{said}\n{self.daemon.log()}")
        self.assertRegex(said, r"attempt 0: rank 0: .*RANK_LOST.*rank 1.*make the process group anew")
        self.assert_trained_on(said)


if __name__ == "__main__":
    unittest.main()
