"""overhead/fair: a small job's steps beside another's of 64 MiB that never pause, through the same daemons.

The fair share is half of what the small job has alone, both jobs having the same weight: twice its time. One daemon has a
core of its own; with two machines each has one, as in `latency`. Else the figures would be the system's scheduler's.
"""

import contextlib
import os
import threading

import ours
from machines import Machines
from rounds import percentile

SMALL, LARGE = 1 << 20, 64 << 20
LARGE_STEPS = 4  # per command
CASES = {"fair/n1r2": (1, 2, "ucx"), "fair/n2": (2, 1, "ucx"), "fair/n2/tcp": (2, 1, "tcp")}  # machines, ranks on each


def run(options, report):
    for case, setting in CASES.items():
        if options.wants(case) and not options.peers_only:
            run_case(case, *setting, options, report)


def run_case(case, machine_count, ranks, transport, options, report):
    rounds, repetitions = (3, 100) if options.quick else (9, 300)
    alone, beside, steps = [], [], 0
    with Machines(machine_count, one_core_each=machine_count > 1) as machines, contextlib.ExitStack() as open_jobs:
        machines.build = options.build
        small = ours.Cgxd(machines, ranks, 2 * SMALL, ours.FP32, {"transport": {"name": transport}})
        open_jobs.callback(small.close)
        large = SameDaemons(small, 2 * LARGE)
        open_jobs.callback(large.close)
        if machine_count == 1:
            give_own_core(small.daemons[0], (*small.processes, *large.processes))
        large.measure(LARGE, LARGE_STEPS)  # joined, its memory touched
        for _ in range(rounds):
            alone += small.measure(SMALL, repetitions, warmup=20)["us"]
            with never_pausing(large) as made:
                beside += small.measure(SMALL, repetitions, warmup=20)["us"]
            steps += len(made)
    measured, fair = percentile(sorted(beside), 0.99), 2 * percentile(sorted(alone), 0.99)
    middle = [percentile(sorted(times), 0.5) for times in (alone, beside)]
    report.add("overhead", case, measured, "half of the daemon", fair, fair / measured, "us p99",
               f"p50 {middle[0]:.0f} alone, {middle[1]:.0f} beside {steps} large steps")


def give_own_core(daemon, ranks):
    for process, core in ((daemon.process, 0), *((rank, 1) for rank in ranks)):
        for thread in os.listdir(f"/proc/{process.pid}/task"):
            os.sched_setaffinity(int(thread), {core})


class SameDaemons(ours.Cgxd):
    """Another job on the daemons that a contestant has started, in the default policy of that."""

    name = "neighbour"

    def __init__(self, other, bytes_max):
        self.other = other
        super().__init__(other.machines, other.ranks_per_machine, bytes_max, other.policy)

    def start(self):
        self.start_ranks(self.other.daemons, job="neighbour")


@contextlib.contextmanager
def never_pausing(large):
    """Yields the times of its steps, which are made as long as what is inside runs."""
    stopped, made, failed = threading.Event(), [], []

    def work():
        try:
            while not stopped.is_set():
                made.extend(large.measure(LARGE, LARGE_STEPS, warmup=1)["us"])
        except Exception as error:  # pylint: disable=broad-except  the measuring thread raises it
            failed.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield made
    finally:
        stopped.set()
        thread.join()
    if failed:
        raise failed[0]
