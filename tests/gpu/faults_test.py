"""What becomes of a job whose worker, trainer, daemon, GPU or driver fails, and of the jobs beside it: real daemons, the stand-in.

CGX_TEST_GPU=1: on the machine's GPU, as worker_test.py.
"""

import os
import signal
import subprocess
import sys
import time
import unittest

from cluster_case import figure
from gpu_driver import driver_environment, of_the_standin
from worker_test import DAWDLING, DEVICES, WorkerCase


class Memory(WorkerCase):
    def test_the_kernel_ends_a_worker_before_its_daemon_where_memory_is_short(self):
        def score(pid):
            with open(f"/proc/{pid}/oom_score_adj", encoding="ascii") as file:
                return int(file.read())

        ranks = self.begin(["arena"] * 2, "commit")
        for rank in ranks:
            self.assertEqual(rank.stdout.readline(), "registered\n")
        wanted = [min(score(daemon.process.pid) + 900, 1000) for daemon in self.daemons]
        found = [score(pid) for pid in self.workers()]
        for rank in ranks:
            rank.stdin.write("\n\n")
            rank.stdin.flush()
        self.assertEqual([rank.communicate(timeout=30)[1] for rank in ranks], ["", ""])
        self.assertEqual(sorted(found), sorted(wanted))


@of_the_standin
class TooMany(WorkerCase):
    """As many workers as there may be."""

    MACHINES = 1
    CONFIG = WorkerCase.CONFIG | {"limits": {"gpu_workers": 2}}

    def test_one_more_is_refused_by_name_and_comes_when_another_has_gone(self):
        ranks = self.begin(["arena"] * 2, "commit", places=[0, 0], gpus=[0, 1])
        for rank in ranks:
            self.assertEqual(rank.stdout.readline(), "registered\n")
        errors = self.begin(["arena"], "steps", places=[0], gpus=[2])[0].communicate(timeout=30)[1]
        self.assertRegex(errors, rf"ResourceExhaustedError: .*limits.gpu_workers is 2: 2 taken \(2 by uid {os.geteuid()}\b")
        self.assertEqual(self.workers_shown(), 2)
        for rank in ranks:
            rank.stdin.write("\n\n")
            rank.stdin.flush()
        self.assertEqual([rank.communicate(timeout=30)[1] for rank in ranks], ["", ""])
        self.no_workers_left()
        self.wait_until(lambda: self.workers_shown() == 0, "status to say that they have ended")
        self.run_ranks(["arena"], "steps", places=[0], gpus=[2])

    def workers_shown(self):
        shares = {share["name"]: share for share in self.daemons[0].control_tool("status")["shares"]}
        return int(shares.get("limits.gpu_workers", {}).get("used", 0))


class NeighbourCase(WorkerCase):
    """Beside what fails there is a job on GPU 0 that is at its steps meanwhile, and is to get the bits of host ranks."""

    def feed(self, ranks):
        """They do so many steps more."""
        for rank in ranks:
            rank.stdin.write("\n")
            rank.stdin.flush()

    def begin_neighbour(self):
        on_the_host = self.begin(["host"] * 2, "fed=4")
        for _ in range(4):
            self.feed(on_the_host)
        self.wanted = [rank.communicate(timeout=60)[0] for rank in on_the_host]
        self.assertEqual([text.count("\n") for text in self.wanted], [200, 200])
        self.neighbour = self.begin(["arena"] * 2, "fed=4", gpus=[0, 0], job="neighbour")
        self.feed(self.neighbour)
        self.said = [[rank.stdout.readline()] for rank in self.neighbour]

    def let_the_neighbour_step(self):
        """It has begun the second of four laps when this returns."""
        self.feed(self.neighbour)
        for lines, rank in zip(self.said, self.neighbour):
            while not lines[-1].startswith("step 50 "):
                lines.append(rank.stdout.readline())
                self.assertTrue(lines[-1], lines)

    def end_the_neighbour(self):
        for _ in range(2):
            self.feed(self.neighbour)
        self.assertEqual(["".join(lines) + rank.stdout.read() for lines, rank in zip(self.said, self.neighbour)], self.wanted)
        self.assertEqual([(rank.stderr.read(), rank.wait(30)) for rank in self.neighbour], [("", 0)] * 2)

    def a_new_job_runs(self):
        self.no_workers_left()
        self.assertEqual(self.run_ranks(["arena"] * 2, "steps", gpus=[0, 0]), self.run_ranks(["host"] * 2, "steps"))


