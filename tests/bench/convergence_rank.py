"""One of four ranks of `convergence`: trains each model once per codec, all in one process.

usage: convergence_rank.py SHARE-OF-STEPS MODEL/LABEL/RATE...   (torch's usual environment, CGX_SOCKET)
RATE multiplies the model's own learning rate. A run's parameters are named LABEL/..., which is how the daemon's policy finds their codec. Rank 0 prints
{"model", "label", "loss", "steps"} after each run (JSON has no NaN: a loss beyond DIVERGED is DIVERGED); every rank checks that all have the same parameters.
"""

import hashlib
import json
import math
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import cgx.torch

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "deploy", "quickstart_job"))
import text  # noqa: E402
from model import CharacterModel  # noqa: E402

WARMUP_STEPS = 30
DIVERGED = 1e9
HELD_OUT_SEEDS = 8  # the seeds of a loss from here on are for training


class Images:
    """Ten patterns in noise, 16 x 16; one label in ten is drawn at random, so that no loss is below 0.50 on average."""

    rate, batch, steps = 0.05, 16, 500

    def __init__(self):
        self.patterns = torch.randn(10, 1, 16, 16, generator=torch.Generator().manual_seed(3))

    def model(self):
        return nn.Sequential(nn.Conv2d(1, 24, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
                             nn.Conv2d(24, 48, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
                             nn.Conv2d(48, 64, 3, padding=1), nn.ReLU(), nn.Flatten(),
                             nn.Linear(1024, 96), nn.ReLU(), nn.Linear(96, 10))

    def optimizer(self, parameters):
        return torch.optim.SGD(parameters, lr=self.rate, momentum=0.9)

    def loss(self, model, seed, size):
        pick = torch.Generator().manual_seed(seed)
        kinds = torch.randint(10, (size,), generator=pick)
        images = self.patterns[kinds] + torch.randn(size, 1, 16, 16, generator=pick)
        wrong = torch.rand(size, generator=pick) < 0.1
        labels = torch.where(wrong, torch.randint(10, (size,), generator=pick), kinds)
        return nn.functional.cross_entropy(model(images), labels)


class Text:
    """A character transformer of two blocks on the quickstart's generated text, which has 0.41 nats a character if all before it is known."""

    rate, batch, steps, length = 8e-3, 8, 1000, 32

    def __init__(self):
        self.train, self.held_out = (torch.tensor(text.encode(text.generate(200_000, seed))) for seed in (1, 2))

    def model(self):
        return CharacterModel(len(text.ALPHABET), width=64, layers=2, heads=4, context=self.length)

    def optimizer(self, parameters):
        return torch.optim.Adam(parameters, lr=self.rate)

    def loss(self, model, seed, size):
        pick = torch.Generator().manual_seed(seed)
        tokens = self.held_out if seed < HELD_OUT_SEEDS else self.train
        starts = torch.randint(len(tokens) - self.length - 1, (size,), generator=pick)
        batch = torch.stack([tokens[s:s + self.length + 1] for s in starts])
        return nn.functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())


TASKS = {"conv": Images, "transformer": Text}


def digest(model):
    values = b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())
    return int.from_bytes(hashlib.sha256(values).digest()[:7], "little")


def check_replicas(model, label):
    mine = torch.tensor([digest(model)])
    everybody = [torch.zeros_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(everybody, mine)
    if len({int(other) for other in everybody}) != 1:
        raise RuntimeError(f"{label}: the ranks' parameters differ")


def train(task, label, rate, steps):
    torch.manual_seed(1)
    model = task.model()
    parallel = DistributedDataParallel(model)
    names = [(f"{label}/{name}", parameter) for name, parameter in model.named_parameters()]
    parallel.register_comm_hook(cgx.torch.HookState(named_parameters=names), cgx.torch.comm_hook)
    optimizer = task.optimizer(model.parameters())
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = rate * task.rate * min((step + 1) / WARMUP_STEPS, 0.5 + 0.5 * math.cos(math.pi * step / steps))
        optimizer.zero_grad(set_to_none=True)
        task.loss(parallel, 1_000_003 * (step + 1) + ranks + rank, task.batch).backward()
        optimizer.step()
    check_replicas(model, label)
    with torch.no_grad():
        loss = sum(task.loss(model, seed, 256).item() for seed in range(HELD_OUT_SEEDS)) / HELD_OUT_SEEDS
    return loss if loss < DIVERGED else DIVERGED


def main():
    steps_share, runs = float(sys.argv[1]), [run.split("/") for run in sys.argv[2:]]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for name, make in TASKS.items():
        task = make()
        for label, rate in ((label, float(rate)) for model, label, rate in runs if model == name):
            steps = max(WARMUP_STEPS + 2, int(steps_share * task.steps))
            loss = train(task, label, rate, steps)
            if dist.get_rank() == 0:
                print(json.dumps({"model": name, "label": label, "loss": loss, "steps": steps}), flush=True)
            dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
