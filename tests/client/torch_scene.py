"""What the scenarios of torch_ranks.py share: this process's rank, models, batches, buckets made by hand.

$CGX_TEST_DEVICE: where the tensors lie, default the CPU.
"""

import os
import sys

import torch
from torch.nn.parallel import DistributedDataParallel

import cgx.torch

RANK, SIZE = int(sys.argv[2]), int(sys.argv[3])
DEVICE = os.environ.get("CGX_TEST_DEVICE", "cpu")


class Net(torch.nn.Module):
    def __init__(self, unused=False):
        super().__init__()
        self.first = torch.nn.Linear(32, 64)
        self.norm = torch.nn.LayerNorm(64)
        self.second = torch.nn.Linear(64, 8)
        if unused:
            self.never = torch.nn.Linear(3, 3)
            self.sometimes = torch.nn.Linear(64, 8)

    def forward(self, inputs, detour=False):
        hidden = self.norm(torch.relu(self.first(inputs)))
        return self.sometimes(hidden) if detour else self.second(hidden)


def batch(step, rank=RANK):
    return torch.randn(16, 32, generator=torch.Generator().manual_seed(1000 * step + rank)).to(DEVICE)


def make(hook, seed=0, unused=False, **options):
    torch.manual_seed(seed)
    net = Net(unused).to(DEVICE)
    model = DistributedDataParallel(net, bucket_cap_mb=0.005, find_unused_parameters=unused, **options)
    state = None
    if hook:
        state = cgx.torch.HookState(model=model)
        model.register_comm_hook(state, cgx.torch.comm_hook)
    return model, state


def gradients(model):
    return {name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()}


def assert_equal(ours, theirs):
    assert ours.keys() == theirs.keys()
    for name in ours:
        both = ours[name], theirs[name]
        assert (both[0] is None) == (both[1] is None), name
        assert both[0] is None or torch.equal(*both), (name, both)


class FakeBucket:
    """What a hook sees of a bucket; DDP over gloo takes neither bf16 models nor abandoned passes."""

    def __init__(self, parameters, index=0, last=True):
        self._parameters, self._index, self._last = parameters, index, last
        self._buffer = torch.cat([p.grad.flatten() for p in parameters])

    def buffer(self):
        return self._buffer

    def parameters(self):
        return self._parameters

    def gradients(self):
        sizes = [p.numel() for p in self._parameters]
        return [piece.view(p.shape) for piece, p in zip(self._buffer.split(sizes), self._parameters)]

    def index(self):
        return self._index

    def is_last(self):
        return self._last


class CastBucket(FakeBucket):
    """As DDP's mixed precision makes them: another type than the parameters'."""

    def __init__(self, parameters, dtype, index=0, last=True):
        super().__init__(parameters, index, last)
        self._buffer = self._buffer.to(dtype)


class PairsBucket(FakeBucket):
    """As DDP makes them of complex parameters: twice as many real elements as gradients() shows."""

    def __init__(self, parameters, index=0, last=True):
        super().__init__(parameters, index, last)
        self._buffer = torch.view_as_real(self._buffer).flatten()

    def gradients(self):
        sizes = [p.numel() for p in self._parameters]
        pieces = self._buffer[:sum(sizes)].split(sizes)
        return [piece.view(p.shape) for piece, p in zip(pieces, self._parameters)]


def parameter(dtype, *shape):
    made = torch.nn.Parameter(torch.zeros(shape, dtype=dtype, device=DEVICE))
    made.grad = torch.full(shape, float(RANK + 1), dtype=dtype, device=DEVICE)
    return made
