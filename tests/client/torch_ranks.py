"""One rank of torch_test.py: runs the scenario named on the command line, ends with status 0 if what it asserts holds.

usage: torch_ranks.py SCENARIO RANK SIZE DIRECTORY     ($CGX_SOCKET names the daemon)
"""

import copy
import os
import pickle
import signal
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import cgx
import cgx.torch

RANK, SIZE = int(sys.argv[2]), int(sys.argv[3])


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
    return torch.randn(16, 32, generator=torch.Generator().manual_seed(1000 * step + rank))


def make(hook, seed=0, unused=False, **options):
    torch.manual_seed(seed)
    net = Net(unused)
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


def train_both(steps=5, forward=lambda model, step: model(batch(step)), **options):
    """Trains a copy with gloo and one with cgxd; with two ranks their gradients are the same to the bit."""
    theirs, _ = make(False, **options)
    ours, state = make(True, **options)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (ours, theirs)]
    for step in range(steps):
        for model, optimizer in zip((ours, theirs), optimizers):
            optimizer.zero_grad(set_to_none=True)
            forward(model, step).square().mean().backward()
        assert_equal(gradients(ours), gradients(theirs))
        for optimizer in optimizers:
            optimizer.step()
    return ours, state


def matches_gloo():
    _, state = train_both()
    assert state.epoch_of(4) >= 1, state.epoch_of(4)
    assert state.epoch_of(5) is None


def matches_gloo_with_bucket_views():
    train_both(gradient_as_bucket_view=True)


def unused_parameters():
    # Rank 1 takes another way in the second step, nobody ever uses one layer.
    ours, _ = train_both(forward=lambda model, step: model(batch(step), detour=step % 2 == 1 and RANK == 1),
                         unused=True)
    assert ours.module.never.weight.grad is None


def several_models():
    pairs = [(make(True, seed), make(False, seed)) for seed in (1, 2)]
    for step in range(3):
        for (ours, _), (theirs, _) in pairs:
            for model in (ours, theirs):
                model.zero_grad(set_to_none=True)
        # Both models' passes overlap in one backward.
        sum(ours(batch(step)).square().mean() for (ours, _), _ in pairs).backward()
        for (ours, _), (theirs, _) in pairs:
            theirs(batch(step)).square().mean().backward()
            assert_equal(gradients(ours), gradients(theirs))


def no_sync_accumulates():
    theirs, _ = make(False)
    ours, _ = make(True)
    for step in range(3):
        for model in (ours, theirs):
            model.zero_grad()
            with model.no_sync():
                model(batch(10 + step)).square().mean().backward()
            model(batch(step)).square().mean().backward()
        assert_equal(gradients(ours), gradients(theirs))


def gradient_unit():
    """The hook asks once before every pass; ranks of one machine that answer differently fail by name."""
    asked = []

    def unit():
        asked.append(len(asked))
        return 0.5 if len(asked) < 4 else 1.0 + RANK

    torch.manual_seed(0)
    model = DistributedDataParallel(Net())
    model.register_comm_hook(cgx.torch.HookState(model=model, gradient_unit=unit), cgx.torch.comm_hook)
    for step in range(3):
        model(batch(step)).square().mean().backward()
        assert len(asked) == step + 1, asked
    try:
        model(batch(3)).square().mean().backward()
    except RuntimeError as error:
        assert "gradient unit" in str(error) and "rank 1" in str(error), error
    else:
        raise AssertionError("units that differ must fail")


def channels_last():
    torch.manual_seed(0)
    nets = [torch.nn.Conv2d(3, 8, 3).to(memory_format=torch.channels_last) for _ in range(2)]
    nets[1].load_state_dict(nets[0].state_dict())
    ours, theirs = map(DistributedDataParallel, nets)
    ours.register_comm_hook(cgx.torch.HookState(model=ours), cgx.torch.comm_hook)
    for step in range(3):
        images = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(10 * step + RANK))
        for model in (ours, theirs):
            model.zero_grad()
            model(images.to(memory_format=torch.channels_last)).square().mean().backward()
        assert_equal(gradients(ours), gradients(theirs))


