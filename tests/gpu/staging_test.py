"""Tensors in a GPU's memory through pinned memory of the arena: real daemons, the stand-in driver, ranks in processes.

The first oracle is the host: ranks whose tensors lie there get the same bits, whatever codec is on the network.
"""

import os
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

from cluster_case import ClusterCase, figure  # noqa: E402
from daemons import python_environment  # noqa: E402
from gpu_driver import driver_environment, of_the_standin  # noqa: E402

RANK = os.path.join(HERE, "gpu_rank.py")
CODED = {"policy": {"codec": "maxmin:4,bucket=512"}}
DAWDLING = "seed=3 delay_us=2000"


class Staging(ClusterCase):
    CONFIG = CODED

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="cgx-ranks-")
        self.addCleanup(self.folder.cleanup)
        self.jobs = 0

    def begin(self, kinds, *parts, words=DAWDLING, program=RANK):
        """A rank of each kind ("host", "gpu"), alternately on the two machines."""
        self.jobs += 1
        meeting = os.path.join(self.folder.name, str(self.jobs))
        os.mkdir(meeting)
        processes = []
        for rank, kind in enumerate(kinds):
            daemon = self.daemons[rank % 2]
            environment = python_environment(CGX_SOCKET=daemon.socket,
                                             **({} if kind == "host" else driver_environment(f"strict {words}")))
            processes.append(daemon.machine.start(
                [sys.executable, program, kind, str(rank), str(len(kinds)), meeting, *parts], env=environment, text=True,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE))
            self.addCleanup(processes[-1].kill)
        return processes

    def run_ranks(self, *arguments, **options):
        """What each rank printed; all end well and accuse nobody."""
        said = []
        for process in self.begin(*arguments, **options):
            out, errors = process.communicate(timeout=60)
            self.assertEqual((process.returncode, errors), (0, ""))
            said.append(out)
        return said

    def test_gpu_ranks_get_the_bits_of_host_ranks(self):
        host = self.run_ranks(["host"] * 3)
        self.assertEqual(len(host[0].splitlines()), 22)
        for kinds in (["gpu"] * 3, ["gpu", "host", "gpu"], ["host", "gpu", "host"]):
            self.assertEqual(self.run_ranks(kinds), host, kinds)

    @of_the_standin
    def test_a_copy_that_nobody_waits_for_is_found(self):
        """Planted: the host does not wait for the copy from the GPU. The daemon gets what was there before, so results differ;
        or the copy comes so late that it writes over a result, which the daemons notice themselves."""
        host = self.run_ranks(["host"] * 2, "steps")
        planted = [process.communicate(timeout=60)
                   for process in self.begin(["gpu"] * 2, "steps", words=f"{DAWDLING} fail=cuEventSynchronize:*=0")]
        noticed = any("ReplicaDivergedError" in errors for _, errors in planted)
        self.assertTrue(noticed or [out for out, _ in planted] != host)

    @of_the_standin
    def test_a_driver_that_does_not_say_whether_a_copy_is_over_is_asked_again(self):
        self.assertEqual(self.run_ranks(["gpu"] * 2, "steps", words="fail=cuEventSynchronize:1=900"),
                         self.run_ranks(["host"] * 2, "steps"))

    @of_the_standin
    def test_a_stream_that_is_late_holds_up_no_other_communicator(self):
        self.run_ranks(["gpu"] * 2, "apart", words="")

    @of_the_standin
    def test_a_stream_that_gets_stuck_keeps_nobody_from_closing(self):
        program = os.path.join(HERE, "gpu_rank_stuck.py")
        comm, session = self.run_ranks(["gpu"], words="", program=program)[0].splitlines()
        self.assertRegex(comm, r"^TimedOutError [67]\.\d TIMED_OUT: communicator world was closed, but 1 copies of its tensors")
        self.assertRegex(session, r"^TimedOutError 1[01]\.\d TIMED_OUT: copies between the GPU and the arena still wait")

    @of_the_standin
    def test_mistakes_are_told_by_name_and_harm_nobody(self):
        program = os.path.join(HERE, "gpu_rank_wrong.py")
        lines = self.run_ranks(["gpu"], program=program, words="devices=2")[0].splitlines()
        wanted = [
            ("blocked", "OK"), ("steady", "OK"),
            ("no context", "InvalidArgumentError .*no current CUDA context"),
            ("too long", "InvalidArgumentError .*of 101 fp32: the input needs 404 bytes and has 400 to the end of its"),
            ("past a pool", "InvalidArgumentError .*the input needs 2400000 bytes and has 2101248 to the end of its allocation"),
            ("host memory", "InvalidArgumentError .*the input is not in the memory of a GPU"),
            ("read-only", "ValueError .*read-only"), ("strided", "ValueError .*contiguous"),
            ("mixed", "ValueError .*both be in the CPU's memory, or both on a GPU"),
            ("rocm", r"NotImplementedError the array lies on device \(10, 0\) of DLPack"),
            ("other gpu", r"InvalidArgumentError .*of another CUDA context \(GPU 1\)"),
            ("freed before its result", "InvalidArgumentError .*not in the memory of a GPU; was it freed?"),
            ("freed", "InvalidArgumentError .*not in the memory of a GPU; was it freed?"),
            ("no memory to pin", "ResourceExhaustedError .*pinning an arena of .* CUDA_ERROR_OUT_OF_MEMORY"),
            ("sound", "OK")]
        for line, (what, answer) in zip(lines, wanted):
            self.assertRegex(line, f"^{what}: {answer}")
        self.assertEqual(len(lines), len(wanted))

    @of_the_standin
    def test_without_a_driver_the_host_goes_on(self):
        lines = self.run_ranks(["host"], program=os.path.join(HERE, "gpu_rank_wrong.py"))[0].splitlines()
        self.assertRegex(lines[0], "^no driver: NotFoundError .*no CUDA driver: libcuda.so.1")
        self.assertRegex(lines[1], "^no driver, no arena: NotFoundError .*no CUDA driver: libcuda.so.1")
        self.assertEqual(lines[2:], ["sound: OK"])

    @of_the_standin
    def test_a_gpu_that_fails_ends_the_job_at_once_on_all_ranks(self):
        processes = self.begin(["gpu", "host"], program=os.path.join(HERE, "gpu_rank_failing.py"))
        out = [process.communicate(timeout=30) for process in processes]
        self.assertEqual([process.returncode for process in processes], [0, 0], out)
        lost, left = (each[0].splitlines() for each in out)
        self.assertRegex(lost[0], r"^DeviceLostError DEVICE_LOST: tensor weights of communicator world did not come from the "
                                  r"GPU: waiting for a copy: CUDA_ERROR_ILLEGAL_ADDRESS \(700\)")
        self.assertRegex(lost[1], r"^DeviceLostError ")  # every later call
        self.assertRegex(left[0], r"^\w+Error \w+: rank 0 left communicator world|rank 0 left")
        seconds = float(left[1])
        figure("a rank whose GPU failed is known to the others", seconds, 1.0)
        self.assertLess(seconds, 2.5)  # on a busy machine; a silent peer is known after 4 s


if __name__ == "__main__":
    unittest.main()
