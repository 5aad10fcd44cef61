"""What a benchmark run leaves: a header about the machine, a table, and one JSON line per case."""

import json
import os
import subprocess
import sys

FOUR_BITS_AND_UP = ("fp16", "bf16", "fp8", "int8", "maxmin8", "maxmin4", "maxmin4-ef", "qsgd4", "natural4")
FEWER_BITS = ("maxmin3-ef", "terngrad", "efsign", "onebit", "signsgd", "topk", "threshold", "randomk")
AGAINST_TARGET = 0.97  # of the build before, in the best of three runs
TARGETS = {  # ratio to reach per bench and case
    "allreduce": {"4bit/1gbit/n2": 7.0, "4bit/1gbit/n4": 6.5, "4bit/10gbit/n2": 4.5, "4bit/10gbit/n4": 3.0,
                  "4bit/unshaped/n2": 3.5, "4bit/unshaped/n4": 2.8, "fp32/unshaped/n2": 1.0, "fp32/shm/n1r2": 3.0,
                  "4bit/unshaped/n2/tcp": 3.5, "fp32/unshaped/n2/tcp": 1.0,
                  "4bit/unshaped/n2/tcp-ucx": 0.97, "fp32/unshaped/n2/tcp-ucx": 0.97,
                  "4bit/10gbit/n2/bound": 0.70, "4bit/unshaped/n2/bound": 0.68, "4bit/unshaped/n4/bound": 0.62,
                  "train/1gbit/n2r2": 2.0},
    "latency": {"fp32/1KiB/n2/ompi": 0.5, "fp32/1KiB/n2/gloo": 10.0, "fp32/1KiB/n2/p99": 1.0,
                "fp32/1KiB/n2/tcp": 0.5, "fp32/1KiB/n2/tcp-ucx": 0.9},
    "overhead": {"inprocess/16MiB": 0.90, "inprocess/64MiB": 0.90, "faults/64MiB": 1.0,
                 "cpu-per-GiB/n2/gloo": 2.5, "idle": 1.0, "neighbour": 0.99,
                 "tenant/status": 0.8, "tenant/apply": 0.8, "round": 1.0, "measurement": 1.0,
                 "fair/n1r2": 0.5, "fair/n2": 0.5, "fair/n2/tcp": 0.5},
    "auto": {f"{model}/{link}/n2/{lane}{row}": target
             for model in ("resnet50", "tiny") for link in ("1gbit", "10gbit", "unshaped") for lane in ("auto", "scalar")
             for row, target in (("", 0.95), ("/bypass", 0.97), ("/settle", 1.0))}
            | {f"{model}/10gbit/n2/busy{row}": target for model in ("resnet50", "tiny")
               for row, target in (("", 0.95), ("/bypass", 0.97), ("/settle", 1.0))}
            | {f"sim/{model}/{link}/n{machines}": 0.95 for model in ("resnet50", "transformer", "tiny")
               for link in ("1gbit", "10gbit") for machines in (4, 8)},
    "adapt": {"scalar/10gbit-500mbit-10gbit/down": 0.90, "scalar/10gbit-500mbit-10gbit/up": 0.90, "hog": 1.0, "soak": 0.97,
              "soak/trials": 1.0},
    "layerwise": {"transformer": 1.25, "conv": 1.0},
    "gravac": {f"{model}/1gbit/seed{seed}": 0.9 for model in ("transformer", "conv") for seed in (1, 2)},
    "merge": {"1000x4KiB/layerwise": 3.0, "1000x4KiB/own": 0.75, "1000x4KiB/1gbit/gloo": 4.0, "1000x4KiB/10gbit/gloo": 1.5,
              **{f"{codec}/{link}/n2": 0.97 for codec in ("maxmin4", "topk", "efsign") for link in ("1gbit", "10gbit")}},
    "plan": {"161x10/cpu": 1.0, "314x10/cpu": 1.0, "beside": 0.95, "simulate-1024": 1.0},
    "device": {"bits/n1g1": 1.0, "bits/n1g4": 1.0, "bits/n2r2": 1.0, "bits/n2g2": 1.0, "bits/n2g2/racks-bf16": 1.0,
               "network/4bit/n2g2": 1.9, "network/4bit/n2g4": 3.8, "pcie/4bit/g4": 7.0, "pcie/4bit/g8": 7.0, "ways": 1.0,
               "steady": 1.0, "steady/sparse": 1.0, "steady/events": 1.0, "calls": 1.0, "lost/other-job": 0.95},
    "gpu": {"e2e/4bit/n2": 0.8},
    "model": {"median": 1.0, "p95": 1.0},
    "build": {"compile/all": 1.0, "compile/quickstart": 1.0},
    "switch": {"feedback-100M": 1.0, "every20": 0.97},
    "pooled": {"fp32/shm/n1r2/pooled": 0.9, "fp32/shm/n1r2/pooled/bound": 0.88,
               "4bit/unshaped/n2/pooled": 0.97, "latency/1KiB/pooled": 0.97},
    "codec": {"encode/maxmin4-nearest": 0.90, "encode/maxmin2-nearest": 0.85, "encode/maxmin8-nearest": 0.85,
              "encode/maxmin4-stochastic": 0.74, "decode/maxmin4": 0.95, "decode_add/maxmin4": 0.85,
              "reduce_requantize/maxmin4": 3.0, "reduce_requantize_rate/maxmin4": 1.0,
              "encode_ef/maxmin4": 0.85, "encode_ef/efsign": 0.80, "encode_ef/topk": 0.80, "encode/topk": 0.75,
              "encode/terngrad": 0.85, "encode/onebit": 0.85, "encode/efsign": 0.85, "encode/bf16": 0.80,
              "encode/fp16": 0.80, "encode/fp8": 0.80, "encode/randomk": 1.0, "avx2/maxmin4-nearest": 0.85,
              "torch/fp16": 1.1, "torch/bf16": 1.1,
              **{f"torch/{codec}": 15.0 for codec in (
                  "maxmin4", "maxmin8", "qsgd4", "int8", "terngrad", "efsign", "onebit", "natural4", "fp8", "topk",
                  "threshold", "randomk")}},
    "convergence": {f"{model}/{codec}": 1 / 1.02 if codec in FOUR_BITS_AND_UP else 1 / 1.05
                    for model in ("conv", "transformer") for codec in (*FOUR_BITS_AND_UP, *FEWER_BITS)},
    "cgxsim": {"simulate-1024": 1.0, "qnccl/median": 1.0, "espresso/gpt2/upper": 1.0,
               **{f"espresso/{model}/fp32": 1.0 for model in ("bert", "lstm", "r101")},
               "mergecomp/r50/dgc/n8/ratio": 1.0, "mergecomp/dgc/n8/layerwise": 1.0,
               "mergecomp/onebit/n8/layerwise": 1.0,
               **{f"mergecomp/{codec}/n8/merged": 1.0 for codec in ("dgc", "efsign", "onebit")},
               **{f"mergecomp/{codec}/{machines}/{cut}": 1.0 for codec in ("dgc", "efsign", "onebit")
                  for machines in ("n2", "n4") for cut in ("layerwise", "merged")},
               **{f"engines/{model}/{codec}/{link}/n{machines}": 1.0 for model in ("resnet50", "transformer", "vgg16")
                  for codec in ("fp32", "maxmin4") for link in ("1gbit", "10gbit", "25gbit") for machines in (8, 16, 32, 64)}},
}

