"""Today's build against another revision's, on the same machines in turns: is any case slower than before?

Each case runs RUNS times, and its ratio is that of its best run: a case is slower when it is slower in all of them.
"""

import json
import os
import statistics
import subprocess

import bench_allreduce
import ours
from daemons import MESH_PORT
from machines import Machines
from rounds import interleave, percentile

RUNS = 3
BEFORE = "before"


def run(name, options, report):
    options.against = os.path.abspath(options.against)
    if not os.path.exists(os.path.join(options.against, "bin", "cgxd")):
        raise SystemExit(f"--against {options.against}: no bin/cgxd there; give the build folder of the other revision, "
                         "e.g. ../before/build/release")
    cases = {"allreduce": allreduce, "latency": latency, "overhead": overhead, "codec": codec}.get(name)
    if cases is None:
        return report.note(f"{name}: trains, which says nothing about two builds; left out")
    return cases(options, report)


class Before(ours.Cgxd):
    name = BEFORE
    port = MESH_PORT + 1  # beside today's


def contest(options, size, rounds, repetitions, machines, ranks_per_machine=1, policy=None, link="unshaped",
            one_core_each=False):
    """[{"cgxd": ..., "before": ...}] as interleave() gives them, one per run."""
    runs = []
    for _ in range(RUNS):
        with Machines(machines, shape=link, one_core_each=one_core_each) as these:
            these.build = options.build
            contestants = []
            try:
                contestants.append(ours.Cgxd(these, ranks_per_machine, 2 * size, policy))
                contestants.append(Before(these, ranks_per_machine, 2 * size, policy, build=options.against))
                warmup = 20 if size < 1 << 20 else 2
                runs.append(interleave(contestants, size, rounds, repetitions, warmup))
            finally:
                for contestant in contestants:
                    contestant.close()
    return runs


def say(report, bench, case, pairs, unit, bigger_is_better=False):
    """`pairs`: (today's figure, the other's) per run."""
    ratios = [(mine / other if bigger_is_better else other / mine) for mine, other in pairs]
    best = max(range(len(ratios)), key=ratios.__getitem__)
    report.add(f"against-{bench}", case, pairs[best][0], BEFORE, pairs[best][1], ratios[best], unit,
               "runs " + " ".join(f"{ratio:.3f}" for ratio in ratios))


def allreduce(options, report):
    for case in bench_allreduce.CASES:
        if not options.wants(case.name):
            continue
        runs = contest(options, bench_allreduce.BYTES, 2 if options.quick else 5,
                       2 if options.quick else case.repetitions, case.machines, case.ranks_per_machine, case.policy,
                       case.link)
        say(report, "allreduce", case.name, [(r["cgxd"]["us"] / 1e3, r[BEFORE]["us"] / 1e3) for r in runs], "ms")


def latency(options, report):
    rounds, repetitions = (2, 100) if options.quick else (9, 500)
    for case, machines, ranks in (("fp32/1KiB/n2", 2, 1), ("fp32/1KiB/n1r2", 1, 2)):
        if not (options.wants(f"{case}/p50") or options.wants(f"{case}/p99")):
            continue
        runs = contest(options, 1024, rounds, repetitions, machines, ranks, ours.FP32, one_core_each=machines > 1)
        say(report, "latency", f"{case}/p50", [(r["cgxd"]["us"], r[BEFORE]["us"]) for r in runs], "us")
        say(report, "latency", f"{case}/p99",
            [tuple(percentile(r[name]["all_us"], 0.99) for name in ("cgxd", BEFORE)) for r in runs], "us")


def overhead(options, report):
    for size in (16 << 20, 64 << 20):
        time_case, cpu_case = f"step/{size >> 20}MiB", f"cpu-per-GiB/{size >> 20}MiB"
        if not (options.wants(time_case) or options.wants(cpu_case)):
            continue
        rounds, repetitions = (2, 3) if options.quick else (7, 9)
        runs = contest(options, size, rounds, repetitions, 2)
        say(report, "overhead", time_case, [(r["cgxd"]["us"] / 1e3, r[BEFORE]["us"] / 1e3) for r in runs], "ms")
        say(report, "overhead", cpu_case, [(r["cgxd"]["cpu_s_per_gib"], r[BEFORE]["cpu_s_per_gib"]) for r in runs],
            "cpu-s/GiB")


def codec(options, report):
    """bench_codec of both builds in turns; a case of one run is the median of its turns."""
    turns = 1 if options.quick else 3
    arguments = ["--json"] + (["--quick"] if options.quick else [])
    arguments += [f"--{name}={value}" for name in ("isa", "size", "codec", "op") if (value := getattr(options, name))]
    pairs = {}
    for _ in range(RUNS):
        rates = {"cgxd": {}, BEFORE: {}}
        for _ in range(turns):
            for name, build in (("cgxd", options.build), (BEFORE, options.against)):
                for case, rate, unit in codec_rates(os.path.join(build, "bin", "bench_codec"), arguments):
                    rates[name].setdefault((case, unit), []).append(rate)
        for key in rates["cgxd"].keys() & rates[BEFORE].keys():
            pairs.setdefault(key, []).append(tuple(statistics.median(rates[n][key]) for n in ("cgxd", BEFORE)))
    for (case, unit), figures in sorted(pairs.items()):
        if options.wants(case):
            say(report, "codec", case, figures, unit, bigger_is_better=True)


def codec_rates(program, arguments):
    done = subprocess.run([program, *arguments], check=True, capture_output=True, text=True)
    for line in filter(lambda text: text.startswith("{"), done.stdout.splitlines()):
        row = json.loads(line)
        yield row["case"], row["ours"], row["unit"]
