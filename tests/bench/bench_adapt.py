"""adapt: does mode auto follow a network that changes, and stay calm beside a busy neighbour?

adapt/scalar/10gbit-500mbit-10gbit/{down,up}: after each change 50 steps pass; then the step time of the best of three
fixed policies / under mode auto. adapt/hog: 2 / plans that mode auto put in force while another process takes both
cores for 20 s. adapt/soak: step time without compression, in the best of three group sizes / under mode auto from its
first step on, trials included, where not compressing is best. adapt/soak/trials: 1 % / the share of that time that its
trials took beyond the plan that ran.
"""

import os
import statistics
import subprocess
import sys
import tempfile

from bench_auto import Job
from machines import Machines

FIXED = {"fp32": ("codec=fp32",), "8bit": ("codec=maxmin:8",), "4bit": ("codec=maxmin:4,stochastic",)}
PHASES = (("down", "500mbit"), ("up", "10gbit"))
EXACT = {f"fp32/{size}": ("codec=fp32", f"group_bytes={size}") for size in ("256KiB", "1MiB", "4MiB")}
TRIALS_SHARE = 0.01
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
            before, kept = job.plans_kept(), set()
            hogs = [subprocess.Popen([sys.executable, "-c", HOG.format(seconds)]) for _ in range(os.cpu_count())]
            calm = 0  # turns of ten steps since they have ended
            while calm < 10:
                calm += all(process.poll() is not None for process in hogs)
                job.steps(10)
                kept |= job.plans_kept()
            switches = len(kept - before)
            note = job.said()
        finally:
            job.close()
    report.add("adapt", "hog", switches, "limit", SWITCHES, SWITCHES / max(1, switches), "switches", note)


def soak(options, report):
    steps = 300 if options.quick else 2000
    with Machines(2, "unshaped") as machines, tempfile.TemporaryDirectory(prefix="cgx-bench-") as folder:
        searching, by_hand = pair(machines, folder, "scalar")
        try:
            ours, exact = [], {name: [] for name in EXACT}
            for turn in range(steps // 50):
                ours += searching.steps(50)
                name = list(EXACT)[turn % len(EXACT)]
                by_hand.apply(EXACT[name])
                exact[name] += by_hand.steps(3 + 50)[3:]
            note, trials = searching.said(), searching.job()["trial_time"]
        finally:
            searching.close()
            by_hand.close()
    mean, exact = statistics.mean(ours) / 1e3, {name: statistics.mean(each) / 1e3 for name, each in exact.items()}
    best = min(exact, key=exact.get)
    report.add("adapt", "soak", mean, best, exact[best], exact[best] / mean, "ms/step",
               ", ".join(f"{name} {value:.2f}" for name, value in exact.items()) + f"; {note}")
    share = max(float(trials["spent_ns"]) / float(trials["elapsed_ns"]), 1e-4)
    report.add("adapt", "soak/trials", 100 * share, "limit", 100 * TRIALS_SHARE, TRIALS_SHARE / share, "%", "")