class Faults(NeighbourCase):
    def test_a_killed_worker_is_device_lost_and_the_neighbour_goes_on(self):
        self.begin_neighbour()
        spared = self.workers()
        doomed = self.begin(["arena"] * 2, "paced", job="doomed")
        for _ in range(20):
            doomed[0].stdout.readline()
        victims = set(self.workers()) - set(spared)
        self.assertEqual((len(spared), len(victims)), (2, 2))
        self.let_the_neighbour_step()
        began = time.monotonic()
        for pid in victims:
            os.kill(pid, signal.SIGKILL)
        seconds, said = self.failures(doomed, began)
        for text in said:
            self.assertRegex(text, r"^failed (DEVICE_LOST|PEER_LOST) .*cgxd-gpu \(process \d+, GPU ")
        figure("a killed worker is known to its ranks", seconds, 1.0)
        self.assertLess(seconds, 2.5)  # on a busy machine; a silent peer is known after 4 s
        self.assertEqual(set(self.workers()), set(spared))
        self.end_the_neighbour()
        self.a_new_job_runs()

    def test_a_killed_trainer_keeps_neither_its_worker_nor_the_others(self):
        processes = self.begin(["arena"] * 3, "paced", words="seed=5 delay_us=20000", job="mortal")
        for _ in range(3):
            processes[0].stdout.readline()
        began = time.monotonic()
        processes[2].kill()  # a rank beside the first one: the worker that they have lives on
        seconds, said = self.failures(processes[:2], began)
        for text in said:
            self.assertRegex(text, r"^failed RANK_LOST .*rank 2 ")
        figure("a killed trainer is known to the others", seconds, 2.0)
        self.assertLess(seconds, 3.5)  # on a busy machine; a silent peer is known after 4 s
        self.no_workers_left()
        self.assertEqual(self.run_ranks(["arena"] * 2, "steps"), self.run_ranks(["host"] * 2, "steps"))


@of_the_standin
class Late(WorkerCase):
    """A GPU that is behind with a gradient which its rank has submitted."""

    CONFIG = WorkerCase.CONFIG | {"timeouts": {"late_warning_ms": 1000}}

    def test_it_is_warned_about_by_its_rank_everywhere_and_by_the_tensor_where_it_is(self):
        ranks = self.begin(["arena"] * 2, "behind=4")
        self.assertEqual([rank.communicate(timeout=60)[1] for rank in ranks], ["", ""])
        logs = [daemon.log() for daemon in self.daemons]
        for log in logs:
            self.assertRegex(log, r"step 1 has waited [12] s for rank 1\b")
        self.assertIn("; the GPU of rank 1 has not finished its gradient of tensor 'behind'", logs[1])


