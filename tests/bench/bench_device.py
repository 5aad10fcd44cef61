"""device: tensors in a GPU's memory, reduced by the daemons' GPU workers, beside ranks on the host in the same run.

Over the stand-in driver (tests/gpu/driver), so nothing here says how fast a GPU is. bits and ways are 1 if all ranks got the bits of host
ranks; steady is 1 if later steps take no allocation, registration, module or waiting call of the driver, in workers and trainers, and
workers no page fault but one in twenty steps, which lists may take (steady/sparse: with topk, whose steps take four launches or more;
steady/events: on a GPU whose streams write no words, where the library waits for its copies); calls is the smaller of 6 over driver
calls and 4 over ring records of an operation of 1 KiB; lost/other-job is a neighbour's step time before a worker is killed over after.
n1g4 is four GPUs of one machine against four machines with a host rank each, and raw against the sum of one machine's host. pcie is what a raw
exchange among GPUs of one machine writes to and reads from registered memory, over what a 4-bit one does, as the daemon counts it. n2g2 is two
GPUs on each of two machines in two levels against four machines in racks of two; in racks-bf16 what is added within a rack travels as bf16.
network is what a flat exchange sends between two machines over what two levels do.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time

import daemons
from machines import Machines

DEVICES = 8  # of a machine
JOB = "bits"  # of ranks that are compared: codecs may draw by its name
GPU = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "gpu")
ALLOCATES = ("cuMemAlloc", "cuMemHostAlloc", "cuMemHostRegister", "cuMemCreate", "cuMemMap", "cuMemImportFromShareableHandle",
             "cuIpcOpenMemHandle", "cuModuleLoadData", "cuModuleGetFunction", "cuStreamCreate", "cuEventCreate",
             "cuEventDestroy", "cuMemFree", "cuOccupancyMaxActiveBlocksPerMultiprocessor")
WAITS = ("cuStreamSynchronize", "cuEventSynchronize", "cuCtxSynchronize", "cuMemcpyHtoD", "cuMemcpyDtoH")
FAULTS_A_STEP = 0.05
LAP = 50  # steps (gpu_worker_rank.FED)
CODECS = ["fp32", "fp16", "bf16", "fp8:e4m3", "maxmin:4,bucket=512", "maxmin:8,bucket=1024", "maxmin:2,feedback", "int8",
          "signsgd", "efsign,feedback", "onebit", "qsgd:4", "terngrad", "natural:4", "topk:0.01,feedback", "threshold:2,feedback", "randomk:0.1"]
BITS = {"n1g1": ["fp32", "maxmin:4,bucket=512"],
        "n2r2": CODECS}
PLACES = {"n1g1": [0, 0], "n2r2": [0, 1, 0, 1]}


class Scene:
    """Two machines whose daemons and ranks find the stand-in, or where it is said the machine's own driver."""

    def __init__(self, codec, words="", machines=2, on_a_gpu=False, **policy):
        self.folder = tempfile.TemporaryDirectory(prefix="cgx-device-")
        self.machines = Machines(machines)
        for name in ("machine", "counts"):
            os.mkdir(os.path.join(self.folder.name, name))
        self.words = (f"strict folder={self.folder.name}/machine counts={self.folder.name}/counts "
                      f"kernels={daemons.BUILD}/lib/libcgx_twins.so devices={DEVICES} {words}")
        self.on_a_gpu = on_a_gpu
        before = dict(os.environ)
        os.environ.update(self.driver())
        try:
            self.daemons = [daemons.Daemon(machine, self.folder.name, {"timeouts": {"residuals_ms": 1}, "policy": {"codec": codec, **policy}}) for machine in self.machines]
        finally:
            os.environ.clear()
            os.environ.update(before)
        self.jobs = 0

    def driver(self, more=""):
        """Where a process finds it, and what the stand-in is told to do."""
        standin = os.path.join(daemons.BUILD, "lib", "standin")
        return {} if self.on_a_gpu else {"LD_LIBRARY_PATH": standin, "CGX_STANDIN": f"{self.words} {more}"}

    def begin(self, kinds, places, *parts, words="", gpus=None, job=None):
        self.jobs += 1
        meeting = os.path.join(self.folder.name, str(self.jobs))
        os.mkdir(meeting)
        ranks = []
        for rank, (kind, place) in enumerate(zip(kinds, places)):
            daemon = self.daemons[place]
            environment = daemons.python_environment(CGX_SOCKET=daemon.socket,
                                                     **self.driver(f"{words} visible={gpus[rank] if gpus else 0}"))
            ranks.append(daemon.machine.start(
                [sys.executable, os.path.join(GPU, "gpu_worker_rank.py"), kind, str(rank), str(len(kinds)), meeting,
                 job or f"job{self.jobs}", *parts], env=environment, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE))
        return ranks

    def run(self, *arguments, **options):
        said = []
        for rank in self.begin(*arguments, **options):
            out, errors = rank.communicate(timeout=120)
            if rank.returncode != 0 or errors:
                raise RuntimeError(errors)
            said.append(out)
        return said

    def workers(self, daemon):
        listed = subprocess.run(["pgrep", "-P", str(daemon.process.pid), "-x", "cgxd-gpu"], capture_output=True, text=True)
        return [int(pid) for pid in listed.stdout.split()]

    def counts(self, program):
        """Of all workers that have ended, or trainers; waits for the workers of the last job."""
        deadline = time.monotonic() + 10
        while any(self.workers(daemon) for daemon in self.daemons) and time.monotonic() < deadline:
            time.sleep(0.02)
        found = {}
        folder = os.path.join(self.folder.name, "counts")
        for name in os.listdir(folder):
            if name.startswith(program):
                with open(os.path.join(folder, name)) as file:
                    for line in file:
                        call, count = line.split()
                        found[call] = found.get(call, 0) + int(count)
        return found

    def close(self):
        for daemon in self.daemons:
            daemon.process.send_signal(signal.SIGTERM)
            daemon.process.wait(20)
        self.machines.close()
        self.folder.cleanup()