# Where a processor's memory sets another share than the ones above, which are AMD's.
TARGETS_BY_VENDOR = {
    "GenuineIntel": {"codec": {"encode/maxmin4-nearest": 0.82, "encode/efsign": 0.82, "encode/topk": 0.72,
                               "decode_add/maxmin4": 0.90}},
}


def processor():
    """(vendor, "model name (vendor, family F model M)") as /proc/cpuinfo has them."""
    fields = {}
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        for line in file:
            key, _, value = line.partition(":")
            fields.setdefault(key.strip(), value.strip())
    vendor = fields.get("vendor_id", "unknown vendor")
    return vendor, (f"{fields.get('model name', 'unknown processor')} ({vendor}, family {fields.get('cpu family', '?')} "
                    f"model {fields.get('model', '?')})")


class Report:
    def __init__(self, json_path=None):
        self.rows, self.notes = [], []
        self.vendor, self.processor = processor()
        self._json = open(json_path, "w", encoding="utf-8") if json_path else None

    def header(self, build, congestion, wished):
        machine = json.loads(subprocess.run([os.path.join(build, "bin", "bench_machine")], check=True,
                                            capture_output=True, text=True).stdout)
        print(self.processor)
        print(f"cores {os.cpu_count()}, load {os.getloadavg()[0]:.1f}, kernel {os.uname().release}, "
              f"TCP congestion control {congestion} for everybody"
              + ("" if congestion == wished else f" ({wished} cannot be set here)"))
        print(f"spin round trip {machine['spin_round_trip_us']:.2f} us")
        for pages, rates in machine["pages"].items():
            print(f"  {pages:12}  read {rates['read_gbs']:5.1f}  non-temporal write {rates['nt_write_gbs']:5.1f}  "
                  f"two-thread read {rates['two_thread_read_gbs']:5.1f} GB/s")
        sys.stdout.flush()

    def add(self, bench, case, ours, peer_name, peer, ratio, unit, note=""):
        row = {"bench": bench, "case": case, "ours": ours, "peer_name": peer_name, "peer": peer, "ratio": ratio,
               "unit": unit}
        self.rows.append((row, note))
        target = self.target(bench, case)
        mark = "" if target is None else f"  (target {target:g}{'' if ratio >= target else ', missed'})"
        print(f"{bench + '/' + case:36} ours {ours:>10.4g} {unit:<9} {peer_name} {peer:>10.4g}  "
              f"ratio {ratio:6.2f}{mark}  {note}", flush=True)
        self._write(row)

    def target(self, bench, case):
        if bench.startswith("against-"):
            return AGAINST_TARGET
        here = TARGETS_BY_VENDOR.get(self.vendor, {}).get(bench, {})
        return here.get(case, TARGETS.get(bench, {}).get(case))

    def skip(self, bench, reason, cases=None):
        """Those of `bench` are not run here; None: all of them."""
        print(f"skipped: {bench}: {reason}", flush=True)
        self._write({"bench": bench, "skipped": reason, "cases": cases})

    def _write(self, row):
        if self._json:
            self._json.write(json.dumps(row) + "\n")
            self._json.flush()

    def note(self, text):
        print(f"  {text}", flush=True)

    def table(self):
        if not self.rows:
            return
        width = max(len(row["bench"] + row["case"]) for row, _ in self.rows) + 1
        print(f"\n{'case':{width}}  {'ours':>10}  {'peer':>10}  {'ratio':>7}  {'target':>7}  unit, peer")
        for row, _ in self.rows:
            target = self.target(row["bench"], row["case"])
            print(f"{row['bench'] + '/' + row['case']:{width}}  {row['ours']:>10.4g}  {row['peer']:>10.4g}  "
                  f"{row['ratio']:>7.2f}  {'' if target is None else f'{target:g}':>7}  {row['unit']}, "
                  f"{row['peer_name']}")
