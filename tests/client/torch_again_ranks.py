"""A training script of torch_again_test.py that goes on after a death.

usage: torch_again_ranks.py restart DIRECTORY            (under torchrun, which starts all ranks anew)
       torch_again_ranks.py retry DIRECTORY RANK SIZE ATTEMPT   (survivors make their group anew, the dead rank is started anew)

It takes STEPS steps and saves after each; rank 1 of the first attempt ends by SIGKILL in the middle. Prints what became of
the parameters.
"""

import os
import signal
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import cgx.torch

STEPS, DIES_IN = 6, 3
PLACE = sys.argv[2]
SAVED = os.path.join(PLACE, "saved")


def batch(step, rank):
    return torch.randn(16, 32, generator=torch.Generator().manual_seed(1000 * step + rank))


def save(step, net):
    torch.save((step, net.state_dict()), SAVED + ".new")
    os.rename(SAVED + ".new", SAVED)


def say(line):
    """In one piece, also where Python does not buffer: all ranks write to one pipe."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def train(attempt):
    """From where the last attempt was saved to the end."""
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
    first = 0
    if os.path.exists(SAVED):
        first, state = torch.load(SAVED)
        net.load_state_dict(state)
    model = DistributedDataParallel(net)
    cgx.torch.register(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(first, STEPS):
        if (attempt, rank, step) == (0, 1, DIES_IN):
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.zero_grad()
        model(batch(step, rank)).square().mean().backward()
        optimizer.step()
        if rank == 0:
            save(step + 1, net)
        dist.barrier()
    total = sum(float(parameter.detach().double().abs().sum()) for parameter in net.parameters())
    say(f"attempt {attempt}: rank {rank} took steps {first} to {STEPS}: {total:.12f}")


def restart():
    """Over a store of each attempt: in torchrun's own, gloo takes the addresses of those that were before for theirs."""
    attempt, rank, size = (int(os.environ[name]) for name in ("TORCHELASTIC_RESTART_COUNT", "RANK", "WORLD_SIZE"))
    dist.init_process_group("gloo", init_method=f"file://{PLACE}/store{attempt}", rank=rank, world_size=size)
    train(attempt)


def retry():
    rank, size, attempt = map(int, sys.argv[3:])
    while True:
        try:
            dist.init_process_group("gloo", init_method=f"file://{PLACE}/store{attempt}", rank=rank, world_size=size)
            return train(attempt)
        except RuntimeError as error:
            say(f"attempt {attempt}: rank {rank}: {error}")
            dist.destroy_process_group()
            attempt += 1


if __name__ == "__main__":
    torch.set_num_threads(1)
    {"restart": restart, "retry": retry}[sys.argv[1]]()
