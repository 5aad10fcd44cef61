"""train: step time of the quickstart's job at 1 Gbit/s, two machines with two busy trainers each, 4 bits to gloo."""

import json
import os
import subprocess
import sys

from daemons import ROOT

CASE = "train/1gbit/n2r2"


def run(options, report):
    if not options.wants(CASE) or options.peers_only:
        return
    job = os.path.join(ROOT, "deploy", "quickstart_job", "run.py")
    command = [sys.executable, job, "--steps", "12" if options.quick else "40", "--only", "gloo,4bit", "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr}")
    runs = {row["run"]: row for row in map(json.loads, filter(lambda l: l.startswith("{"), done.stdout.splitlines()))}
    ours, gloo = runs["cgxd 4 bits"]["step_ms"], runs["gloo"]["step_ms"]
    report.add("allreduce", CASE, ours, "gloo", gloo, gloo / ours, "ms/step")
