"""merge: is a plan whose groups are searched on real steps as good as the best size of groups set by hand?

merge/CODEC/LINK/n2: step time of ResNet-50's 161 tensors with their gaps, trainers asleep (model_rank.py): the best of six sizes of
groups / under `mode: merge`, which begins with the default size.
merge/1000x4KiB: a step of 1,000 tensors of 4 KiB under the default policy, against each in an operation of its own
(/layerwise), one tensor as large as all of them (/own), and gloo's allreduce of one such buffer (/1gbit/gloo, /10gbit/gloo).
"""

import os
import statistics
import tempfile

import ours
from bench_auto import Job
from contestants import Gloo
from machines import Machines
from rounds import interleave

CODECS = {"maxmin4": "maxmin:4,stochastic", "topk": "topk:0.01,feedback", "efsign": "efsign,feedback"}
LINKS = ("1gbit", "10gbit")
SIZES = {"layer-wise": "4KiB", "256 KiB": "256KiB", "1 MiB": "1MiB", "4 MiB": "4MiB", "16 MiB": "16MiB", "one group": "1GiB"}
WATCHED_STEPS = 400
PIECES, PIECE_BYTES = 1000, 4096


def run(options, report):
    if options.peers_only:
        return
    many_small(options, report)
    cases = {f"{codec}/{link}/n2": (codec, link) for codec in CODECS for link in LINKS}
    if options.quick and not options.case:
        report.skip("merge", "but for many small tensors: takes many minutes; tests/bench/run merge --quick --case maxmin4/1gbit",
                    list(cases))
        return
    for case, (codec, link) in cases.items():
        if options.wants(case):
            measure(case, codec, link, options, report)


def measure(case, codec, link, options, report):
    rounds, steps, watched = (1, 5, 120) if options.quick else (3, 10, WATCHED_STEPS)
    with Machines(2, link) as machines, tempfile.TemporaryDirectory(prefix="cgx-bench-") as folder:
        searching = Job(machines, os.path.join(folder, "merge"), "resnet50", "auto", {"mode": "merge", "codec": CODECS[codec]}, 0)
        by_hand = Job(machines, os.path.join(folder, "fixed"), "resnet50", "auto", {"codec": CODECS[codec]}, 4)
        try:
            settled = searching.settle(watched)
            times = {name: [] for name in (*SIZES, "merge")}
            for _ in range(rounds):
                for name, size in SIZES.items():
                    by_hand.apply((f"group_bytes={size}",))
                    times[name].append(by_hand.steps(3 + steps)[3:])
                times["merge"].append(searching.steps(3 + steps)[3:])
            groups = len(searching.job().get("groups", []))
        finally:
            searching.close()
            by_hand.close()
    medians = {name: statistics.median(map(statistics.median, each)) / 1e3 for name, each in times.items()}
    ours = medians.pop("merge")
    best = min(medians, key=medians.get)
    others = ", ".join(f"{name} {value:.1f}" for name, value in medians.items())
    report.add("merge", case, ours, best, medians[best], medians[best] / ours, "ms/step",
               f"{groups} groups, settled at step {settled}; {others}")


def many_small(options, report):
    name = f"{PIECES}x{PIECE_BYTES // 1024}KiB"
    for link in LINKS:
        rows = {f"{name}/{link}/gloo": "gloo"}
        if link == "10gbit":
            rows |= {f"{name}/layerwise": "layerwise", f"{name}/own": "own"}
        rows = {case: peer for case, peer in rows.items() if options.wants(case)}
        if rows:
            against_peers(rows, link, options, report)


def against_peers(rows, link, options, report):
    size = PIECES * PIECE_BYTES
    ways = {"layerwise": (PIECES, {"group_bytes": "4KiB"}), "own": (1, ours.DEFAULT)}
    with Machines(2, link) as machines:
        machines.build = options.build
        contestants = []
        try:
            contestants.append(ours.CgxdPieces(machines, "ours", PIECES, ours.DEFAULT, 0, 4 * size))
            for number, peer in enumerate(rows.values()):
                if peer == "gloo":
                    contestants.append(Gloo(machines, 1, size))
                else:
                    pieces, policy = ways[peer]
                    contestants.append(ours.CgxdPieces(machines, peer, pieces, policy, 2 * number + 2, 4 * size))
            results = interleave(contestants, size, 2 if options.quick else 7, 10 if options.quick else 30)
        finally:
            for contestant in contestants:
                contestant.close()
    mine = results["ours"]["us"] / 1e3
    for case, peer in rows.items():
        theirs = results[peer]["us"] / 1e3
        report.add("merge", case, mine, peer, theirs, theirs / mine, "ms/step")
