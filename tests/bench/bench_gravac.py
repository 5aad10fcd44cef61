"""gravac: how many bytes does a share that follows training need, beside the best share that is set by hand?

gravac/MODEL/1gbit/seedN: bytes that two machines send in a whole training of a model of `convergence` under the strongest of four fixed
factors whose final loss is within 1 % of fp32's / under `ceilings: gravac`, which knows none of them. A loss that is not within 1 % of
fp32's is a ratio of 0. Where no fixed factor comes that near, fp32 is the peer.
"""

import tempfile

import trained
from machines import Machines

MODELS, SEEDS = ("transformer", "conv"), (1, 2)
FIXED = (10, 32, 100, 320)
WITHIN = 1.01
BASE = {"stats_steps": 10, "replica_check_steps": 0, "min_elements": 256}
GRAVAC = {"codec": "topk:0.01,feedback", "ceilings": "gravac", "gravac_min": "10", "gravac_max": "1000"}


def run(options, report):
    if options.peers_only:
        return
    if options.quick and not options.case:
        report.skip("gravac", "takes many minutes; tests/bench/run gravac --quick --case conv/1gbit/seed1")
        return
    for model in MODELS:
        for seed in SEEDS:
            case = f"{model}/1gbit/seed{seed}"
            if options.wants(case):
                measure(case, model, seed, options, report)


def measure(case, model, seed, options, report):
    share = 0.05 if options.quick else 1.0
    contestants = {"fp32": {"codec": "fp32"},
                   **{f"1 in {factor}": {"codec": f"topk:{1 / factor:g},feedback"} for factor in FIXED}, "gravac": GRAVAC}
    results = {name: train(model, seed, policy, share) for name, policy in contestants.items()}
    enough = WITHIN * results["fp32"][0]
    ours, peers = results.pop("gravac"), {name: sent for name, (loss, sent, _) in results.items() if loss <= enough}
    best = min(peers, key=peers.get)
    ratio = peers[best] / ours[1] if ours[0] <= enough else 0.0
    said = ", ".join(f"{name} {loss:.4g} {sent / 1e6:.2f} MB" for name, (loss, sent, _) in results.items())
    report.add("gravac", case, ours[1] / 1e6, best, peers[best] / 1e6, ratio, "MB", f"loss {ours[0]:.4g}; {said}; {ours[2]}")


def train(model, seed, policy, share):
    """(loss, bytes sent, what the search said last)."""
    with Machines(2, "1gbit") as machines, tempfile.TemporaryDirectory(prefix="cgx-bench-") as folder:
        job = trained.Job(machines, folder, model, {**BASE, **policy}, seed)
        try:
            loss = job.say(f"train {share}")[0][0]
            return loss, job.bytes_sent(), job.note()
        finally:
            job.close()
