"""The least time in which this machine could do an allreduce, from what its cores do in the same round.

Passes over memory that no implementation can leave out, at the rates of bench_calibration (calibration.cc), and the
kernel's part of moving the frames; the wire, where that takes longer. A share of it can be compared between machines
and between fast and slow minutes; a ratio to a peer cannot.
"""

import json
import os
import statistics
import subprocess

ENCODED_SHARE = {"4bit": (4 + 64 / 512) / 32}  # codes, and 8 bytes of metadata per bucket
LINK_BITS_PER_S = {"1gbit": 1e9, "10gbit": 10e9, "unshaped": float("inf")}


class Calibration:
    """The machine's rates, one sample per round."""

    def __init__(self, build, size, cores):
        self._command = [os.path.join(build, "bin", "bench_calibration"), str(size), str(cores)]
        self.rates = []

    def sample(self):
        done = subprocess.run(self._command, check=True, capture_output=True, text=True)
        self.rates.append(json.loads(done.stdout))


def exchange_ms(rates, size, machines, cores, link, codec="4bit"):
    """Scatter, reduce, allgather between machines that share these cores: each machine reads what it encodes for the
    others, changes its own part in place, and writes what it decodes, whose lines a plain store reads first."""
    others = (machines - 1) / machines * size
    memory_s = others / rates["read_gbs"] + (size / machines + others) / rates["in_place_gbs"]
    frames = 2 * others * ENCODED_SHARE[codec]
    kernel_ms = rates["tcp_ms_per_mib"] * frames / (1 << 20)
    turns = max(1.0, machines / cores)
    return max(turns * (1e-6 * memory_s + kernel_ms), 8e3 * frames / LINK_BITS_PER_S[link])


def local_ms(rates, size, ranks, threads):
    """Every rank's array changed in place, by so many threads at once."""
    return 1e-6 * ranks * size / (threads * rates["in_place_gbs"])


def add_share(report, bench, case, result, bounds_ms):
    """A row for `case`: the bound over what was measured, the median over rounds."""
    shares = [bound / (us / 1000) for bound, us in zip(bounds_ms, result["rounds_us"])]
    middle = statistics.median(bounds_ms)
    report.add(bench, case + "/bound", result["us"] / 1000, "bound", middle, statistics.median(shares), "ms",
               f"{min(shares):.2f} to {max(shares):.2f} by round")