def bits(report):
    for case, codecs in BITS.items():
        good = 0
        for codec in codecs:
            scene = Scene(codec)
            try:
                kinds = len(PLACES[case])
                good += scene.run(["arena"] * kinds, PLACES[case], job=JOB) == scene.run(["host"] * kinds, PLACES[case], job=JOB)
            finally:
                scene.close()
        report.add("device", f"bits/{case}", good, "codecs", len(codecs), float(good == len(codecs)), "codecs")


def bits_of_several(report):
    good = 0
    gpus = list(range(4))
    for codec in CODECS:
        scene = Scene(codec, machines=4)
        try:
            there = scene.run(["arena"] * 4, [0] * 4, "steps", gpus=gpus, job=JOB)
            same = there == scene.run(["host"] * 4, gpus, "steps", job=JOB)
            if codec == "fp32":
                same = same and there == scene.run(["host"] * 4, [0] * 4, "steps")
            good += same
        finally:
            scene.close()
    report.add("device", "bits/n1g4", good, "codecs", len(CODECS), float(good == len(CODECS)), "codecs")


def pcie(report, count):
    """Counted with the collective that sends fewest bytes, whatever the planner would take."""
    staged = {}
    for codec in ("fp32", "maxmin:4,bucket=512"):
        scene = Scene(codec, machines=1, collective="scatter")
        try:
            scene.run(["arena"] * count, [0] * count, f"sized={1 << 18}", gpus=list(range(count)))
            staged[codec] = scene.daemons[0].counters()["device_staged_bytes"]
        finally:
            scene.close()
    raw, ours = staged.values()
    report.add("device", f"pcie/4bit/g{count}", ours, "raw", raw, raw / ours, "bytes")