class DaemonGone(WorkerCase):
    def test_a_killed_daemon_leaves_no_rank_waiting_for_its_gpu(self):
        ranks = self.begin(["arena"] * 2, "paced")
        for _ in range(20):
            ranks[0].stdout.readline()
        began = time.monotonic()
        self.kill_daemon(self.daemons[0])
        for rank in ranks:
            self.assertIn("failed ", rank.communicate(timeout=30)[0].splitlines()[-1])
        seconds = time.monotonic() - began
        figure("ranks on GPUs end after a daemon was killed", seconds, 5.0)
        self.assertLess(seconds, 6.5)  # on a busy machine

    @staticmethod
    def steps_of_ranks(daemon):
        return [rank.get("step", 0) for each in daemon.control_tool("jobs")["communicators"] for rank in each["rank_list"]]

    def test_of_signals_to_all_processes_workers_leave_those_to_the_daemon_that_drains(self):
        """As from a terminal, `kill -- -GROUP` and a service manager without KillMode=mixed."""
        daemon = self.daemons[0]
        ranks = self.begin(["arena"] * 2, "fed=2", places=[0, 0], gpus=[0, 0])
        for rank in ranks:  # and then the second one alone, so that a step is open
            rank.stdin.write("\n")
            rank.stdin.flush()
        for rank in ranks:
            while not rank.stdout.readline().startswith("step 49 "):
                self.assertIsNone(rank.poll())
        ranks[1].stdin.write("\n")
        ranks[1].stdin.flush()
        self.wait_until(lambda: 50 in self.steps_of_ranks(daemon), "the second rank's gradient")
        workers = self.workers()
        self.assertNotEqual(workers, [])
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
            for pid in workers:
                os.kill(pid, number)
        self.addCleanup(self.start_again, daemon)
        daemon.process.send_signal(signal.SIGTERM)
        self.wait_until(lambda: "stopping" in daemon.log(), "the line about the stop")
        self.assertEqual(self.workers(), workers)
        ranks[0].stdin.write("\n")
        ranks[0].stdin.flush()
        for rank in ranks:
            said = rank.communicate(timeout=30)[0].splitlines()
            self.assertTrue(said[0].startswith("step 50 "), said)
            self.assertRegex(said[-1], r"^failed (UNAVAILABLE|DAEMON_LOST) .*is being stopped \(SIGTERM of process")
        self.assertEqual(daemon.process.wait(30), 0)
        self.assertIn("drained=yes", daemon.log())
        self.no_workers_left()

    def without_a_daemon(self, part, answers):
        rank = self.begin(["arena"], part, places=[1], words="")[0]
        self.assertEqual(rank.stdout.readline(), "ready\n")
        self.kill_daemon(self.daemons[1])
        out, errors = rank.communicate("\n", timeout=30)
        self.assertEqual((rank.returncode, errors), (0, ""))
        lines = out.splitlines()
        self.assertEqual(len(lines), len(answers), out)
        for line, answer in zip(lines, answers):
            self.assertRegex(line, f"^{answer}")

    @of_the_standin
    def test_memory_is_kept_for_streams_although_nobody_takes_what_they_do(self):
        self.without_a_daemon("unposted", ("lost: .*DaemonLostError ", "refused: DaemonLostError ", "closed: slow OK"))

    @of_the_standin
    def test_memory_is_kept_for_streams_that_the_worker_no_longer_waits_for(self):
        self.without_a_daemon("orphaned", ("lost: .*DaemonLostError ", "closed: slow OK"))


@of_the_standin
class Sticky(WorkerCase):
    """A kernel that fails on the GPU: here the fortieth launch of each worker."""

    WORKER = f"{DAWDLING} fail=cuLaunchKernel:40=700"

    def test_a_fault_of_the_gpu_names_the_kernel_and_the_tensor(self):
        processes = self.begin(["arena", "host"], "paced")
        out = [process.communicate(timeout=30)[0] for process in processes]
        self.assertRegex(out[0].splitlines()[-1], r"^failed DEVICE_LOST .*tensor 'paced': cgxd-gpu \(process .*((en|de)cod|reduc)"
                                                  r"(ing of \d+ segments with|e of) maxmin:4.*CUDA_ERROR_ILLEGAL_ADDRESS")
        self.assertRegex(out[1].splitlines()[-1], r"^failed DEVICE_LOST .*CUDA_ERROR_ILLEGAL_ADDRESS")


@of_the_standin
class StickyLater(Sticky):
    """The launch succeeds and the kernel fails when it runs: no call says so unless the worker asks."""

    WORKER = f"{DAWDLING} faulting=40"


@of_the_standin
class Lost(NeighbourCase):
    """A GPU falls off the bus while workers are at a step of its job."""

    GPU = 5

    def lose(self):
        ask = f"import ctypes; c = ctypes.CDLL('libcuda.so.1'); assert c.cuInit(0) == 0; c.cgx_standin_lose({self.GPU})"
        environment = driver_environment(f"folder={self.machine} devices={DEVICES}")
        subprocess.run([sys.executable, "-c", ask], env=dict(os.environ, **environment), check=True)

    def test_a_lost_gpu_is_device_lost_and_the_neighbour_goes_on(self):
        self.begin_neighbour()
        doomed = self.begin(["arena"] * 2, "matrices=1024x10000", gpus=[self.GPU] * 2, words="")
        for rank in doomed:
            self.assertTrue(rank.stdout.readline(), rank.poll())
        self.let_the_neighbour_step()
        began = time.monotonic()
        self.lose()  # which takes a program
        seconds, said = self.failures(doomed, began)
        for text in said:  # by the worker, in whose time almost all of a step goes by, or by who hands over the next one
            self.assertRegex(text, r"^failed (DEVICE_LOST|PEER_LOST) .*(cgxd-gpu \(process \d+, GPU |timeline word).*"
                                   r"CUDA_ERROR_DEVICE_UNAVAILABLE")
        figure("a lost GPU is known to its ranks", seconds, 1.0)
        self.assertLess(seconds, 2.5)  # on a busy machine; a silent peer is known after 4 s
        self.end_the_neighbour()
        self.a_new_job_runs()


