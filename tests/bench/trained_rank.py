"""One rank of `layerwise` and `gravac`: trains a model of `convergence`, and says what bits a tensor would lose of its gradients.

usage: trained_rank.py MODEL RANK RANKS FOLDER SEED; then on standard input, each answered by a line of JSON:
  steps N         trains so many steps -> null
  train SHARE     all of that share of the model's steps, at rates that rise and fall -> [loss on held-out data, steps]
  errors N BITS   the same; BITS is {tensor: bits} as JSON -> [squared error at 4 bits everywhere, at BITS], of the own gradients, by torch
"""

import json
import math
import sys

import numpy
import torch

import cgx
from convergence_rank import DIVERGED, HELD_OUT_SEEDS, TASKS, WARMUP_STEPS
from model_rank import store

BUCKET, UNIFORM_BITS = 512, 4


def squared_error(values, bits, draws):
    """What max-min with stochastic rounding loses; bits of 32: nothing."""
    if bits >= 32:
        return 0.0
    flat = values.reshape(-1)
    short = -len(flat) % BUCKET
    padded = torch.cat([flat, flat[-1:].expand(short)]).view(-1, BUCKET).double()  # its range stays
    low, high = padded.amin(1, keepdim=True), padded.amax(1, keepdim=True)
    unit = (high - low) / (2**bits - 1)
    unit[unit == 0] = 1
    levels = ((padded - low) / unit + torch.rand(padded.shape, generator=draws, dtype=torch.double)).floor()
    lost = (low + levels * unit - padded).reshape(-1)[:len(flat)]
    return float((lost * lost).sum())


class Trainer:
    def __init__(self, model, rank, ranks, folder, seed):
        torch.set_num_threads(1)
        torch.manual_seed(seed)
        self.seed = seed
        self.task, self.rank, self.ranks = TASKS[model](), rank, ranks
        self.model = self.task.model()
        self.optimizer = self.task.optimizer(self.model.parameters())
        self.named = list(self.model.named_parameters())
        session = cgx.Session(job="layers", arena_bytes=4 * sum(p.numel() for _, p in self.named) + (8 << 20))
        self.communicator = session.communicator("layers", rank, ranks, *store(folder))
        self.arrays = [session.empty(tuple(parameter.shape)) for _, parameter in self.named]
        self.tensors = [self.communicator.register(name, array) for (name, _), array in zip(self.named, self.arrays)]
        self.communicator.commit()
        self.number, self.draws = 0, torch.Generator().manual_seed(rank)

    def step(self, bits=None):
        """Squared errors of the own gradients: uniform, and at `bits`."""
        self.optimizer.zero_grad(set_to_none=True)
        self.task.loss(self.model, 1_000_003 * (self.number + 1) + 100 * self.seed + self.rank, self.task.batch).backward()
        errors = numpy.zeros(2)
        for (name, parameter), array in zip(self.named, self.arrays):
            array[...] = parameter.grad.numpy() / self.ranks
            if bits is not None and name in bits:
                errors += [squared_error(parameter.grad, each, self.draws) for each in (UNIFORM_BITS, bits[name])]
        self.communicator.submit(self.number, list(reversed(self.tensors)))
        self.communicator.step_end(self.number)
        self.communicator.wait(self.number)
        for (_, parameter), array in zip(self.named, self.arrays):
            parameter.grad.copy_(torch.from_numpy(numpy.asarray(array)))
        self.optimizer.step()
        self.number += 1
        return errors


    def train(self, share):
        steps = max(WARMUP_STEPS + 2, int(share * self.task.steps))
        for step in range(steps):
            for group in self.optimizer.param_groups:
                group["lr"] = self.task.rate * min((step + 1) / WARMUP_STEPS, 0.5 + 0.5 * math.cos(math.pi * step / steps))
            self.step()
        with torch.no_grad():
            loss = sum(self.task.loss(self.model, seed, 256).item() for seed in range(HELD_OUT_SEEDS)) / HELD_OUT_SEEDS
        return [loss if loss < DIVERGED else DIVERGED, steps]


def main():
    model, rank, ranks, folder, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], int(sys.argv[5])
    trainer = Trainer(model, rank, ranks, folder, seed)
    print("ready", flush=True)
    for line in sys.stdin:
        what, count, *rest = line.split(maxsplit=2)
        if what == "train":
            print(json.dumps(trainer.train(float(count))), flush=True)
            continue
        bits = json.loads(rest[0]) if what == "errors" else None
        errors = sum(trainer.step(bits) for _ in range(int(count)))
        print(json.dumps(None if bits is None else list(errors)), flush=True)


if __name__ == "__main__":
    main()
