"""latency: 1 KiB, two machines with one rank each (four processes of ours on two cores), default waiting.

Each machine has a core of its own, for everybody: else the figure is where the scheduler happened to put whom, since
waking another (virtual) core takes longer than the whole operation.
"""

import ours
from contestants import Gloo, OpenMpi
from machines import Machines
from rounds import interleave, percentile

BYTES = 1024
P99_TARGET_US = 200.0
CASES = ("fp32/1KiB/n2/ompi", "fp32/1KiB/n2/gloo", "fp32/1KiB/n2/p99", "fp32/1KiB/n2/tcp",
         "fp32/1KiB/n2/tcp-ucx")


def run(options, report):
    if not any(options.wants(case) for case in CASES):
        return
    rounds, repetitions = (2, 100) if options.quick else (9, 500)
    with Machines(2, one_core_each=True) as machines:
        machines.build = options.build
        contestants = [] if options.peers_only else [cls(machines, 1, 1 << 20, ours.FP32)
                                                        for cls in (ours.Cgxd, ours.CgxdTcp)]
        try:
            contestants += [OpenMpi(machines, 1, BYTES), Gloo(machines, 1, BYTES)]
            results = interleave(contestants, BYTES, rounds, repetitions, warmup=20)
        finally:
            for contestant in contestants:
                contestant.close()
    if options.peers_only:
        report.note(", ".join(f"{name} {result['us']:.1f} us" for name, result in results.items()))
        return
    mine = results["cgxd"]
    for case, peer in (("fp32/1KiB/n2/ompi", "openmpi"), ("fp32/1KiB/n2/gloo", "gloo")):
        report.add("latency", case, mine["us"], peer, results[peer]["us"], results[peer]["us"] / mine["us"], "us")
    tcp = results["cgxd-tcp"]
    for case, peer in (("fp32/1KiB/n2/tcp", "openmpi"), ("fp32/1KiB/n2/tcp-ucx", "cgxd")):
        report.add("latency", case, tcp["us"], peer, results[peer]["us"], results[peer]["us"] / tcp["us"], "us")
    p99 = percentile(mine["all_us"], 0.99)
    report.add("latency", "fp32/1KiB/n2/p99", p99, "limit", P99_TARGET_US, P99_TARGET_US / p99, "us")
