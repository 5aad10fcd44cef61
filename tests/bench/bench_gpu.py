"""gpu: training on a GPU with torch's DistributedDataParallel, the hook beside torch's own exchange over gloo in the same processes.

Two machines with a rank each, which share one GPU where there is no other. In `alone` nothing is exchanged; what an exchange costs
beside it is what is compared. Needs a GPU and a torch that has it; says what it lacks otherwise.

e2e/4bit/n2 is the time of its parts over that of an exchange of 64 MiB: the kernels of one rank, its encoded bytes over the bus both ways, and
as many bytes exchanged from the host's memory. steal/matmul is a product of matrices alone over one beside such exchanges.
"""

import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile

import daemons
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


def exchanged(rows, codec, kinds=("arena", "host")):
    """Microseconds of steps of one matrix in an arena on the GPU, of which a worker makes what is sent, or in the host's, same daemons."""
    took, scene = {}, Scene(CODECS[codec], on_a_gpu=True)
    try:
        for kind in kinds:
            said = scene.run([kind] * 2, [0, 1], f"matrices={rows}")[0].splitlines()
            took[kind] = statistics.median([1e6 * float(line.split()[1]) for line in said][5:])
    finally:
        scene.close()
    return took


def exchange(report, rows, codec):
    took = exchanged(rows, codec)
    report.add("gpu", f"exchange/{4 * rows}KiB/{codec}", took["arena"], "host", took["host"], took["host"] / took["arena"], "us/step")


CROSSING = """
import statistics, sys, time, torch
there = torch.zeros(int(sys.argv[1]), dtype=torch.uint8, device="cuda")
here = torch.zeros(there.shape, dtype=torch.uint8, pin_memory=True)
def took():
    torch.cuda.synchronize()
    began = time.perf_counter()
    here.copy_(there, non_blocking=True)
    there.copy_(here, non_blocking=True)
    torch.cuda.synchronize()
    return time.perf_counter() - began
print(1e6 * statistics.median([took() for _ in range(20)][5:]))
"""


def sum_of_parts(report, rows=16384, bytes_per_value=0.5 + 8 / 512):
    """Kernels are measured by gpu_bench, with four parts where this has two, and scaled by bytes."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "kernels.json")
        subprocess.run([os.path.join(daemons.BUILD, "bin", "gpu_bench"), "--codec", "maxmin:4", "--json", path], check=True, capture_output=True,
                       env=dict(os.environ, CGX_KERNEL_IMAGES=os.path.join(daemons.BUILD, "lib")))
        with open(path, encoding="utf-8") as file:
            found = {row["case"]: row for row in json.load(file)}
    values, measured = rows * 1024, (256 << 20) / 4
    kernels = sum(1e3 * found[f"{name}/maxmin:4,bucket=512/256"]["ms"] for name in ("encode", "reduce_requantize", "decode_add")) * values / 2 / measured
    asked = subprocess.run([sys.executable, "-c", CROSSING, str(round(values * bytes_per_value))], check=True, capture_output=True, text=True)
    bus = float(asked.stdout)
    ours = exchanged(rows, "4bit", ["arena"])["arena"]
    network = exchanged(round(rows * bytes_per_value / 4), "fp32", ["host"])["host"]
    parts = kernels + bus + network
    report.add("gpu", "e2e/4bit/n2", ours, "its parts", parts, parts / ours, "us",
               f"kernels {kernels:.0f}, bus {bus:.0f}, network {network:.0f} us")


PRODUCTS = """
import statistics, sys, time, torch
a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
def took():
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(20): a @ a
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / 20
took()
for count in sys.stdin:
    print(1e6 * statistics.median(took() for _ in range(int(count))), flush=True)
"""


def steal(report):
    products = subprocess.Popen([sys.executable, "-c", PRODUCTS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def measured():
        print(40, file=products.stdin, flush=True)
        return float(products.stdout.readline())

    scene = Scene(CODECS["4bit"], on_a_gpu=True)
    try:
        alone = measured()
        ranks = scene.begin(["arena"] * 2, [0, 1], "matrices=16384x100000")
        for rank in ranks:
            rank.stdout.readline()
        beside = measured()
        for rank in ranks:
            rank.kill()
            rank.communicate()
    finally:
        scene.close()
        products.communicate()
    report.add("gpu", "steal/matmul", beside, "alone", alone, alone / beside, "us", "beside exchanges of 64 MiB without a pause")


def run(options, report):
    asked = subprocess.run([sys.executable, "-c", ASK], capture_output=True, text=True)
    if asked.returncode != 0:
        report.skip("gpu", (asked.stderr.strip().splitlines() or ["no torch"])[-1])
        return
    for rows in (64, 1024, 16384):
        for codec in CODECS:
            if options.wants(f"exchange/{4 * rows}KiB/{codec}"):
                exchange(report, rows, codec)
    if options.wants("e2e/4bit/n2"):
        sum_of_parts(report)
    if options.wants("steal/matmul"):
        steal(report)
    models = ("layers", "resnet50") if importlib.util.find_spec("torchvision") else ("layers",)
    for shape in ("unshaped", "10gbit") if isolation_possible() else ("unshaped",):
        for model in models:
            for codec in CODECS:
                if options.wants(f"train/{model}/{shape}/{codec}"):
                    measure(report, model, shape, codec, *((1, 4) if options.quick else (4, 6)))
