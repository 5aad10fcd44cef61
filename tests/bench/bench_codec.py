"""codec: kernels on one core against the machine's own rooflines, measured by bin/bench_codec (codec_bench.cc)."""

import json
import os
import subprocess


def run(options, report):
    if options.peers_only:
        return
    command = [os.path.join(options.build, "bin", "bench_codec"), "--json"] + (["--quick"] if options.quick else [])
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    for line in done.stdout.splitlines():
        if line.startswith("{"):
            row = json.loads(line)
            if options.wants(row["case"]):
                report.add("codec", row["case"], row["ours"], row["peer_name"], row["peer"], row["ratio"],
                           row["unit"])
