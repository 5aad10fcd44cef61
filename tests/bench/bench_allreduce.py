"""allreduce: 64 MiB of fp32 over links of several speeds, and inside one machine, against gloo and Open MPI.

CASE/tcp says beside its row, which is of `seal: link`, what the other seals take and what they cost.
"""

import os
from dataclasses import dataclass

import bench_train
import bounds
import ours
from contestants import Gloo, OpenMpi
from machines import Machines
from rounds import better_of, interleave

BYTES = 64 << 20
PEERS = {"gloo": Gloo, "openmpi": OpenMpi}


@dataclass
class Case:
    name: str
    link: str
    machines: int
    ranks_per_machine: int
    policy: dict
    peers: tuple
    repetitions: int
    bound: bool = False  # CASE/bound, too: how much of what this machine can do at most
    tcp: bool = False  # over the tcp transport, too: CASE/tcp, and CASE/tcp-ucx against UCX


CASES = [
    Case("4bit/1gbit/n2", "1gbit", 2, 1, ours.DEFAULT, ("gloo",), 3),
    Case("4bit/1gbit/n4", "1gbit", 4, 1, ours.DEFAULT, ("gloo",), 3),
    Case("4bit/10gbit/n2", "10gbit", 2, 1, ours.DEFAULT, ("gloo",), 7, bound=True),
    Case("4bit/10gbit/n4", "10gbit", 4, 1, ours.DEFAULT, ("gloo",), 5),
    Case("4bit/unshaped/n2", "unshaped", 2, 1, ours.DEFAULT, ("gloo", "openmpi"), 9, bound=True, tcp=True),
    Case("4bit/unshaped/n4", "unshaped", 4, 1, ours.DEFAULT, ("gloo", "openmpi"), 5, bound=True),
    Case("fp32/unshaped/n2", "unshaped", 2, 1, ours.FP32, ("gloo", "openmpi"), 9, tcp=True),
    Case("fp32/shm/n1r2", "unshaped", 1, 2, ours.FP32, ("openmpi",), 9),
]


def run(options, report):
    for case in CASES:
        if options.wants(case.name) or case.tcp and options.wants(case.name + "/tcp"):
            run_case(case, options, report)
    bench_train.run(options, report)


def run_case(case, options, report):
    rounds = 2 if options.quick else 7
    with Machines(case.machines, shape=case.link) as machines:
        machines.build = options.build
        if case.link != "unshaped" and not machines.isolated:
            report.note(f"{case.name}: not root, so the link is not shaped: this says nothing about {case.link}")
        contestants = []
        try:
            if not options.peers_only:
                contestants.append(ours.Cgxd(machines, case.ranks_per_machine, 2 * BYTES, case.policy))
                if case.tcp:
                    contestants += [ours.CgxdTcp(machines, case.ranks_per_machine, 2 * BYTES, case.policy, seal)
                                    for seal in ours.CgxdTcp.NAMES]
            contestants += [PEERS[name](machines, case.ranks_per_machine, BYTES) for name in case.peers]
            before = wire(machines, contestants)
            calibration = calibration_of(case, options)
            results = interleave(contestants, BYTES, rounds, 2 if options.quick else case.repetitions,
                                 calibration=calibration)
            check_wire(before, wire(machines, contestants), case, report)
        finally:
            for contestant in contestants:
                contestant.close()
    peer_name, peer = better_of(results, case.peers)
    others = ", ".join(f"{n} {results[n]['us'] / 1000:.1f} ms" for n in case.peers if n != peer_name)
    if options.peers_only:
        report.note(f"{case.name}: {peer_name} {peer['us'] / 1000:.1f} ms {others}")
        return
    mine = results["cgxd"]
    report.add("allreduce", case.name, mine["us"] / 1000, peer_name, peer["us"] / 1000, peer["us"] / mine["us"], "ms",
               others)
    if calibration:
        report_share(case, mine, calibration, report)
    if case.tcp:
        report_tcp(case, results, peer_name, report)


def calibration_of(case, options):
    if not case.bound or options.peers_only:
        return None
    return bounds.Calibration(options.build, BYTES, cores=min(case.machines, os.cpu_count()))


def report_share(case, mine, calibration, report):
    bounds.add_share(report, "allreduce", case.name, mine,
                     [bounds.exchange_ms(rates, BYTES, case.machines, os.cpu_count(), case.link)
                      for rates in calibration.rates])


def report_tcp(case, results, peer_name, report):
    mine, ucx, peer = results["cgxd-tcp"], results["cgxd"], results[peer_name]
    sealed = [f"{seal} {results[name]['us'] / 1000:.1f} ms, {results[name]['cpu_s_per_gib']:.3f} s/GiB"
              for seal, name in ours.CgxdTcp.NAMES.items()]
    report.add("allreduce", case.name + "/tcp", mine["us"] / 1000, peer_name, peer["us"] / 1000,
               peer["us"] / mine["us"], "ms", "seals: " + "; ".join(sealed))
    report.add("allreduce", case.name + "/tcp-ucx", mine["us"] / 1000, "ucx", ucx["us"] / 1000,
               ucx["us"] / mine["us"], "ms",
               f"CPU {mine['cpu_s_per_gib']:.3f} against {ucx['cpu_s_per_gib']:.3f} s/GiB")


def wire(machines, contestants):
    """Bytes that left machine 0, and the frames' bytes its daemon says it sent."""
    counters = machines[0].counters()
    ours_sent = [c.daemons[0].counters()["encoded_bytes_sent"] for c in contestants if hasattr(c, "daemons")]
    return counters and counters["tx"], sum(ours_sent) if ours_sent else None


def check_wire(before, after, case, report):
    """The interface must have carried at least what the daemon sent: nothing took a way around the link."""
    if None in (*before, *after) or case.machines == 1:
        return
    interface, frames = after[0] - before[0], after[1] - before[1]
    if interface < frames:
        raise RuntimeError(f"{case.name}: the daemon sent {frames} bytes of frames, but only {interface} crossed the "
                           "link: something went around it")
    report.note(f"{case.name}: {frames / 1e6:.0f} MB of frames among {interface / 1e6:.0f} MB on the interface")
