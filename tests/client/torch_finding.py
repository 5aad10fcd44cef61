"""Scenarios of torch_ranks.py: how a hook finds the model that its buckets belong to."""

import copy
import gc
import inspect
import os
import signal
import sys
import warnings

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import cgx.torch
from cgx._torch_exchange import Exchange
from torch_scene import RANK, FakeBucket, Net, assert_equal, batch, gradients, make, parameter


class Names:
    """Records what is registered."""

    def __enter__(self):
        self.seen, self._own = [], Exchange._register_one

        def register_one(exchange, name, *rest):
            self.seen.append(name)
            return self._own(exchange, name, *rest)

        Exchange._register_one = register_one
        return self

    def __exit__(self, *error):
        Exchange._register_one = self._own


def hooked_in_one_line():
    torch.manual_seed(0)
    ways = [lambda model: cgx.torch.register(model),
            lambda model: model.register_comm_hook(None, cgx.torch.comm_hook),
            lambda model: model.register_comm_hook(cgx.torch.HookState(), cgx.torch.comm_hook)]
    wanted = [name for name, _ in Net().named_parameters()]
    for hook in ways:
        ours, _ = make(False)
        theirs, _ = make(False)
        hook(ours)
        with Names() as names:
            for step in range(3):
                for model in (ours, theirs):
                    model.zero_grad()
                    model(batch(step)).square().mean().backward()
                assert_equal(gradients(ours), gradients(theirs))
        assert names.seen == wanted, names.seen


class Forwarding(DistributedDataParallel):
    """Shows what its module has, as wrappers in training frameworks do."""

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.module, name)


class Compiled(torch.nn.Module):
    """As torch.compile makes them."""

    def __init__(self, net):
        super().__init__()
        self._orig_mod = net

    def forward(self, inputs):
        return self._orig_mod(inputs)


def wrapper_that_forwards_to_a_compiled_model():
    model = Forwarding(Compiled(Net()))
    assert model._orig_mod is model.module._orig_mod
    state = cgx.torch.register(model)
    model(batch(0)).square().mean().backward()
    assert state.is_of(model) and state.report().ranks == 2, state.report()