def subgroup():
    """Ranks 0 and 1 train together, rank 2 alone: two groups, each with communicators of its own."""
    groups = [dist.new_group([0, 1]), dist.new_group([2])]
    group = groups[RANK // 2]
    torch.manual_seed(0)
    model = DistributedDataParallel(Net(), process_group=group)
    model.register_comm_hook(cgx.torch.HookState(process_group=group, model=model), cgx.torch.comm_hook)
    model(batch(0)).square().mean().backward()
    alone = copy.deepcopy(model.module)
    alone.zero_grad()
    members = [0, 1] if RANK < 2 else [2]
    for member in members:
        (alone(batch(0, member)).square().mean() / len(members)).backward()
    for ours, reference in zip(model.module.parameters(), alone.parameters()):
        assert torch.allclose(ours.grad, reference.grad, atol=1e-6)


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


def parameter(dtype, *shape):
    made = torch.nn.Parameter(torch.zeros(shape, dtype=dtype))
    made.grad = torch.full(shape, float(RANK + 1), dtype=dtype)
    return made


def half_types():
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        state = cgx.torch.HookState()
        parameters = [parameter(dtype, 8, 4), parameter(dtype, 3)]
        for _ in range(3):
            result = cgx.torch.comm_hook(state, FakeBucket(parameters)).wait()
            assert result.dtype == dtype and (result == 1.5).all(), result


def mixed_types_in_several_buckets():
    state = cgx.torch.HookState()
    groups = [[parameter(torch.float32, 5)], [parameter(torch.bfloat16, 7)], [parameter(torch.float32, 2, 2)]]
    for _ in range(3):
        futures = [cgx.torch.comm_hook(state, FakeBucket(group, i, i == 2)) for i, group in enumerate(groups)]
        assert all((future.wait() == 1.5).all() for future in futures)


def abandoned_pass_fails_everywhere_and_the_next_works():
    state = cgx.torch.HookState()
    groups = [[parameter(torch.float32, 5)], [parameter(torch.float32, 7)]]

    def whole_pass():
        return [cgx.torch.comm_hook(state, FakeBucket(group, i, i == 1)) for i, group in enumerate(groups)]

    def fails(future):
        try:
            future.wait()
        except Exception as error:  # torch chooses the class, the text is ours
            return "STEP_ABANDONED" in str(error)
        return False

    for future in whole_pass():
        future.wait()
    if RANK == 1:
        cgx.torch.comm_hook(state, FakeBucket(groups[0], 0, False))
    assert all([fails(future) for future in whole_pass()])
    assert all((future.wait() == 1.5).all() for future in whole_pass())


def dropped_step():
    state = cgx.torch.HookState()
    parameters = [parameter(torch.float32, 5)]
    for _ in range(3):
        cgx.torch.comm_hook(state, FakeBucket(parameters)).wait()
        state.drop_step()


def state_survives_pickling():
    model, state = make(True)
    model(batch(0)).square().mean().backward()
    again = pickle.loads(pickle.dumps(state))
    assert again.name == state.name
    copy.deepcopy(model.module)
    state.close()
    result = cgx.torch.comm_hook(again, FakeBucket([parameter(torch.float32, 5)])).wait()
    assert (result == 1.5).all()


def disagreement_is_named():
    """Models that differ between ranks: DDP without its own check, as with a hand-made bucket."""
    state = cgx.torch.HookState()
    try:
        cgx.torch.comm_hook(state, FakeBucket([parameter(torch.float32, 5 + RANK)])).wait()
    except Exception as error:
        assert "MISMATCH" in str(error) and "parameter.0" in str(error), error
        return
    raise AssertionError("the ranks' models differ")


def backward_raises_when_the_daemon_dies():
    model, _ = make(True)
    model(batch(0)).square().mean().backward()
    dist.barrier()
    if RANK == 0:
        os.kill(int(os.environ["CGX_TEST_DAEMON_PID"]), signal.SIGKILL)
    dist.barrier()
    for _ in range(2):  # the first pass after, and every later one
        try:
            model(batch(1)).square().mean().backward()
        except RuntimeError as error:
            assert "DAEMON_LOST" in str(error), error
        else:
            raise AssertionError("backward went on without a daemon")


def backward_raises_when_a_rank_dies():
    model, _ = make(True)
    for step in range(2):  # before its second pass DDP re-cuts its buckets over gloo
        model(batch(step)).square().mean().backward()
    dist.barrier()
    if RANK == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        model(batch(2)).square().mean().backward()
    except RuntimeError as error:
        assert "RANK_LOST" in str(error) and "rank 1" in str(error), error
        os._exit(0)  # gloo's group is broken
    raise AssertionError("backward went on without rank 1")


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[4]}/store", rank=RANK, world_size=SIZE)
    globals()[sys.argv[1]]()
    dist.barrier()


if __name__ == "__main__":
    main()