def network(report, count):
    """GPUs on each of two machines: all of them among each other, and each machine's with theirs first."""
    sent = {}
    for collective in ("scatter", "two_level"):
        scene = Scene("maxmin:4,bucket=512", collective=collective)
        try:
            places = [0] * count + [1] * count
            scene.run(["arena"] * 2 * count, places, f"sized={1 << 18}", gpus=2 * list(range(count)))
            sent[collective] = sum(daemon.counters()["encoded_bytes_sent"] for daemon in scene.daemons)
        finally:
            scene.close()
    flat, ours = sent.values()
    report.add("device", f"network/4bit/n2g{count}", ours, "flat", flat, flat / ours, "bytes")


def bits_in_two_levels(report, case="bits/n2g2", **policy):
    """n2r2 with a GPU for each rank: the pairs of a machine first, against four machines in racks of two."""
    good = 0
    for codec in CODECS:
        scene = Scene(codec, machines=4, collective="two_level", rack_machines=2, **policy)
        try:
            there = scene.run(["arena"] * 4, [0, 0, 1, 1], "steps", gpus=[0, 1, 0, 1], job=JOB)
            good += there == scene.run(["host"] * 4, [0, 1, 2, 3], "steps", job=JOB)
        finally:
            scene.close()
    report.add("device", case, good, "codecs", len(CODECS), float(good == len(CODECS)), "codecs")


def ways(report):
    scene = Scene("maxmin:4,bucket=512")
    try:
        host = scene.run(["host"] * 2, [0, 1])
        good, taken = 0, []
        for words, kind in (("", "arena"), ("without=vmm", "arena"), ("without=vmm without=ipc", "copied")):
            before = scene.daemons[0].counters()
            good += scene.run([kind] * 2, [0, 1], words=words) == host
            after = scene.daemons[0].counters()
            taken.append([name for name in ("arenas_vmm", "arenas_ipc", "ranks_staged")
                          if after[f"device_{name}"] > before[f"device_{name}"]])
        really = taken == [["arenas_vmm"], ["arenas_ipc"], ["ranks_staged"]]
        report.add("device", "ways", good, "ways", 3, float(good == 3 and really), "ways")
    finally:
        scene.close()


def difference(scene, part, few, many):
    """What `many` steps call more than `few` do, for each step more: workers, and trainers."""
    total = [{}, {}]
    counted = []
    for steps in (few, many):
        scene.run(["arena"] * 2, [0, 1], f"{part}={steps}")
        now = [scene.counts("cgxd-gpu"), scene.counts("python")]
        counted.append([{name: count - then.get(name, 0) for name, count in each.items()} for each, then in zip(now, total)])
        total = now
    return [{name: (count - before.get(name, 0)) / (many - few) for name, count in after.items() if count != before.get(name, 0)}
            for before, after in zip(*counted)]


def unsteady(*counted):
    """What allocates or waits, of workers and of trainers."""
    return {name: sum(each.get(name, 0) for each in counted) for name in ALLOCATES + WAITS if any(name in each for each in counted)}


def faults(pid):
    with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return int(fields[7]) + int(fields[9])


def laps(scene, count, words=""):
    """Page faults of a worker in a step between two laps, and the seconds of a step."""
    ranks = scene.begin(["arena"] * 2, [0, 1], f"laps={count}", words=words)
    found, took = [], []
    for _ in range(count):
        took.append([float(rank.stdout.readline().split()[1]) for rank in ranks][0])
        found.append([faults(pid) for daemon in scene.daemons for pid in scene.workers(daemon)])
        for rank in ranks:
            rank.stdin.write("\n")
            rank.stdin.flush()
    for rank in ranks:
        rank.communicate(timeout=60)
    most = max(after - before for before, after in zip(found[0], found[-1]))
    return most / (LAP * (count - 1)), min(took[1:])


def steady_sparse(report, quick):
    """Work memory is the plan's, whatever the entries' sizes turn out to be."""
    scene = Scene("topk:0.01,feedback")
    try:
        more, trainers = difference(scene, "matrix", 10, 20 if quick else 60)
        grown = unsteady(more, trainers)
        launches = more["cuLaunchKernel"] / len(scene.daemons)
        report.add("device", "steady/sparse", sum(grown.values()), "wanted", 0, float(not grown and launches >= 4), "calls",
                   f"{launches:.1f} launches " + " ".join(sorted(grown)))
    finally:
        scene.close()


