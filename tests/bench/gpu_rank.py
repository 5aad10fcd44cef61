"""A trainer on a GPU, with torch's DistributedDataParallel.

usage: gpu_rank.py MODEL RANK RANKS FOLDER ADDRESS; then on standard input: HOW N -> the times of N steps, in ms, as JSON, where HOW is
cgxd (the hook), gloo (torch's own exchange) or alone (nothing is exchanged)
"""

import contextlib
import json
import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import cgx.torch


def layers():
    """67 million parameters in 16 matrices, and little to compute."""
    made = []
    for _ in range(16):
        made += [torch.nn.Linear(2048, 2048), torch.nn.ReLU()]
    return torch.nn.Sequential(*made), lambda: torch.randn(64, 2048, device="cuda")


def resnet50():
    import torchvision  # only where this model is asked for

    return torchvision.models.resnet50(), lambda: torch.randn(64, 3, 224, 224, device="cuda")


MODELS = {"layers": layers, "resnet50": resnet50}


class Trainer:
    def __init__(self, model):
        self.models, self.sample = {}, None
        for how in ("cgxd", "gloo"):
            torch.manual_seed(1)
            made, self.sample = MODELS[model]()
            self.models[how] = DistributedDataParallel(made.cuda())
        cgx.torch.register(self.models["cgxd"])

    def step(self, how):
        model = self.models["cgxd" if how == "alone" else how]
        torch.cuda.synchronize()
        began = time.perf_counter()
        with model.no_sync() if how == "alone" else contextlib.nullcontext():
            model(self.sample()).square().mean().backward()
        torch.cuda.synchronize()
        took = time.perf_counter() - began
        model.zero_grad(set_to_none=False)
        return 1e3 * took


def main():
    model, rank, ranks, folder, address = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5]
    if not address.startswith("127."):
        os.environ["GLOO_SOCKET_IFNAME"] = "eth0"
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
    trainer = Trainer(model)
    print("ready", flush=True)
    for line in sys.stdin:
        how, count = line.split()
        print(json.dumps([trainer.step(how) for _ in range(int(count))]), flush=True)
    cgx.torch.shutdown()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
