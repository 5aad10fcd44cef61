"""gpu: training on a GPU with torch's DistributedDataParallel, the hook beside torch's own exchange over gloo in the same processes.

Two machines with a rank each, which share one GPU where there is no other. In `alone` nothing is exchanged; what an exchange costs
beside it is what is compared. Needs a GPU and a torch that has it; says what it lacks otherwise.
"""

import importlib.util
import statistics
import subprocess
import sys
import tempfile

from bench_device import Scene
from machines import Machines, isolation_possible
from trainers import Trainers

CODECS = {"fp32": "fp32", "4bit": "maxmin:4,bucket=512"}
ASK = "import torch, sys; sys.exit(0 if torch.cuda.is_available() else 'torch finds no GPU')"


def measure(report, model, shape, codec, rounds, steps):
    with tempfile.TemporaryDirectory() as folder, Machines(2, shape=shape) as machines:
        trainers = Trainers(machines, f"{folder}/scene", {"policy": {"codec": CODECS[codec]}}, "gpu_rank.py", model, machines[0].address)
        try:
            for how in ("cgxd", "gloo", "alone"):  # not measured: memory is taken, kernels are loaded, plans settle
                trainers.say(f"{how} {8 if how == 'cgxd' else 2}")
            times = {"cgxd": [], "gloo": [], "alone": []}
            for _ in range(rounds):
                for how, kept in times.items():
                    kept += [max(both) for both in zip(*trainers.say(f"{how} {steps}"))]
            way = [each["way"] for each in trainers.daemons[0].control_tool("status").get("gpus", [])]
        finally:
            trainers.close()
    ours, gloo, alone = (statistics.median(times[how]) for how in ("cgxd", "gloo", "alone"))
    report.add("gpu", f"train/{model}/{shape}/{codec}", ours, "gloo", gloo, gloo / ours, "ms/step",
               f"{alone:.1f} ms alone, way {' '.join(way) or 'unknown'}")


def exchange(report, rows, codec):
    """Steps of one matrix in the arena on the GPU, of which a worker makes what is sent, beside one in the host's, same daemons."""
    took, scene = {}, Scene(CODECS[codec], on_a_gpu=True)
    try:
        for kind in ("arena", "host"):
            said = scene.run([kind] * 2, [0, 1], f"matrices={rows}")[0].splitlines()
            took[kind] = statistics.median([1e6 * float(line.split()[1]) for line in said][5:])
    finally:
        scene.close()
    report.add("gpu", f"exchange/{4 * rows}KiB/{codec}", took["arena"], "host", took["host"], took["host"] / took["arena"], "us/step")


def run(options, report):
    asked = subprocess.run([sys.executable, "-c", ASK], capture_output=True, text=True)
    if asked.returncode != 0:
        report.skip("gpu", (asked.stderr.strip().splitlines() or ["no torch"])[-1])
        return
    for rows in (64, 1024, 16384):
        for codec in CODECS:
            if options.wants(f"exchange/{4 * rows}KiB/{codec}"):
                exchange(report, rows, codec)
    models = ("layers", "resnet50") if importlib.util.find_spec("torchvision") else ("layers",)
    for shape in ("unshaped", "10gbit") if isolation_possible() else ("unshaped",):
        for model in models:
            for codec in CODECS:
                if options.wants(f"train/{model}/{shape}/{codec}"):
                    measure(report, model, shape, codec, *((1, 4) if options.quick else (4, 6)))
