"""convergence: two small models trained by four ranks through four daemons, every codec at its recommended setting.

A case's figure is the final loss on held-out data, its peer the same model with fp32 in the same run.
"""

import json
import os
import subprocess
import tempfile

import daemons
from machines import Machines

HERE = os.path.dirname(os.path.abspath(__file__))
PYTHON = "/usr/bin/python3"
RANKS = 4
SILENCE_MAX_S = 300
RECOMMENDED = {
    "fp32": "fp32", "fp16": "fp16", "bf16": "bf16", "fp8": "fp8:e4m3", "int8": "int8", "maxmin8": "maxmin:8",
    "maxmin4": "maxmin:4,stochastic", "maxmin4-ef": "maxmin:4,feedback", "qsgd4": "qsgd:4,stochastic",
    "natural4": "natural:4,stochastic", "maxmin3-ef": "maxmin:3,feedback", "terngrad": "terngrad,clip,bucket=64",
    "efsign": "efsign,feedback,bucket=128", "onebit": "onebit,feedback,bucket=128", "signsgd": "signsgd,bucket=128",
    "topk": "topk:0.05,feedback", "threshold": "threshold:0.002,feedback", "randomk": "randomk:0.1,feedback",
}


def run(options, report):
    labels = [label for label in RECOMMENDED
              if label == "fp32" or any(options.wants(f"{model}/{label}") for model in ("conv", "transformer"))]
    if options.peers_only:
        return
    policy = {"codec": "fp32", "group_bytes": "256 KiB",
              "rules": [{"match": f"^{label}/", "codec": RECOMMENDED[label]} for label in labels]}
    with tempfile.TemporaryDirectory(prefix="cgx-bench-") as directory, Machines(RANKS, isolate=False) as machines:
        started = [daemons.Daemon(machines[i], directory, {"policy": policy}) for i in range(RANKS)]
        compare(report, options, started, labels)


def compare(report, options, started, labels):
    reference, sent = {}, bytes_sent(started)
    for row in results(started, labels, "0.06" if options.quick else "1"):
        now = bytes_sent(started)
        row["bytes"], sent = (now - sent) / row["steps"], now
        model, label = row["model"], row["label"]
        if label == "fp32":
            reference[model] = row
            continue
        peer = reference[model]
        report.add("convergence", f"{model}/{label}", row["loss"], "fp32", peer["loss"], peer["loss"] / row["loss"],
                   "loss", f"{RECOMMENDED[label]}; {peer['bytes'] / row['bytes']:.1f}x fewer bytes")


def bytes_sent(started):
    return sum(daemon.counters()["encoded_bytes_sent"] for daemon in started)


def results(started, labels, share):
    """Rank 0's lines, as they come."""
    port, processes = daemons.free_port("127.0.0.1"), []
    for rank, daemon in enumerate(started):
        environment = daemons.python_environment(
            RANK=str(rank), WORLD_SIZE=str(RANKS), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
            CGX_SOCKET=daemon.socket, OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", PYTHONDONTWRITEBYTECODE="1")
        processes.append(daemon.machine.start(
            [PYTHON, os.path.join(HERE, "convergence_rank.py"), share, *labels], env=environment, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL))
    for line in processes[0].stdout:
        yield json.loads(line)
    if any(process.wait(SILENCE_MAX_S) != 0 for process in processes):
        raise RuntimeError("a rank of the convergence bench failed; its words are above")
