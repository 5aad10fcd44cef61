"""One rank of the quickstart: trains the character model under DDP and reports JSON lines on standard output.

Started by run.py with torch's usual RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT, and CGX_SOCKET for `--exchange cgxd`.
What a user's own script needs for cgxd are the two lines in `register_exchange`.

Lines: {"step", "loss", "step_ms", "exchange_ms", "epoch"} per step; {"parameters": digest, "at_step"} at checkpoints;
{"final_loss"} at the end.
"""

import argparse
import functools
import hashlib
import json
import os
import time

import torch
import torch.distributed as dist
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import reference
import text
from model import CharacterModel

BATCH, LENGTH = 2, 32
PEAK_RATE, WARMUP_STEPS = 1e-3, 8
EVALUATION_BATCHES, EVALUATION_BATCH = 8, 32


def say(**values):
    print(json.dumps(values), flush=True)


class ExchangeClock:
    """Wraps a DDP hook: the time from the first bucket handed over in a step to the last result."""

    def __init__(self, hook):
        self.hook, self.first, self.last = hook, None, None

    def __call__(self, state, bucket):
        if self.first is None:
            self.first = time.perf_counter()
        return self.hook(state, bucket).then(self._done)

    def _done(self, future):
        self.last = time.perf_counter()
        value = future.value()
        return value[0] if isinstance(value, (list, tuple)) else value

    def take_ms(self):
        elapsed = 1000 * (self.last - self.first)
        self.first = None
        return elapsed


def register_exchange(model, name, ranks_per_machine):
    """Returns (clock, function giving the epoch a step ran under)."""
    if name == "cgxd":
        import cgx.torch
        state = cgx.torch.HookState(model=model)
        hook, epoch_of = cgx.torch.comm_hook, state.epoch_of
    elif name == "gloo":
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
        state, hook, epoch_of = None, allreduce_hook, lambda step: 0
    else:
        state, hook, epoch_of = ranks_per_machine, reference.comm_hook, lambda step: 0
    clock = ExchangeClock(hook)
    model.register_comm_hook(state, functools.wraps(hook)(lambda state, bucket: clock(state, bucket)))
    return clock, epoch_of


def batch_of(tokens, rank, step, size):
    pick = torch.Generator().manual_seed(1_000_003 * (step + 1) + rank)
    starts = torch.randint(len(tokens) - LENGTH - 1, (size,), generator=pick)
    return torch.stack([tokens[s:s + LENGTH + 1] for s in starts])


def loss_of(model, batch):
    return functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())


def rate_at(step, steps):
    """Linear warm-up, then linear decay to zero, so that runs end calm enough to compare their losses."""
    return PEAK_RATE * min((step + 1) / WARMUP_STEPS, (steps - step) / max(1, steps - WARMUP_STEPS))


def digest_of(model):
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().numpy())
    return digest.hexdigest()[:16]


@torch.no_grad()
def evaluate(model, held_out):
    batches = (batch_of(held_out, 0, -1 - i, EVALUATION_BATCH) for i in range(EVALUATION_BATCHES))
    return sum(loss_of(model, b).item() for b in batches) / EVALUATION_BATCHES


def train(arguments):
    rank = dist.get_rank()
    torch.manual_seed(1)
    model = CharacterModel(len(text.ALPHABET))
    parallel = DistributedDataParallel(model)
    clock, epoch_of = register_exchange(parallel, arguments.exchange, arguments.ranks_per_machine)
    optimizer = torch.optim.Adam(model.parameters(), lr=PEAK_RATE, foreach=True)
    tokens = torch.tensor(text.encode(text.generate(400_000, seed=1)))
    held_out = torch.tensor(text.encode(text.generate(60_000, seed=2)))
    for step in range(arguments.stop_after or arguments.steps):
        start = time.perf_counter()
        for group in optimizer.param_groups:
            group["lr"] = rate_at(step, arguments.steps)
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(parallel, batch_of(tokens, rank, step, BATCH))
        loss.backward()
        optimizer.step()
        say(step=step, loss=loss.item(), step_ms=1000 * (time.perf_counter() - start), exchange_ms=clock.take_ms(),
            epoch=epoch_of(step))
        if step + 1 in (arguments.check_step, arguments.steps):
            say(parameters=digest_of(model), at_step=step + 1)
    if rank == 0 and not arguments.stop_after:
        say(final_loss=evaluate(model, held_out))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--exchange", choices=("gloo", "cgxd", "reference"), required=True)
    parser.add_argument("--steps", type=int, required=True, help="length of the learning-rate schedule")
    parser.add_argument("--stop-after", type=int, help="end early, without evaluating")
    parser.add_argument("--check-step", type=int, default=0, help="also print the parameters' digest here")
    parser.add_argument("--ranks-per-machine", type=int, required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    dist.init_process_group("gloo")
    train(arguments)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
