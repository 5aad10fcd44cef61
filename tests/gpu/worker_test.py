"""Tensors on a GPU that a worker (cgxd-gpu) reduces: real daemons, the stand-in driver, ranks in processes.

The oracle is the host: ranks whose tensors lie there get the same bits, whatever codec is on the network.
CGX_TEST_GPU=1: on the machine's GPU, with its own driver; what only the stand-in does on demand is skipped then.
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import unittest.mock

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

from cluster_case import ClusterCase, figure  # noqa: E402
from daemons import BUILD, binary, python_environment  # noqa: E402
from gpu_driver import STANDIN, driver_environment, of_the_standin  # noqa: E402

TWINS = os.path.join(BUILD, "lib", "libcgx_twins.so")
DAWDLING = "seed=3 delay_us=300"
DEVICES = 8  # of a machine
WITHOUT_WORDS = "this GPU or its driver has no stream memory operations: cgxd-gpu asks for events"


class WorkerCase(ClusterCase):
    """Daemons whose workers find the stand-in."""

    CONFIG = {"policy": {"codec": "maxmin:4,bucket=512"}}
    WORKER = DAWDLING
    RANK = os.path.join(HERE, "gpu_worker_rank.py")
    JOB = None  # of all ranks, where codecs draw by its name

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix="cgx-ranks-")
        cls.addClassCleanup(cls.folder.cleanup)
        cls.machine = os.path.join(cls.folder.name, "gpu")
        os.mkdir(cls.machine)
        words = f"strict folder={cls.machine} counts={cls.machine} kernels={TWINS} devices={DEVICES} {cls.WORKER}"
        cls.environment = driver_environment(words)
        with unittest.mock.patch.dict(os.environ, cls.environment):
            super().setUpClass()
        cls.jobs = 0

    def kill_daemon(self, daemon):
        """Until the test ends."""
        daemon.process.kill()
        daemon.process.wait()
        self.addCleanup(self.start_again, daemon)

    def start_again(self, daemon):
        with unittest.mock.patch.dict(os.environ, self.environment):
            daemon.start()

    def begin(self, kinds, *parts, words=DAWDLING, job=None, places=None, gpus=None):
        """A rank of each kind, alternately on the two machines, or where `places` and `gpus` say."""
        type(self).jobs += 1
        meeting = os.path.join(self.folder.name, str(self.jobs))
        os.mkdir(meeting)
        processes = []
        for rank, kind in enumerate(kinds):
            daemon = self.daemons[places[rank] if places else rank % 2]
            words_of_rank = f"strict folder={self.machine} counts={self.machine} {words}" + (f" devices={DEVICES} visible={gpus[rank]}" if gpus else "")
            environment = python_environment(CGX_SOCKET=daemon.socket, **({} if kind == "host" else driver_environment(words_of_rank)))
            processes.append(daemon.machine.start(
                [sys.executable, self.RANK, kind, str(rank), str(len(kinds)), meeting, job or self.JOB or f"job{self.jobs}", *parts],
                env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE))
            self.addCleanup(processes[-1].kill)
        return processes

    def run_ranks(self, *arguments, **options):
        """What each rank printed; all end well and accuse nobody."""
        said = []
        for process in self.begin(*arguments, **options):
            out, errors = process.communicate(timeout=120)
            self.assertEqual((process.returncode, errors), (0, ""))
            said.append(out)
        for daemon in self.daemons:
            self.assertNotIn("VIOLATION", daemon.log())
        return said

    def workers(self):
        """The processes of cgxd-gpu that belong to our daemons."""
        ours = {str(daemon.process.pid) for daemon in self.daemons}
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/stat") as file:
                    name, rest = file.read().rsplit(")", 1)
            except OSError:
                continue
            if name.endswith("(cgxd-gpu") and rest.split()[0] != "Z" and rest.split()[1] in ours:
                found.append(int(pid))
        return found

    def no_workers_left(self):
        deadline = time.monotonic() + 10
        while self.workers() and time.monotonic() < deadline:
            time.sleep(0.05)
        self.assertEqual(self.workers(), [])

    def kill_a_worker(self, ranks):
        """Of those there are; in how many seconds the ranks knew, and what they said last."""
        began = time.monotonic()
        os.kill(self.workers()[0], signal.SIGKILL)
        return self.failures(ranks, began)

    @staticmethod
    def failures(ranks, began):
        """Seconds until all have said that they failed, and with what; what Python takes to end does not count."""
        limit = threading.Timer(30, lambda: [rank.kill() for rank in ranks])
        limit.start()
        said = [next((line for line in rank.stdout if line.startswith("failed ")), "nothing").rstrip() for rank in ranks]
        seconds = time.monotonic() - began
        limit.cancel()
        for rank in ranks:
            rank.communicate(timeout=30)
        return seconds, said


class Bits(WorkerCase):
    def test_ranks_of_a_worker_get_the_bits_of_host_ranks(self):
        host = self.run_ranks(["host"] * 4)
        self.assertGreater(len(host[0].splitlines()), 14)
        self.assertNotIn("failed", host[0])
        for kinds in (["arena"] * 4, ["copied"] * 4, ["imported"] * 4, ["arena", "host"] * 2):
            self.assertEqual(self.run_ranks(kinds), host, kinds)

    def test_tensors_in_pieces_of_a_pool(self):
        self.assertEqual(self.run_ranks(["copied"] * 2, "pooled"), self.run_ranks(["host"] * 2, "pooled"))

    def test_one_machine_alone(self):
        host = self.run_ranks(["host"] * 2, places=[0, 0])
        self.assertEqual(self.run_ranks(["arena", "copied"], places=[0, 0]), host)

    @of_the_standin
    def test_every_way_gives_the_same_bits_and_is_counted(self):
        host = self.run_ranks(["host"] * 2)

        def counted():
            counters = self.daemons[0].counters()
            return [counters[f"device_{way}"] for way in ("arenas_vmm", "arenas_ipc", "ranks_staged")]

        for words, vmm, ipc in (("", True, False), ("without=vmm", False, True), ("without=vmm without=ipc", False, False),
                                ("without=words", True, False)):
            before = counted()
            self.assertEqual(self.run_ranks(["arena" if vmm or ipc else "copied"] * 2, words=f"{DAWDLING} {words}"), host,
                             words)
            self.assertEqual([after > b for after, b in zip(counted(), before)], [vmm, ipc, not vmm and not ipc], words)

    def test_no_worker_stays_behind(self):
        self.run_ranks(["arena"] * 2, "steps")
        self.no_workers_left()

    def test_tensors_of_every_type_in_one_step(self):
        host = self.run_ranks(["host"] * 2, "types")
        self.assertNotIn("failed", host[0])
        for kind in ("arena", "copied"):
            self.assertEqual(self.run_ranks([kind] * 2, "types"), host, kind)


class Mixed(WorkerCase):
    """Ranks of one machine of which some have their tensors on a GPU."""

    MACHINES = 1

    def test_ranks_on_a_gpu_and_on_the_host_are_refused_at_once_and_both_named(self):
        processes = self.begin(["arena", "host", "arena"], "mixed", places=[0, 0, 0])
        out = [process.communicate(timeout=60) for process in processes]
        self.assertEqual([(process.returncode, errors) for process, (_, errors) in zip(processes, out)], [(0, "")] * 3)
        for text, _ in out:
            seconds, answer = text.split(" ", 1)
            self.assertRegex(answer, r"^MismatchError .*rank 0 of communicator .* has its tensors on a GPU, another rank of this "
                                     r"machine on the host: rank 1; all must have them on the host, or all on GPUs")
            figure("ranks on a GPU and on the host are refused", float(seconds), 0.2)
            self.assertLess(float(seconds), 1.5)  # on a busy machine


class Streams(WorkerCase):
    """Which stream a tensor is ready on."""

    @of_the_standin
    def test_a_default_stream_of_another_gpu_is_refused_by_name(self):
        another = r"of another CUDA context \(GPU 0\) than the one current in this thread \(GPU 1\)"
        for kind, words in (("arena", ""), ("imported", ""), ("arena", "without=words")):
            lines = self.run_ranks([kind], "elsewhere", words=f"{DAWDLING} {words}", places=[0], gpus=["0,1"])[0].splitlines()
            for line, wanted in zip(lines, [f"^default: InvalidArgumentError .*{another}",
                                            f"^legacy: InvalidArgumentError .*{another}",
                                            f"^of the thread: InvalidArgumentError .*{another}", "^named: (slow )?OK",
                                            "^no context: InvalidArgumentError .*no current CUDA context", "^sound: (slow )?OK"]):
                self.assertRegex(line, wanted)
            self.assertEqual(len(lines), 6)

    @of_the_standin
    def test_a_stream_that_a_graph_captures_is_refused_by_name(self):
        refused = "InvalidArgumentError .*the stream is being captured in a CUDA graph"
        for kind, result in (("arena", "(slow )?OK"), ("copied", refused)):  # which nothing copies, or the stream does
            lines = self.run_ranks([kind], "captured", places=[0])[0].splitlines()
            for line, wanted in zip(lines, [f"^captured: {refused}"] * 2 + [f"^default: {refused}", f"^result: {result}"] +
                                    ["^sound: (slow )?OK"] * 2 + ["^again: (slow )?OK", "^value: 1.0"]):
                self.assertRegex(line, wanted)
            self.assertEqual(len(lines), 8)

    @of_the_standin
    def test_a_driver_that_does_not_know_of_captures_is_taken_as_it_is(self):
        self.assertEqual(self.run_ranks(["arena"], "steps", words="fail=cuStreamIsCapturing:*=801", places=[0]),
                         self.run_ranks(["host"], "steps", places=[0]))

    @of_the_standin
    def test_default_streams_of_threads_are_not_taken_for_one(self):
        self.run_ranks(["arena"], "threads", places=[0])


class Imports(WorkerCase):
    """Memory that ranks have allocated themselves, read and written where it lies."""

    def counted(self):
        return [daemon.counters()["device_arenas_ipc"] for daemon in self.daemons]

    def test_memory_comes_and_goes_more_often_than_a_session_has_arenas(self):
        before = self.counted()
        said = self.run_ranks(["imported"] * 2, "churn=80")
        self.assertEqual(said[0], said[1])
        self.assertEqual(len(set(line.split()[2] for line in said[0].splitlines())), 80)
        self.assertEqual([now - then for now, then in zip(self.counted(), before)], [80, 80])
        self.no_workers_left()

    def test_parts_of_an_allocation_are_one_arena(self):
        before = self.counted()
        said = self.run_ranks(["imported"] * 2, "pieces")
        self.assertEqual(said[0], said[1])
        self.assertEqual([now - then for now, then in zip(self.counted(), before)], [1, 1])

    def test_a_session_that_closes_ends_its_imports(self):
        said = self.run_ranks(["imported"] * 2, "forgotten")
        self.assertEqual(said[0], said[1])

    def test_a_killed_trainer_leaves_no_memory_open(self):
        processes = self.begin(["imported"] * 2, "paced")
        processes[0].stdout.readline()
        processes[1].kill()
        self.assertRegex(processes[0].communicate(timeout=30)[0].splitlines()[-1], r"^failed (RANK_LOST|PEER_LOST) ")
        self.no_workers_left()

    def test_imports_end_when_their_worker_has_died(self):
        self.no_workers_left()
        processes = self.begin(["imported"] * 2, "paced")
        processes[0].stdout.readline()
        for pid in self.workers():
            os.kill(pid, signal.SIGKILL)
        for process in processes:
            out, errors = process.communicate(timeout=30)
            self.assertRegex(out.splitlines()[-1], r"^failed (DEVICE_LOST|PEER_LOST) ")
            self.assertEqual((process.returncode, errors), (0, ""))

    def test_a_worker_reads_what_imported_memory_held_before(self):
        self.run_ranks(["imported"], "fresh", words="lag_us=100000", places=[0])

    def test_a_session_whose_worker_has_died_goes_on_with_a_new_one(self):
        for places in ([0, 0], [0, 1]):
            self.no_workers_left()
            processes = self.begin(["imported"] * 2, "revived", places=places)
            before = [process.stdout.readline() for process in processes]
            self.assertEqual([process.stdout.readline() for process in processes], ["ready\n"] * 2)
            for pid in self.workers():
                os.kill(pid, signal.SIGKILL)
            for process in processes:
                process.stdin.write("\n")
                process.stdin.flush()
            out = [process.communicate(timeout=60) for process in processes]
            self.assertEqual([(process.returncode, errors) for process, (_, errors) in zip(processes, out)], [(0, "")] * 2)
            said = [text.splitlines() for text, _ in out]
            for lines in said:
                self.assertRegex(lines[0], "^lost (DEVICE_LOST|PEER_LOST)$")
                self.assertEqual(lines[1:], [before[0].strip()] * 3)
            self.assertEqual(before[0], before[1])

    @of_the_standin
    def test_what_cannot_be_imported_is_told_by_name(self):
        processes = self.begin(["imported"] * 2, "mistakes", words=f"{DAWDLING} devices=2")
        lines = [[], []]
        while not any(line.startswith("named") for line in lines[0]):
            lines[0].append(processes[0].stdout.readline())
            self.assertTrue(lines[0][-1], lines)
        for process in processes:
            process.stdin.write("\n")
            process.stdin.flush()
        out = [process.communicate(timeout=60) for process in processes]
        self.assertEqual([(process.returncode, errors) for process, (_, errors) in zip(processes, out)], [(0, "")] * 2)
        wanted = [
            ("vmm", "UnimplementedError .*no CUDA IPC handle of the allocation of .*hand it over as it is, and it is copied"),
            ("arena", "InvalidArgumentError .*in the arena already"),
            ("past the end", "InvalidArgumentError .*the memory to import needs 40004 bytes and has 40000 to the end of its allocation"),
            ("odd", "InvalidArgumentError .*400 bytes, must have 8 bytes or more and begin at a multiple of 64"),
            ("tiny", "InvalidArgumentError .*4 bytes, must have 8 bytes or more"),
            ("freed", "InvalidArgumentError .*the memory to import is not in the memory of a GPU; was it freed"),
            ("host", "ValueError .*not in the memory of a GPU"),
            ("unknown gpu", "InvalidArgumentError .*not the one whose UUID is named"),
            ("overlapping", "InvalidArgumentError .*in part of memory that is imported already"),
            ("named", "TimedOutError .*named by a call or step that is unfinished, or is the home of a tensor"),
            ("ended", "OK"), ("ended again", "OK"), ("sound", "OK")]
        lines[0] += out[0][0].splitlines()
        for line, (what, answer) in zip(lines[0], wanted):
            self.assertRegex(line, f"^{what}: {answer}")
        self.assertEqual(len(lines[0]), len(wanted))

    @of_the_standin
    def test_without_ipc_imports_are_refused_by_name(self):
        for line in self.run_ranks(["imported"], "calls", words=f"{DAWDLING} without=ipc", places=[0])[0].splitlines():
            self.assertRegex(line, "^failed UNIMPLEMENTED .*CUDA_ERROR_NOT_SUPPORTED")


class WithoutWords(Bits):
    """A worker whose GPU writes no words: events say what is done."""

    WORKER = f"{DAWDLING} without=words"


@of_the_standin
class Events(WorkerCase):
    """On a GPU whose streams write no words events say what is done, to workers and to trainers: the same ones again and again."""

    WORKER = "without=words"

    def made(self, program):
        """How many events, by the processes of that name that have ended."""
        count = 0
        for name in os.listdir(self.machine):
            if name.startswith(program):
                with open(os.path.join(self.machine, name), encoding="ascii") as file:
                    count += sum(int(line.split()[1]) for line in file if line.startswith("cuEventCreate "))
        return count

    def test_many_steps_make_as_many_as_few_do(self):
        self.run_ranks(["arena"] * 2, "small=100", words="without=words")
        self.no_workers_left()
        for program in ("cgxd-gpu", "python"):
            self.assertGreater(self.made(program), 0)
            self.assertLess(self.made(program), 40, program)


class Families(WorkerCase):
    """Every dense codec, one for each tensor of a step: several launches for a part."""

    JOB = "families"
    CLEAN = {"residuals_ms": 1}  # the next job of that name begins without any
    CODECS = ("fp32", "fp16", "bf16", "fp8:e4m3", "fp8:e5m2", "maxmin:8,bucket=1024", "maxmin:1", "maxmin:2,feedback",
              "maxmin:3", "int8", "maxmin:6", "efsign,feedback", "signsgd", "onebit,feedback", "fp16,feedback", "natural:4",
              "qsgd:4,feedback", "qsgd:3,norm=l2,stochastic", "terngrad,clip")
    CONFIG = {"timeouts": CLEAN, "policy": {"codec": "fp32", "rules": [{"match": f"tensor{number:02}", "codec": codec}
                                                                       for number, codec in enumerate(CODECS)]}}

    @property
    def part(self):
        return f"families={len(self.CODECS)}"

    def test_every_codec_gives_the_bits_of_the_host(self):
        before = self.daemons[0].counters()["encoded_bytes_sent"]
        host = self.run_ranks(["host"] * 2, self.part)
        self.assertEqual(len(host[0].splitlines()), 3 * len(self.CODECS))
        raw = 3 * 4 * sum(2 * (2501 + 33 * number) for number in range(len(self.CODECS)))
        self.assertLess(self.daemons[0].counters()["encoded_bytes_sent"] - before, raw / 2, "codecs are in force")
        self.assertEqual(self.run_ranks(["host"] * 2, self.part), host, "a codec that draws has a key for each job")
        self.assertEqual(self.run_ranks(["arena"] * 2, self.part), host)


class SparseFamilies(Families):
    """Every sparse codec beside dense ones: ranges of any length, one behind the other, whatever comes before them."""

    CODECS = ("topk:0.01", "fp32", "threshold:1.5", "topk:0.1,values=maxmin8,feedback", "maxmin:4", "randomk:0.1", "topk:0.01,feedback",
              "threshold:2,feedback", "randomk:0.25,feedback", "fp16", "topk:0.25,values=fp16", "threshold:9", "randomk:0.01,values=maxmin4",
              "topk:0.001,values=maxmin4,feedback", "threshold:0.001", "int8")
    CONFIG = {"timeouts": Families.CLEAN, "policy": {"codec": "fp32", "rules": [{"match": f"tensor{number:02}", "codec": codec}
                                                                                for number, codec in enumerate(CODECS)]}}


class EveryCodec(unittest.TestCase):
    def test_none_is_left_out(self):
        with open(os.path.join(HERE, "..", "..", "kernels", "codecs.def"), encoding="utf-8") as file:
            all_of_them = re.findall(r'^X\(\w+, \d+, "(\w+)"', file.read(), re.MULTILINE)
        played = {re.match(r"\w+", codec)[0] for codec in Families.CODECS + SparseFamilies.CODECS}
        self.assertEqual(set(all_of_them) - played, set())


class TopK(Bits):
    CONFIG = {"policy": {"codec": "topk:0.01,feedback"}}


class RandomK(Bits):
    JOB = "drawn"
    CONFIG = {"policy": {"codec": "randomk:0.05", "collective": "scatter"}}


class SlowToLoad(WorkerCase):
    """A driver that must compile kernels first, because its GPU is newer than the machine code in cgxd-gpu."""

    CONFIG = {"policy": {"codec": "topk:0.01"}}
    WORKER = "slow=cuModuleLoadData:1500"

    @of_the_standin
    def test_a_worker_that_loads_kernels_is_waited_for(self):
        self.assertEqual(self.run_ranks(["arena"] * 2, "steps"), self.run_ranks(["host"] * 2, "steps"))


class Feedback(Bits):
    CONFIG = {"policy": {"codec": "maxmin:4,bucket=128,feedback"}}


class Shown(WorkerCase):
    """What operators see of jobs on GPUs."""

    MACHINES = 1

    def doctor(self, version=13000):
        return self.daemons[0].machine.run([binary("cgxctl"), "--socket", self.daemons[0].control, "doctor"],
                                           capture_output=True, text=True,
                                           env=python_environment(LD_LIBRARY_PATH=STANDIN, CGX_STANDIN=f"devices=2 version={version}")).stdout

    def shown(self, words, kind="arena"):
        rank = self.begin([kind], "commit", places=[0], gpus=[3], words=words, job="shown")[0]
        rank.stdout.readline()
        rank.stdin.write("\n")
        rank.stdin.flush()
        self.assertEqual(rank.stdout.readline(), "committed\n")
        status = self.daemons[0].control_tool("status")
        table = self.doctor()
        rank.communicate("\n", timeout=30)
        self.assertEqual(len(status["gpus"]), 1)
        return status["gpus"][0], table

    @of_the_standin
    def test_status_and_doctor_say_which_way_a_job_on_a_gpu_goes(self):
        for words, way in (("", "vmm"), ("without=vmm", "ipc")):
            shown, table = self.shown(words)
            self.assertEqual((shown["job"], shown["way"], shown["driver"], shown["why"]), ("shown", way, "13.0", ""))
            self.assertRegex(shown["gpu"], r"^[0-9a-f]{8}-[0-9a-f-]{27}$")
            self.assertRegex(table, r"GPU: 2, driver for CUDA 13.0, MPS off, so trainers and cgxd-gpu take turns on a GPU: slower; cgxd-gpu could take gradients there by descriptor \(vmm\), if it was built with nvcc and the daemon may open the GPU\n")
            self.assertRegex(table, rf"{shown['gpu']} +shown +\d+ +{way} +CUDA 13.0 +off")

    @of_the_standin
    def test_doctor_promises_nothing_that_a_driver_older_than_the_kernels_cannot_keep(self):
        said = self.doctor(version=11070)
        if os.path.exists(os.path.join(os.path.dirname(STANDIN), "maxmin.fatbin")):  # nvcc has made them, of 12.0 or later
            self.assertRegex(said, r"; gradients there are staged: libcuda.so.1 is a driver for CUDA 11.7; "
                                   r"the kernels, made with CUDA \d+\.\d, need 1\d\.0 or newer\n")
        else:
            self.assertIn("could take gradients there by descriptor (vmm), if it was built with nvcc", said)

    @of_the_standin
    def test_status_and_doctor_say_why_a_job_is_staged(self):
        shown, table = self.shown("without=vmm without=ipc", kind="copied")
        self.assertEqual((shown["job"], shown["way"], shown["gpu"]), ("shown", "staged", ""))
        self.assertRegex(shown["why"], r"by handle: ")
        self.assertRegex(table, r"- +shown +\d+ +staged ")


class ShownWithoutWords(WorkerCase):
    """A worker that asks its GPU for events, whose steps take longer."""

    MACHINES = 1
    WORKER = f"{DAWDLING} without=words"
    shown, doctor = Shown.shown, Shown.doctor

    @of_the_standin
    def test_status_and_doctor_say_so(self):
        shown, table = self.shown("")
        self.assertEqual((shown["way"], shown["why"]), ("vmm", WITHOUT_WORDS))
        self.assertRegex(table, rf"{shown['gpu']} +shown +\d+ +vmm +CUDA 13.0 +off +{WITHOUT_WORDS}")


if __name__ == "__main__":
    unittest.main()
