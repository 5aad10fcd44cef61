"""codec: kernels on one core against the machine's own rooflines (bin/bench_codec, codec_bench.cc), and encoders against
the same written with torch's operators (torch_codecs.py)."""

import json
import os
import subprocess

from report import TARGETS

HERE = os.path.dirname(os.path.abspath(__file__))
PYTHON = "/usr/bin/python3"
# What each of torch's encoders is compared with.
TORCH_CASES = {"maxmin4": "maxmin4-stochastic", "maxmin8": "maxmin8-nearest", "qsgd4": "qsgd4-stochastic",
               "natural4": "natural4-stochastic"}
TORCH_BYTES = 64 << 20


def run(options, report):
    if options.peers_only:
        return
    filters = [f"--{name}={value}" for name in ("isa", "size", "codec", "op") if (value := getattr(options, name))]
    command = [os.path.join(options.build, "bin", "bench_codec"), "--json", *filters]
    done = subprocess.run(command + (["--quick"] if options.quick else []), check=True, capture_output=True, text=True)
    if done.stdout.startswith("skipped: "):
        return report.skip("codec", done.stdout.strip().removeprefix("skipped: "))
    rates = {}
    for line in done.stdout.splitlines():
        if not line.startswith("{"):
            continue
        row = json.loads(line)
        rates[row["case"]] = row["ours"]
        if row["case"] in TARGETS["codec"] and options.wants(row["case"]):
            report.add("codec", row["case"], row["ours"], row["peer_name"], row["peer"], row["ratio"], row["unit"])
        elif options.wants(row["case"]):  # of interest, but not among the cases with a target
            report.note(f"{row['case']}: {row['ours']:.1f} {row['unit']}, {row['ratio']:.2f} of {row['peer_name']}")
    if any(options.wants(case) for case in TARGETS["codec"] if case.startswith("torch/")) and not filters:
        against_torch(options, report, rates)
    return None


def against_torch(options, report, rates):
    done = subprocess.run([PYTHON, os.path.join(HERE, "torch_codecs.py"), str(TORCH_BYTES), "1" if options.quick else "5"],
                          check=True, capture_output=True, text=True)
    for codec, peer in json.loads(done.stdout).items():
        ours = rates["encode/" + TORCH_CASES.get(codec, codec)]
        if options.wants(f"torch/{codec}"):
            report.add("codec", f"torch/{codec}", ours, "torch operators", peer, ours / peer, "GB/s")
