"""cgxsim: published figures beside the timeline's (tolerance over error, so 1 is just within it), and how long a large scene
takes. Nothing here depends on the machine's speed but the last."""

import glob
import json
import os
import subprocess
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ERROR_MIN = 0.01  # of what is printed; a figure that is hit has no ratio
LARGE_LIMIT_S = 60.0


def ask(options, *arguments):
    """Its JSON, also where a figure is missed."""
    program = os.path.join(options.build, "bin", "cgxsim")
    done = subprocess.run([program, *arguments, "--json"], capture_output=True, text=True)
    if not done.stdout:
        raise RuntimeError(done.stderr)
    return json.loads(done.stdout)


def published(options, report):
    for path in sorted(glob.glob(os.path.join(HERE, "published", "*.txt"))):
        for row in ask(options, "--validate", path)["rows"]:
            if options.wants(row["id"]):
                report.add("cgxsim", row["id"], row["ours"], "published", row["published"],
                           row["tolerance"] / max(row["error"], ERROR_MIN), "%" if row["unit"] == "points" else "times",
                           f"off by {row['error']:.1f} {row['unit']}, tolerance {row['tolerance']:g}")


def large(options, report):
    start = time.monotonic()
    ask(options, "--model", "resnet50", "--machines", "1024", "--link", "100gbit")
    took = time.monotonic() - start
    report.add("cgxsim", "simulate-1024", took, "limit", LARGE_LIMIT_S, LARGE_LIMIT_S / took, "s")


def run(options, report):
    if options.peers_only:
        return
    published(options, report)
    if options.wants("simulate-1024"):
        large(options, report)
