"""plan: what thinking about plans costs.

plan/TENSORSx10/cpu: 100 ms / processor time of a full search, ten options a tensor (plan_bench.cc).
plan/beside: p99 of a job's steps / the same while searches run on the daemon that coordinates it.
plan/simulate-1024: 60 s / time until `cgxctl plan simulate --machines 1024` has answered about a running job.
"""

import json
import os
import subprocess
import tempfile
import threading
import time

from bench_auto import Job
from machines import Machines

CPU_LIMIT_MS, SIMULATE_LIMIT_S = 100.0, 60.0


def run(options, report):
    if options.peers_only:
        return
    if options.wants("cpu"):
        cpu(options, report)
    if options.wants("beside") or options.wants("simulate-1024"):
        live(options, report)


def cpu(options, report):
    program = os.path.join(options.build, "bin", "bench_plan")
    done = subprocess.run([program, "3" if options.quick else "9"], check=True, capture_output=True, text=True)
    for row in map(json.loads, done.stdout.splitlines()):
        case = f"{row['tensors']}x{row['options']}/cpu"
        if options.wants(case):
            report.add("plan", case, row["cpu_ms"], "limit", CPU_LIMIT_MS, CPU_LIMIT_MS / row["cpu_ms"], "ms")


class Searches(threading.Thread):
    """Asks for one search after the other, as an operator would."""

    def __init__(self, job):
        super().__init__(daemon=True)
        self._job, self._ends, self.count = job, threading.Event(), 0

    def run(self):
        while not self._ends.is_set():
            self._job.daemons[0].control_tool("plan", "simulate", "--set", "mode=auto")
            self.count += 1

    def end(self):
        self._ends.set()


def live(options, report):
    rounds, steps = (1, 40) if options.quick else (5, 100)
    with Machines(2, "10gbit") as machines, tempfile.TemporaryDirectory(prefix="cgx-bench-") as folder:
        job = Job(machines, os.path.join(folder, "job"), "resnet50", "auto", {}, 0)
        try:
            job.steps(10)
            if options.wants("simulate-1024"):
                simulate(job, report)
            if options.wants("beside"):
                beside(job, (rounds, steps), report)
        finally:
            job.close()


def beside(job, extent, report):
    rounds, steps = extent
    alone, with_searches, count = [], [], 0
    for _ in range(rounds):
        alone += job.steps(steps)
        searches = Searches(job)
        searches.start()
        with_searches += job.steps(steps)
        searches.end()
        job.steps(20)  # the last one waits for some
        searches.join(30)
        count += searches.count
    peer, ours = p99(alone) / 1e3, p99(with_searches) / 1e3
    report.add("plan", "beside", ours, "alone", peer, peer / ours, "ms, p99", f"{count} searches in {rounds * steps} steps")


def simulate(job, report):
    answer, start = {}, time.monotonic()
    asking = threading.Thread(target=lambda: answer.update(
        job.daemons[0].control_tool("plan", "simulate", "--machines", "1024", "--set", "mode=auto")))
    asking.start()
    while asking.is_alive():
        job.steps(5)
    took = time.monotonic() - start
    report.add("plan", "simulate-1024", took, "limit", SIMULATE_LIMIT_S, SIMULATE_LIMIT_S / took, "s",
               f"{answer['plan']}: {int(answer['step_ns']) / 1e6:.1f} ms a step, {int(answer['measured_ns']) / 1e6:.1f} as it runs")


def p99(values):
    return sorted(values)[int(0.99 * (len(values) - 1))]