@of_the_standin
class FullInAStep(WorkerCase):
    """A launch for which the GPU has no memory: here the fortieth of each worker."""

    WORKER = f"{DAWDLING} fail=cuLaunchKernel:40=2"

    def test_the_job_is_told_and_names_the_tensor_and_the_next_one_runs(self):
        began = time.monotonic()
        seconds, said = self.failures(self.begin(["arena"] * 2, "paced"), began)
        for text in said:
            self.assertRegex(text, r"^failed RESOURCE_EXHAUSTED .*tensor 'paced': .*maxmin:4.*CUDA_ERROR_OUT_OF_MEMORY")
        self.no_workers_left()
        self.assertEqual(self.run_ranks(["arena"] * 2, "small=2"), self.run_ranks(["host"] * 2, "small=2"))


@of_the_standin
class WithoutKernels(WorkerCase):
    """A GPU that takes none of the kernels in cgxd-gpu: too old, or there are none."""

    WORKER = f"{DAWDLING} fail=cuModuleLoadData:*=209"
    WHY = r"cgxd-gpu (was built without nvcc|has no kernels for this GPU): .*CUDA_ERROR_NO_BINARY_FOR_GPU"

    def test_tensors_are_staged_and_status_says_why(self):
        self.assertEqual(self.run_ranks(["copied"] * 2, "steps"), self.run_ranks(["host"] * 2, "steps"))
        ranks = self.begin(["copied"] * 2, "layers=2")
        for rank in ranks:
            self.assertEqual(rank.stdout.readline(), "stepped\n")
        shown = self.daemons[0].control_tool("status")["gpus"]
        for rank in ranks:
            self.assertEqual(rank.communicate("\n", timeout=30)[1], "")
        self.assertEqual([each["way"] for each in shown], ["staged"])
        self.assertRegex(shown[0]["why"], self.WHY)


@of_the_standin
class FullAtTheStart(WorkerCase):
    """A GPU without room for a worker, which passes: neither is anything staged for good, nor do the others hear of a mistake."""

    WORKER = "memory=1M"

    def test_a_communicator_is_refused_by_name(self):
        for rank in self.begin(["copied"] * 2, "steps"):
            self.assertRegex(rank.communicate(timeout=60)[1], r"ResourceExhaustedError: .*scratch memory: CUDA_ERROR_OUT_OF_MEMORY")


class WithoutAGpu(WithoutKernels):
    """A daemon that may not open the GPUs that its trainers have, as in a container or a unit without devices."""

    WORKER = "devices=0"
    WHY = "starting the CUDA driver: CUDA_ERROR_NO_DEVICE"


class WithAnOldDriver(WithoutKernels):
    """A daemon whose driver is older than that of its trainers, as in a container."""

    WORKER = "version=11040"
    WHY = "cgxd-gpu has no GPU: libcuda.so.1 is a driver for CUDA 11.4; 11.7 or newer is needed"

    def test_memory_for_its_worker_is_refused_by_name(self):
        self.assertRegex(self.run_ranks(["arena"], "steps", places=[0])[0], f"^failed UNIMPLEMENTED .*{self.WHY}")

    def test_that_of_the_trainers_is_named_too(self):
        why = "libcuda.so.1 is a driver for CUDA 11.4; 11.7 or newer is needed"
        for kind in ("arena", "copied"):
            said = self.run_ranks([kind], "steps", words="version=11040", places=[0])[0]
            self.assertRegex(said, f"^failed UNIMPLEMENTED .*{why}")


