"""convergence: two small models trained by four ranks through four daemons, every codec at its recommended setting.

Steps and learning rates are such that fp32's loss has all but levelled off: a codec that is late by some steps still ends where fp32 ends. A
case's figure is the final loss on held-out data, its peer the same model with fp32 in the same run. `control` is a bad setting: it has to miss.
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
MODELS = ("conv", "transformer")
SILENCE_MAX_S = 300
# Rules that go first: biases and norms travel as they are; below 8 bits, first and last layers at 8 bits.
EXACT = {"match": "bias$|norm", "codec": "fp32"}
ENDS = {"match": r"/(0|11)\.|/token|/position|/head", "codec": "maxmin:8"}
EIGHT_BITS_AND_UP = ("fp32", "fp16", "bf16", "fp8", "int8", "maxmin8")
# The policy's codec, and by how much the learning rate is lowered for it.
RECOMMENDED = {
    "fp32": ("fp32", 1), "fp16": ("fp16", 1), "bf16": ("bf16", 1), "fp8": ("fp8:e4m3", 1), "int8": ("int8", 1),
    "maxmin8": ("maxmin:8", 1), "maxmin4": ("maxmin:4,stochastic", 1), "maxmin4-ef": ("maxmin:4,feedback,bucket=128", 1),
    "qsgd4": ("qsgd:4,stochastic,bucket=128", 1), "natural4": ("natural:4,stochastic,bucket=128", 1),
    "maxmin3-ef": ("maxmin:3,feedback", 1), "terngrad": ("terngrad,clip,bucket=64", 1),
    "efsign": ("efsign,feedback,bucket=64", 1), "onebit": ("onebit,feedback,bucket=64", 1),
    "signsgd": ("signsgd,bucket=4096", 0.1), "topk": ("topk:0.1,feedback,values=maxmin8", 1),
    "threshold": ("threshold:0.001,feedback,values=maxmin8", 1), "randomk": ("randomk:0.25,values=maxmin8", 0.5),
    "control": ("maxmin:1,stochastic", 1),
}


def rules():
    """A rule per run, by its label; what decides first stands first."""
    own = {label: {"match": f"^{label}/", "codec": codec} for label, (codec, _) in RECOMMENDED.items()}
    return [EXACT, *(own.pop(label) for label in EIGHT_BITS_AND_UP), ENDS, *own.values()]


def run(options, report):
    wanted = [f"{model}/{label}" for model in MODELS for label in RECOMMENDED if options.wants(f"{model}/{label}")]
    if options.peers_only or not wanted:
        return
    models = {case.split("/")[0] for case in wanted}
    runs = [f"{model}/fp32" for model in models] + [case for case in wanted if not case.endswith("/fp32")]
    policy = {"codec": "fp32", "group_bytes": "256 KiB", "rules": rules()}
    with tempfile.TemporaryDirectory(prefix="cgx-bench-") as directory, Machines(RANKS, isolate=False) as machines:
        started = [daemons.Daemon(machines[i], directory, {"policy": policy}) for i in range(RANKS)]
        compare(report, options, started, runs)


def compare(report, options, started, runs):
    reference, sent = {}, bytes_sent(started)
    for row in results(started, runs, "0.01" if options.quick else "1"):
        now = bytes_sent(started)
        row["bytes"], sent = (now - sent) / row["steps"], now
        model, label = row["model"], row["label"]
        if label == "fp32":
            reference[model] = row
            continue
        peer, (codec, rate) = reference[model], RECOMMENDED[label]
        slower = "" if rate == 1 else f", learning rate x {rate:g}"
        setting = f"{codec}{slower}; {peer['bytes'] / row['bytes']:.1f}x fewer bytes"
        ratio = peer["loss"] / row["loss"]
        if label == "control":
            report.note(f"{model}/control: loss {row['loss']:.4g}, {ratio:.2f} of fp32, has to miss  {setting}")
            continue
        report.add("convergence", f"{model}/{label}", row["loss"], "fp32", peer["loss"], ratio, "loss", setting)


def bytes_sent(started):
    return sum(daemon.counters()["encoded_bytes_sent"] for daemon in started)


def results(started, runs, share):
    """Rank 0's lines, as they come."""
    port, processes = daemons.free_port("127.0.0.1"), []
    for rank, daemon in enumerate(started):
        environment = daemons.python_environment(
            RANK=str(rank), WORLD_SIZE=str(RANKS), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
            CGX_SOCKET=daemon.socket, OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", PYTHONDONTWRITEBYTECODE="1")
        processes.append(daemon.machine.start(
            [PYTHON, os.path.join(HERE, "convergence_rank.py"), share,
             *(f"{run}/{RECOMMENDED[run.split('/')[1]][1]}" for run in runs)], env=environment, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL))
    for line in processes[0].stdout:
        yield json.loads(line)
    if any(process.wait(SILENCE_MAX_S) != 0 for process in processes):
        raise RuntimeError("a rank of the convergence bench failed; its words are above")
