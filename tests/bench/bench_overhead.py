"""overhead: what the daemon adds to the same work in one process, copies, page faults, CPU, idling, neighbours, tenants, shares.

overhead/measurement: 1.005 / (a 1 MiB step / the same without what recording and measuring take of it). Steps with and
without a recorder differ by more than that from round to round, so it is counted: the events of a step, times the
processor time of one (measure_bench.cc), as if all of it made the step longer. The note has what rounds with and
without a recorder (recorder.events: 0) say.
"""

import contextlib
import json
import os
import signal
import statistics
import subprocess
import time

import bench_fair
import bench_tenant
import ours
from contestants import Gloo
from machines import Machines
from rounds import interleave

BYTES = 64 << 20
IDLE_TARGET = 0.005  # of one core
MEASURED_BYTES, MEASURED_MOST = 1 << 20, 1.005  # times the step without


def run(options, report):
    for size in (16 << 20, 64 << 20):
        case = f"inprocess/{size >> 20}MiB"
        if options.wants(case) and not options.peers_only:
            run_inprocess(case, size, options, report)
    if options.wants("faults/64MiB") or options.wants("cpu-per-GiB/n2/gloo"):
        run_faults_and_cpu(options, report)
    if options.wants("measurement") and not options.peers_only:
        run_measurement(options, report)
    bench_tenant.run(options, report)
    bench_fair.run(options, report)
    if (options.wants("idle") or options.wants("neighbour")) and not options.peers_only:
        run_idle_and_neighbour(options, report)


def run_inprocess(case, size, options, report):
    rounds, repetitions = (2, 3) if options.quick else (9, 9 if size >= 64 << 20 else 25)
    with Machines(2) as machines:
        machines.build = options.build
        with contextlib.closing(ours.Cgxd(machines, 1, 2 * size)) as daemons, \
             contextlib.closing(ours.InProcess(machines, 2 * size)) as own:
            results = interleave([daemons, own], size, rounds, repetitions)
            machines.shape("1gbit")
            overlap = own.overlap(size)
    report.note(f"{case}: at 1 Gbit/s {100 * overlap:.0f} % of frames were handed over before the one before them had "
                "arrived")
    mine, peer = results["cgxd"]["us"] / 1000, results["inprocess"]["us"] / 1000
    report.add("overhead", case, mine, "inprocess", peer, peer / mine, "ms")


def run_faults_and_cpu(options, report):
    rounds, repetitions = (2, 3) if options.quick else (7, 7)
    with Machines(2) as machines:
        machines.build = options.build
        contestants = [] if options.peers_only else [ours.Cgxd(machines, 1, 2 * BYTES)]
        try:
            contestants.append(Gloo(machines, 1, BYTES))
            interleave(contestants, BYTES, 1, 2)  # the first operations fault their memory in
            before = None if options.peers_only else contestants[0].daemons[0].counters()
            results = interleave(contestants, BYTES, rounds, repetitions)
            after = None if options.peers_only else contestants[0].daemons[0].counters()
        finally:
            for contestant in contestants:
                contestant.close()
    gloo = results["gloo"]["cpu_s_per_gib"]
    if options.peers_only:
        report.note(f"gloo {gloo:.2f} CPU seconds per GiB per rank")
        return
    mine = results["cgxd"]
    operations = mine["operations"]
    faults = mine["daemon_faults"] / (operations / rounds)
    copied = (after["copied_bytes"] - before["copied_bytes"]) / operations
    held = (after["held_bytes"] - before["held_bytes"]) / operations
    report.add("overhead", "faults/64MiB", faults, "limit", 0, 1 if faults < 1 and copied == 0 else 0, "faults/op",
               f"{copied:.0f} bytes copied, {held:.0f} bytes held per operation")
    report.add("overhead", "cpu-per-GiB/n2/gloo", mine["cpu_s_per_gib"], "gloo", gloo, gloo / mine["cpu_s_per_gib"],
               "cpu-s/GiB")


def events_recorded(daemon):
    """How many there ever were."""
    return int(daemon.control_tool("events", "-n", "1")["next"])


def run_measurement(options, report):
    rounds, repetitions = (2, 50) if options.quick else (15, 400)
    program = [os.path.join(options.build, "bin", "bench_measure"), "3" if options.quick else "9"]
    event_ns = json.loads(subprocess.run(program, check=True, capture_output=True, text=True).stdout)["ns_per_event"]
    with Machines(2) as machines:
        machines.build = options.build
        with contextlib.closing(ours.Cgxd(machines, 1, 2 * MEASURED_BYTES)) as recorded, \
             contextlib.closing(ours.CgxdUnrecorded(machines, 2 * MEASURED_BYTES)) as unrecorded:
            before = events_recorded(recorded.daemons[0])
            recorded.measure(MEASURED_BYTES, repetitions, 0)
            events = (events_recorded(recorded.daemons[0]) - before) / repetitions
            results = interleave([recorded, unrecorded], MEASURED_BYTES, rounds, repetitions)
    step_us, cost_us = results["cgxd"]["us"], events * event_ns / 1e3
    pairs = zip(results["cgxd"]["rounds_us"], results["unrecorded"]["rounds_us"])
    live = statistics.median(with_it / without for with_it, without in pairs)
    times = step_us / (step_us - cost_us)
    report.add("overhead", "measurement", times, "limit", MEASURED_MOST, MEASURED_MOST / times, "x",
               f"{events:.0f} events of {event_ns:.0f} ns in {step_us:.0f} us; {live:.3f} with a recorder / without")


def spin_rate(seconds):
    """Iterations per second of a compute-bound loop in this process."""
    count, end = 0, time.perf_counter() + seconds
    while time.perf_counter() < end:
        sum(range(200))
        count += 1
    return count / seconds


def run_idle_and_neighbour(options, report):
    seconds, rounds = (2.0, 3) if options.quick else (10.0, 15)
    with Machines(2) as machines:
        machines.build = options.build
        contestant = ours.Cgxd(machines, 1, 1 << 20)
        try:
            contestant.measure(1 << 16, 5)  # sessions open, links up, then nothing to do
            daemon = contestant.daemons[0]
            before = daemon.cpu_seconds()
            time.sleep(seconds)
            used = (daemon.cpu_seconds() - before) / seconds
            report.add("overhead", "idle", 100 * used, "limit", 100 * IDLE_TARGET, IDLE_TARGET / max(used, 1e-6),
                       "% of a core")
            run_neighbour(contestant, rounds, report)
        finally:
            contestant.close()


def run_neighbour(contestant, rounds, report):
    """The same loop beside idle daemons and beside stopped ones (for less than peers tolerate)."""
    os.sched_setaffinity(0, {0})
    beside, alone = [], []
    try:
        for _ in range(rounds):
            beside.append(spin_rate(0.4))
            for daemon in contestant.daemons:
                daemon.process.send_signal(signal.SIGSTOP)
            alone.append(spin_rate(0.4))
            for daemon in contestant.daemons:
                daemon.process.send_signal(signal.SIGCONT)
    finally:
        os.sched_setaffinity(0, range(os.cpu_count()))
    ratio = statistics.median(b / a for b, a in zip(beside, alone))
    report.add("overhead", "neighbour", statistics.median(beside), "daemons stopped", statistics.median(alone), ratio,
               "loops/s")