def states_without_a_name_are_each_models_own():
    """Two models hooked with None, one over part of the ranks: each has its own group and communicator."""
    groups = [dist.new_group([0, 1]), dist.new_group([2])]
    small = DistributedDataParallel(torch.nn.Linear(3, 2, bias=False), process_group=groups[RANK // 2])
    large = DistributedDataParallel(torch.nn.Linear(3, 2, bias=False))
    for model in (small, large):
        model.register_comm_hook(None, cgx.torch.comm_hook)
        model(torch.full((1, 3), RANK + 1.0)).sum().backward()
    assert (small.module.weight.grad == (1.5 if RANK < 2 else 3)).all(), small.module.weight.grad
    assert (large.module.weight.grad == 2).all(), large.module.weight.grad


def train_without_a_state(model):
    """One step of a model of weights whose gradients are 1, 2 and 4 on ranks 0, 1 and 2."""
    model.register_comm_hook(None, cgx.torch.comm_hook)
    train_again(model)


def train_again(model):
    for _ in range(2):  # DDP makes its buckets anew before the second pass
        model.zero_grad()
        model(torch.full((1, 3), 2.0 ** RANK)).sum().backward()


def model_wrapped_again_over_other_ranks():
    """Hooked with None each time: gradients are averaged over the ranks of the wrapper that is in use."""
    pair = [dist.new_group([0, 1]), dist.new_group([2])][RANK // 2]
    net = torch.nn.Linear(3, 2, bias=False)
    for group, mean in ((None, 7 / 3), (pair, 1.5 if RANK < 2 else 4.0), (None, 7 / 3)):
        train_without_a_state(DistributedDataParallel(net, process_group=group))
        torch.testing.assert_close(net.weight.grad, torch.full((2, 3), mean))
    world = DistributedDataParallel(net)
    try:
        train_without_a_state(DistributedDataParallel(net, process_group=pair))
    except (RuntimeError, ValueError) as error:  # torch chooses the class
        assert "several process groups" in str(error), error
    else:
        raise AssertionError(f"which ranks count is not known beside {world}")


def model_wrapped_again_alike():
    """A wrapper of the same ranks and layers goes on with the communicator of the one before."""
    net = torch.nn.Linear(3, 2, bias=False)
    with Names() as names:
        for _ in range(3):
            train_without_a_state(DistributedDataParallel(net))
            gc.collect()
            torch.testing.assert_close(net.weight.grad, torch.full((2, 3), 1.5))
    assert names.seen == ["weight"], names.seen


class Faulty(torch.autograd.Function):
    """What raises in the middle of a backward, as long as `fails` is set."""

    fails = False

    @staticmethod
    def forward(_, inputs):
        return inputs.clone()

    @staticmethod
    def backward(_, gradient):
        if Faulty.fails:
            raise ArithmeticError("a batch is broken")
        return gradient


class FaultyNet(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(32, 64), torch.nn.Linear(64, 64)

    def forward(self, inputs):
        return self.second(Faulty.apply(self.first(inputs)))


def wrap_and_train(net, passes):
    """Hooked with None, beside one that gloo serves, whose gradients are the same."""
    model, theirs = (DistributedDataParallel(each, bucket_cap_mb=0.005) for each in (net, copy.deepcopy(net)))
    model.register_comm_hook(None, cgx.torch.comm_hook)
    for step in range(passes):
        for each in (model, theirs):
            each.zero_grad()
            each(batch(step)).square().mean().backward()
        assert_equal(gradients(model), gradients(theirs))
    return model


def model_wrapped_again_after_an_exception_in_backward():
    """On all ranks, in the first pass and in later ones. DDP refuses that wrapper, so it is the only way on."""
    signal.alarm(60)
    net = FaultyNet()
    for passes in (0, 3, 3):
        model = wrap_and_train(net, passes)
        loss = model(batch(0)).sum()
        Faulty.fails = True
        try:
            loss.backward()
        except ArithmeticError:
            Faulty.fails = False
        del model, loss
    wrap_and_train(net, 3)
    state = cgx.torch._made_here._known(net.first.weight)
    state._fail(ArithmeticError("as if the end of a step that all have completed could not be handed over"))
    wrap_and_train(net, 1)
    assert state._exchange.first_step == 9, state._exchange.first_step
    signal.alarm(0)


def model_wrapped_again_with_layers_unfrozen():
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
    net[0].requires_grad_(False)
    kept = []
    for keep in (True, False):
        model = DistributedDataParallel(net)
        kept.append(model)
        train_without_a_state(model)
        net.requires_grad_(True)
        model = DistributedDataParallel(net)
        kept.append(model)
        train_without_a_state(model)
        assert all(parameter.grad is not None for parameter in net.parameters())
        net[1].requires_grad_(False)
        if keep:
            kept.clear()


def model_wrapped_again_by_those_that_live():
    """Of three ranks, in a group of their own. The model of before is still there, as in a traceback."""
    net = torch.nn.Linear(3, 2, bias=False)
    before = DistributedDataParallel(net)
    train_without_a_state(before)
    dist.barrier()
    if RANK == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        before(torch.ones(1, 3)).sum().backward()
    except RuntimeError as error:
        assert "RANK_LOST" in str(error), error
    else:
        raise AssertionError("backward went on without rank 2")
    dist.destroy_process_group()
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[4]}/again", rank=RANK, world_size=2)
    train_without_a_state(DistributedDataParallel(net))
    assert (net.weight.grad == 1.5).all(), net.weight.grad


def assert_refused(words, model, hook):
    """By register_comm_hook, or by the first backward()."""
    try:
        hook(model)
        model(torch.ones(1, 3)).sum().backward()
    except (RuntimeError, ValueError) as error:  # torch chooses the class
        assert words in str(error), error
    else:
        raise AssertionError(f"this should have been refused: {words}")


def state_without_a_model_over_part_of_the_ranks():
    """It took all ranks for its own before it saw a bucket of the model."""
    group = [dist.new_group([0, 1]), dist.new_group([2])][RANK // 2]
    model = DistributedDataParallel(torch.nn.Linear(3, 2), process_group=group)
    ranks = "has ranks [0, 1] only" if RANK < 2 else "has ranks [2] only"
    assert_refused(ranks, model, lambda model: model.register_comm_hook(cgx.torch.HookState(), cgx.torch.comm_hook))
    everybody = DistributedDataParallel(torch.nn.Linear(3, 2, bias=False), process_group=dist.new_group([0, 1, 2]))
    everybody.register_comm_hook(cgx.torch.HookState(), cgx.torch.comm_hook)
    everybody(torch.full((1, 3), RANK + 1.0)).sum().backward()
    assert (everybody.module.weight.grad == 2).all(), everybody.module.weight.grad


def layers_that_two_models_share():
    """A bucket of them does not say which model it is of."""
    shared, own = torch.nn.Linear(3, 3), torch.nn.Linear(3, 2)
    train_without_a_state(DistributedDataParallel(torch.nn.Sequential(shared, own)))
    gc.collect()
    first = DistributedDataParallel(torch.nn.Sequential(shared, own))  # the one before it has gone
    train_without_a_state(first)
    assert_refused("layers in common", DistributedDataParallel(torch.nn.Sequential(shared, torch.nn.Linear(3, 4))),
                   train_without_a_state)
    assert_refused("layers in common", DistributedDataParallel(shared), train_without_a_state)
    train_again(first)


def buckets_that_are_left_out():
    """Where the last one has no gradients the hook would wait for it for ever."""
    options = inspect.signature(DistributedDataParallel).parameters
    real = {"skip_all_reduce_unused_params": True} if "skip_all_reduce_unused_params" in options else {}
    for hook in (cgx.torch.register, lambda model: model.register_comm_hook(None, cgx.torch.comm_hook),
                 lambda model: model.register_comm_hook(cgx.torch.HookState(), cgx.torch.comm_hook)):
        model = DistributedDataParallel(torch.nn.Linear(3, 2), find_unused_parameters=True, **real)
        if not real:
            model.skip_all_reduce_unused_params = True
        assert_refused("skip_all_reduce_unused_params=True", model, hook)


def bucket_of_no_model():
    try:
        cgx.torch.comm_hook(None, FakeBucket([parameter(torch.float32, 5)]))
    except ValueError as error:
        assert "cgx.torch.register(model)" in str(error), error
    else:
        raise AssertionError("there is no model to make a state for")


def models_hidden_by_gc_freeze():
    """The error, and the warning where layers stay without names, say why no model is found."""
    model, other = (DistributedDataParallel(torch.nn.Linear(3, 2)) for _ in range(2))
    model.register_comm_hook(None, cgx.torch.comm_hook)
    other.register_comm_hook(cgx.torch.HookState(), cgx.torch.comm_hook)
    gc.freeze()
    try:
        model(torch.ones(1, 3)).sum().backward()
    except Exception as error:
        assert "gc.freeze() hides models that were made before: use cgx.torch.register(model)" in str(error), error
    else:
        raise AssertionError("the model cannot be found")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            other(torch.ones(1, 3)).sum().backward()
    said = [str(each.message) for each in caught if "gc.freeze()" in str(each.message)]
    assert len(said) == 1 and "Give HookState its model" in said[0], said
