"""codec: kernels on one core against the machine's own rooflines, measured by bin/bench_codec (codec_bench.cc)."""

import json
import os
import subprocess

from report import TARGETS


def run(options, report):
    if options.peers_only:
        return
    command = [os.path.join(options.build, "bin", "bench_codec"), "--json"] + (["--quick"] if options.quick else [])
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    for line in done.stdout.splitlines():
        if line.startswith("{"):
            row = json.loads(line)
            if row["case"] in TARGETS["codec"] and options.wants(row["case"]):
                report.add("codec", row["case"], row["ours"], row["peer_name"], row["peer"], row["ratio"], row["unit"])
            elif options.wants(row["case"]):  # of interest, but not among the cases with a target
                report.note(f"{row['case']}: {row['ours']:.1f} {row['unit']}, {row['ratio']:.2f} of "
                            f"{row['peer_name']}")