class WithAGpuThatIsTaken(WithoutKernels):
    """A trainer has the GPU for itself: its compute mode is EXCLUSIVE_PROCESS."""

    WORKER = "fail=cuDevicePrimaryCtxRetain:*=46"
    WHY = "opening the GPU: CUDA_ERROR_DEVICE_UNAVAILABLE"


class BesideAContainer(WithoutKernels):
    """Neither descriptors nor handles of the trainer's memory reach the worker."""

    WORKER = f"{DAWDLING} without=vmm fail=cuIpcOpenMemHandle:*=201"
    WHY = "by handle: .*CUDA_ERROR_INVALID_CONTEXT.*is either in a container, or another user's"


@of_the_standin
class Full(WorkerCase):
    """A GPU without memory for what a plan needs."""

    CONFIG = {"policy": {"codec": "maxmin:4,feedback"}}
    WORKER = "memory=42M"

    def test_residuals_that_do_not_fit_are_refused_when_the_plan_is_prepared(self):
        for said in self.run_ranks(["copied"] * 2, "large", words=""):
            self.assertRegex(said, r"^failed RESOURCE_EXHAUSTED ")


@of_the_standin
class Unpinned(WorkerCase):
    """Staging memory that a worker cannot pin: behind the words of an arena and the frames of calls, that of the first plan."""

    WORKER = f"{DAWDLING} fail=cuMemHostRegister:3=2"

    def test_a_plan_is_refused_by_name_when_it_is_prepared_and_the_next_one_has_its_memory(self):
        said = self.run_ranks(["arena"] * 2, "again=5")
        for text in said:
            for machine, line in enumerate(text.splitlines()[:2]):
                self.assertRegex(line, rf"^refused RESOURCE_EXHAUSTED .*machine {machine} .*staging memory: CUDA_ERROR_OUT_OF_MEMORY")
        host = self.run_ranks(["host"] * 2, "again=5")
        self.assertEqual([text.splitlines()[2:] for text in said], [text.splitlines() for text in host])


@of_the_standin
class UnpinnedCalls(WorkerCase):
    """The same of the frames of calls."""

    WORKER = f"{DAWDLING} fail=cuMemHostRegister:2=2"

    def test_a_communicator_is_refused_by_name_when_it_is_made(self):
        for rank in self.begin(["arena"] * 2, "steps"):
            self.assertRegex(rank.communicate(timeout=60)[1], r"ResourceExhaustedError: .*frame buffers of calls of .*staging memory: "
                                                              r"CUDA_ERROR_OUT_OF_MEMORY")


@of_the_standin
class FullOfWork(WorkerCase):
    """A GPU without memory for what sparse codecs work in."""

    CONFIG = {"policy": {"codec": "topk:0.01"}}
    WORKER = "memory=33M"

    def test_work_memory_that_does_not_fit_is_refused_when_the_plan_is_prepared(self):
        for said in self.run_ranks(["copied"] * 2, "large", words=""):
            self.assertRegex(said, r"^failed RESOURCE_EXHAUSTED .*work memory of sparse codecs, \d+ bytes")


@of_the_standin
class Hung(WorkerCase):
    """A worker that does not answer when a plan needs residuals there."""

    MACHINES = 1
    CONFIG = {"policy": {"codec": "maxmin:4,feedback", "min_elements": 64}}

    def test_a_worker_that_hangs_is_lost_within_a_second_and_named(self):
        ranks = self.begin(["arena", "arena"], "commit", places=[0, 0], gpus=[0, 1])
        for rank in ranks:
            self.assertEqual(rank.stdout.readline(), "registered\n")
        os.kill(self.workers()[0], signal.SIGSTOP)
        began = time.monotonic()
        for rank in ranks:
            rank.stdin.write("\n")
            rank.stdin.flush()
        seconds, said = self.failures(ranks, began)
        for text in said:
            self.assertRegex(text, r"^failed DEVICE_LOST .*cgxd-gpu \(process \d+, GPU .*\) of job .* did not answer within 1 s")
        figure("a hung worker is known to its ranks", seconds, 2.0)
        self.assertLess(seconds, 3.5)  # on a busy machine; a silent peer is known after 4 s


if __name__ == "__main__":
    unittest.main()