def steady_events(report, quick):
    """Where streams write no words."""
    scene = Scene("maxmin:4,bucket=512", words="without=words")
    try:
        more, trainers = difference(scene, "small", 10, 30 if quick else 110)
        grown = unsteady(more, {name: count for name, count in trainers.items() if name not in WAITS})  # the library waits then
        asked = more.get("cuEventRecord", 0) / len(scene.daemons)
        report.add("device", "steady/events", sum(grown.values()), "wanted", 0, float(not grown and asked >= 1), "calls",
                   f"{asked:.1f} events recorded " + " ".join(sorted(grown)))
    finally:
        scene.close()


def steady(report, quick):
    scene = Scene("maxmin:4,bucket=512")
    try:
        more, trainers = difference(scene, "small", 10, 30 if quick else 110)
        grown = unsteady(more, trainers)
        missed, seconds = laps(scene, 3 if quick else 7)
        report.add("device", "steady", sum(grown.values()) + missed, "wanted", 0, float(not grown and missed <= FAULTS_A_STEP),
                   "calls", f"{missed:.3f} page faults a step " + " ".join(sorted(grown)))
        calls = sum(more.values()) / len(scene.daemons)
        records = more["cuStreamWriteValue32"] / len(scene.daemons)  # a job ends with one
        report.add("device", "calls", calls, "wanted", 6, min(6 / calls, 4 / records), "calls",
                   f"1 KiB in {1e6 * seconds:.0f} us; {records:.2f} records; "
                   + ", ".join(f"{name} {count / 2:.2f}" for name, count in sorted(more.items())))
    finally:
        scene.close()


def lost(report, quick):
    """The neighbour's steps beside a job whose worker is killed half-way."""
    scene = Scene("maxmin:4,bucket=512")
    try:
        steps = 60 if quick else 300
        neighbour = scene.begin(["arena"] * 2, [0, 1], f"timed={steps}")
        mine = scene.workers(scene.daemons[0]) if neighbour[0].stdout.readline() else []
        doomed = scene.begin(["arena"] * 2, [0, 1], "paced")
        for _ in range(10):
            doomed[0].stdout.readline()
        for pid in set(scene.workers(scene.daemons[0])) - set(mine):
            os.kill(pid, signal.SIGKILL)
        for rank in doomed:
            rank.communicate(timeout=60)
        out = [rank.communicate(timeout=120)[0] for rank in neighbour]
        took = [float(line.split()[1]) for line in out[0].splitlines() if line.startswith("took")]
        half = sorted(took[:len(took) // 2])[len(took) // 4], sorted(took[len(took) // 2:])[len(took) // 4]
        report.add("device", "lost/other-job", half[1] * 1e6, "before", half[0] * 1e6, half[0] / half[1], "us")
    finally:
        scene.close()


def run(options, report):
    for case, act in (("bits", bits), ("bits/n1g4", bits_of_several), ("bits/n2g2", bits_in_two_levels),
                      ("bits/n2g2/racks-bf16", lambda to: bits_in_two_levels(to, "bits/n2g2/racks-bf16", rack_codec="bf16")),
                      ("pcie/4bit/g4", lambda to: pcie(to, 4)), ("pcie/4bit/g8", lambda to: pcie(to, 8)),
                      ("network/4bit/n2g2", lambda to: network(to, 2)), ("network/4bit/n2g4", lambda to: network(to, 4)),
                      ("ways", ways), ("steady calls", lambda to: steady(to, options.quick)),
                      ("steady/sparse", lambda to: steady_sparse(to, options.quick)),
                      ("steady/events", lambda to: steady_events(to, options.quick)),
                      ("lost/other-job", lambda to: lost(to, options.quick))):
        if options.wants(case) or options.wants(case.split()[0]):
            act(report)
