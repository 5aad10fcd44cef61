"""adapt: does mode auto follow a network that changes, and stay calm beside a busy neighbour?

adapt/scalar/10gbit-500mbit-10gbit/{down,up}: after each change 50 steps pass; then the step time of the best of three
fixed policies / under mode auto. adapt/hog: 2 / plans that mode auto put in force while another process takes both
cores for 20 s. adapt/soak: step time without compression / under mode auto from its first step on, trials included,
where not compressing is best.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time

from bench_auto import Job
from machines import Machines

FIXED = {"fp32": ("codec=fp32",), "8bit": ("codec=maxmin:8",), "4bit": ("codec=maxmin:4,stochastic",)}
PHASES = (("down", "500mbit"), ("up", "10gbit"))
MODEL = "tiny"
STEPS_TO_ADAPT, HOG_S, SWITCHES = 50, 20, 2
HOG = "import time\nend = time.monotonic() + {}\nwhile time.monotonic() < end: pass"


def run(options, report):
    if options.peers_only:
        return
    cases = [f"scalar/10gbit-500mbit-10gbit/{phase}" for phase, _ in PHASES]
    if any(map(options.wants, cases)):
        network(cases, options, report)
    if options.wants("hog"):
        hog(options, report)
    if options.wants("soak"):
        soak(options, report)


def pair(machines, folder, lane):
    return (Job(machines, os.path.join(folder, "auto"), MODEL, lane, {"mode": "auto"}, 0),
            Job(machines, os.path.join(folder, "fixed"), MODEL, lane, {"codec": "fp32"}, 4))


def network(cases, options, report):
    rounds, steps = (1, 10) if options.quick else (3, 30)
    times = {case: {name: [] for name in (*FIXED, "auto")} for case in cases}
    with Machines(2, "10gbit") as machines, tempfile.TemporaryDirectory(prefix="cgx-bench-") as folder:
        searching, by_hand = pair(machines, folder, "scalar")
        try:
            searching.settle(200)
            for _ in range(rounds):
                for case, (_, link) in zip(cases, PHASES):
                    machines.shape(link)
                    searching.steps(STEPS_TO_ADAPT)
                    times[case]["auto"] += searching.steps(steps)
                    for name, settings in FIXED.items():
                        by_hand.apply(settings)
                        times[case][name] += by_hand.steps(3 + steps)[3:]
                    searching.steps(100)
            note = searching.said()
        finally:
            searching.close()
            by_hand.close()
    for case in cases:
        medians = {name: statistics.median(each) / 1e3 for name, each in times[case].items()}
        ours = medians.pop("auto")
        best = min(medians, key=medians.get)
        report.add("adapt", case, ours, best, medians[best], medians[best] / ours, "ms/step",
                   ", ".join(f"{name} {value:.1f}" for name, value in medians.items()) + f"; {note}")


def hog(options, report):
    seconds = 6 if options.quick else HOG_S
    with Machines(2, "10gbit") as machines, tempfile.TemporaryDirectory(prefix="cgx-bench-") as folder:
        job = Job(machines, os.path.join(folder, "auto"), MODEL, "auto", {"mode": "auto"}, 0)
        try:
            job.settle(200)
            before = len(job.plans_kept())
            hogs = [subprocess.Popen([sys.executable, "-c", HOG.format(seconds)]) for _ in range(os.cpu_count())]
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                job.steps(10)
            for process in hogs:
                process.wait()
            job.steps(100)
            switches = len(job.plans_kept()) - before
            note = job.said()
        finally:
            job.close()
    report.add("adapt", "hog", switches, "limit", SWITCHES, SWITCHES / max(1, switches), "switches", note)


def soak(options, report):
    steps = 300 if options.quick else 2000
    with Machines(2, "unshaped") as machines, tempfile.TemporaryDirectory(prefix="cgx-bench-") as folder:
        searching, by_hand = pair(machines, folder, "scalar")
        try:
            ours, exact = [], []
            for _ in range(steps // 50):
                ours += searching.steps(50)
                exact += by_hand.steps(50)
            note = searching.said()
        finally:
            searching.close()
            by_hand.close()
    mean, peer = statistics.mean(ours) / 1e3, statistics.mean(exact) / 1e3
    report.add("adapt", "soak", mean, "fp32", peer, peer / mean, "ms/step", note)
