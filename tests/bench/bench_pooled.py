"""pooled: a daemon that computes on two threads beside one that computes on one, in the same run.

fp32/shm/n1r2/pooled is a share: how much faster, over what two threads of this machine read more than one.
"""

import json
import os
import subprocess
from dataclasses import dataclass

import bounds
import daemons
import ours
from machines import Machines
from rounds import interleave

THREADS = 2


@dataclass
class Case:
    name: str
    machines: int
    ranks_per_machine: int
    policy: dict
    size: int
    repetitions: int
    share: bool = False  # of two threads' reading


CASES = [
    Case("fp32/shm/n1r2/pooled", 1, 2, ours.FP32, 64 << 20, 9, share=True),
    Case("4bit/unshaped/n2/pooled", 2, 1, ours.DEFAULT, 64 << 20, 9),
    Case("latency/1KiB/pooled", 2, 1, ours.FP32, 1024, 300),
]


class Pooled(ours.Cgxd):
    name = "pooled"
    port = daemons.MESH_PORT + 3

    def __init__(self, machines, ranks_per_machine, bytes_max, policy):
        super().__init__(machines, ranks_per_machine, bytes_max, policy, {"arithmetic": {"threads": THREADS}})


def two_threads_read(build):
    machine = json.loads(subprocess.run([os.path.join(build, "bin", "bench_machine")], check=True, capture_output=True,
                                        text=True).stdout)
    rates = machine["pages"]["memfd"]
    return rates["two_thread_read_gbs"] / rates["read_gbs"]


def calibration_of(case, options):
    """Where the case is a share: of what so many threads can do at most, too."""
    return bounds.Calibration(options.build, case.size, cores=THREADS) if case.share else None


def run(options, report):
    for case in CASES:
        if not options.wants(case.name):
            continue
        rounds, repetitions = (2, max(2, case.repetitions // 10)) if options.quick else (7, case.repetitions)
        calibration = calibration_of(case, options)
        with Machines(case.machines) as machines:
            machines.build = options.build
            contestants = []
            try:
                for contestant in (ours.Cgxd, Pooled):
                    contestants.append(contestant(machines, case.ranks_per_machine, 2 * case.size, case.policy))
                results = interleave(contestants, case.size, rounds, repetitions, calibration=calibration)
            finally:
                for contestant in contestants:
                    contestant.close()
        mine, inline = results["pooled"]["us"], results["cgxd"]["us"]
        note, ratio = "", inline / mine
        if case.share:
            most = two_threads_read(options.build)
            note = f"{ratio:.2f} times as fast; two threads read {most:.2f} times as fast as one"
            ratio /= most
        report.add("pooled", case.name, mine, "inline", inline, ratio, "us", note)
        if calibration:
            bounds.add_share(report, "pooled", case.name, results["pooled"],
                             [bounds.local_ms(rates, case.size, case.ranks_per_machine, THREADS)
                              for rates in calibration.rates])
