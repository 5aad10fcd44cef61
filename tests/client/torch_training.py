"""Scenarios of torch_ranks.py: what comes out of training, compared with gloo's."""

import copy
import gc
import hashlib
import itertools
import math
import re
import signal
import time
import warnings

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

import cgx.torch
from torch_scene import DEVICE, RANK, SIZE, CastBucket, FakeBucket, Net, PairsBucket, assert_equal, batch, gradients, make, parameter


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
    assert DEVICE == "cpu" or state._exchange._shared is not None, "the arena is not on the GPU"
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


class ToDouble(torch.nn.Module):
    def forward(self, inputs):
        return inputs.double()


WAYS = (lambda model: cgx.torch.register(model), lambda model: model.register_comm_hook(None, cgx.torch.comm_hook),
        lambda model: model.register_comm_hook(cgx.torch.HookState(), cgx.torch.comm_hook))


def net_of_two_types():
    torch.manual_seed(0)
    layers = torch.nn.Linear(32, 32), torch.nn.Linear(32, 16), ToDouble(), torch.nn.Linear(16, 4).double()
    return torch.nn.Sequential(*layers).to(DEVICE)


def static_graph_with_several_buckets():
    """Two types make two buckets at once. In its first pass DDP calls each of them the first one, and none the last. Layers
    that are frozen when a model is wrapped are none of DDP's, also where they are trained later."""
    signal.alarm(60)
    for hook, frozen in itertools.product(WAYS, (False, True)):
        net = net_of_two_types()
        net[0].requires_grad_(not frozen)
        ours, theirs = (DistributedDataParallel(each, static_graph=True) for each in (net, copy.deepcopy(net)))
        for each in (ours, theirs):
            each.requires_grad_(True)
        hook(ours)
        for step in range(4):
            for model in (ours, theirs):
                model.zero_grad()
                model(batch(step)).square().mean().backward()
            assert_equal(gradients(ours), gradients(theirs))
    signal.alarm(0)


def static_graph_whose_model_is_hidden():
    """On one rank, by gc.freeze(): nothing says which bucket is the last. Both ranks hear it at once."""
    signal.alarm(40)
    model = DistributedDataParallel(net_of_two_types(), static_graph=True)
    state = cgx.torch.HookState()
    model.register_comm_hook(state, cgx.torch.comm_hook)
    if RANK == 1:
        gc.freeze()
    try:
        model(batch(0)).square().mean().backward()
    except RuntimeError as error:
        for words in ("gc.freeze() hides", "give HookState its model", "rank 1 on " if RANK == 0 else "ValueError"):
            assert words in str(error), error
    else:
        raise AssertionError("the model cannot be found")
    again = DistributedDataParallel(net_of_two_types(), static_graph=True)
    cgx.torch.register(again)
    again(batch(0)).square().mean().backward()
    signal.alarm(0)


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


class StepsDone:
    """Records what a state's communicator is told of steps, from the first pass on."""

    def __init__(self, state):
        self.said, communicator = [], state._exchange.communicator
        own = communicator.step_done
        communicator.step_done = lambda step, dropped: (self.said.append((step, dropped)), own(step, dropped))


def gradient_unit_of_none():
    """The learning rate is 0 then: nothing is owed of what such a pass did not send."""
    units = [None, None, 8.0, None, 4.0, 4.0]
    state, weight = cgx.torch.HookState(gradient_unit=lambda: units[step]), parameter(torch.float32, 5)
    for step in range(len(units)):
        assert (cgx.torch.comm_hook(state, FakeBucket([weight])).wait() == 1.5).all()
        if step == 0:
            done = StepsDone(state)
    assert done.said == [(0, True), (1, True), (3, True)], done.said


def gradient_units_that_are_none():
    """Errors name where they come from."""
    for unit, words in ((0.0, "0.0.* must be a finite number above 0"), (math.nan, "must be a finite number"),
                        ("one", "wrong type|must be real number")):
        state = cgx.torch.HookState(gradient_unit=lambda unit=unit: unit)
        try:
            cgx.torch.comm_hook(state, FakeBucket([parameter(torch.float32, 5)])).wait()
        except Exception as error:  # torch chooses the class, the text is ours
            assert re.search(f"the hook's gradient_unit: .*({words})", str(error)), error
        else:
            raise AssertionError(f"{unit} is no unit")


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


def groups_that_share_a_name():
    """Ranks of different groups never meet, whichever come first; a second model of the name is refused."""
    group = [dist.new_group([0, 1]), dist.new_group([2, 3])][RANK // 2]
    model, other = (DistributedDataParallel(torch.nn.Linear(3, 2), process_group=group) for _ in range(2))
    state = cgx.torch.register(model, name="shared", timeout=60)
    if RANK in (1, 2):
        time.sleep(2)
    for _ in range(2):
        model.zero_grad()
        model(torch.full((1, 3), 10.0 ** RANK)).sum().backward()
        assert (model.module.weight.grad == (5.5 if RANK < 2 else 550)).all(), model.module.weight.grad
    assert state.name.startswith("shared-") and state.report().ranks == 2, state.report()
    cgx.torch.register(other, name="shared", timeout=60)
    try:
        other(torch.ones(1, 3)).sum().backward()
    except RuntimeError as error:
        assert "ALREADY_EXISTS" in str(error), error
    else:
        raise AssertionError("two models of one name in one group")


def half_types():
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        state = cgx.torch.HookState()
        parameters = [parameter(dtype, 8, 4), parameter(dtype, 3)]
        for _ in range(3):
            result = cgx.torch.comm_hook(state, FakeBucket(parameters)).wait()
            assert result.dtype == dtype and (result == 1.5).all(), result


def complex_gradients():
    """Made by hand, as torch 1.13 has no such buckets: of several layers, and of one without a shape."""
    for dtype in (torch.complex64, torch.complex128):
        state, parameters = cgx.torch.HookState(), [parameter(dtype, 8, 4), parameter(dtype, 3), parameter(dtype)]
        for each in parameters:
            each.grad += 10j * RANK
        for _ in range(3):
            futures = [cgx.torch.comm_hook(state, PairsBucket(parameters[:2], 0, False)),
                       cgx.torch.comm_hook(state, PairsBucket(parameters[2:], 1, True))]
            for future in futures:
                assert (torch.view_as_complex(future.wait().view(-1, 2)) == 1.5 + 5j).all(), future.wait()
        assert [layer.elements for layer in state.report().layers] == [64, 6, 2], state.report()


class Scaled(torch.nn.Module):
    def __init__(self, shapes):
        super().__init__()
        self.scales = torch.nn.ParameterList([torch.nn.Parameter(torch.ones(shape)) for shape in shapes])

    def forward(self, inputs):
        return sum(scale.square().sum() for scale in self.scales) * inputs


def parameters_of_many_dimensions():
    shapes = [(3, 2, 1, 2, 1, 2, 1, 2), (3, 2, 1, 2, 1, 2, 1, 2, 2), (2,) * 12, (1,) * 20]
    ours, theirs = (DistributedDataParallel(Scaled(shapes).to(DEVICE)) for _ in range(2))
    state = cgx.torch.register(ours)
    for step in range(3):
        for model in (ours, theirs):
            model.zero_grad()
            model(batch(step).mean()).backward()
        assert_equal(gradients(ours), gradients(theirs))
    assert [layer.elements for layer in state.report().layers] == [48, 96, 4096, 1], state.report()
    state = cgx.torch.HookState()
    numbers = parameter(torch.complex64, *(2,) * 9)
    result = cgx.torch.comm_hook(state, PairsBucket([numbers])).wait()
    assert (torch.view_as_complex(result.view(-1, 2)) == 1.5).all() and len(result) == 1024, result


class Complex(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = (torch.nn.Parameter(torch.randn(shape, dtype=torch.cfloat)) for shape in ((32, 8), (8,)))
        self.third = torch.nn.Linear(8, 2)

    def forward(self, inputs):
        return self.third((inputs.to(torch.cfloat) @ self.first * self.second).abs())


def complex_parameters():
    """Of a torch whose DistributedDataParallel takes them. Some hand over complex buckets, which are refused by name."""
    torch.manual_seed(0)
    net = Complex()
    ours, theirs = (DistributedDataParallel(each, init_sync=False) for each in (net, copy.deepcopy(net)))
    state, types = cgx.torch.register(ours), []
    handed_over = state.on_bucket
    state.on_bucket = lambda bucket: (types.append(bucket.buffer().dtype), handed_over(bucket))[1]
    try:
        ours(batch(0)).square().mean().backward()
    except RuntimeError as error:
        assert any(each.is_complex for each in types) and "complex64" in str(error), error
        return
    for step in range(3):
        for model in (ours, theirs):
            model.zero_grad()
            model(batch(step)).square().mean().backward()
        assert_equal(gradients(ours), gradients(theirs))


def layers_that_do_not_fill_their_bucket():
    state, bucket = cgx.torch.HookState(), FakeBucket([parameter(torch.float32, 5)])
    if RANK == 1:
        bucket._buffer = torch.ones(7)
        bucket.gradients = lambda: [bucket._buffer[:5]]
    try:
        cgx.torch.comm_hook(state, bucket).wait()
    except RuntimeError as error:
        assert "a bucket has 7 elements, its layers 5" in str(error), error
        assert isinstance(cgx.torch.last_error(state), cgx.errors.UnsupportedGradientError)
    else:
        raise AssertionError("two elements of rank 1 are reduced by nobody")


def mixed_types_in_several_buckets():
    state = cgx.torch.HookState()
    groups = [[parameter(torch.float32, 5)], [parameter(torch.bfloat16, 7)], [parameter(torch.float32, 2, 2)]]
    for _ in range(3):
        futures = [cgx.torch.comm_hook(state, FakeBucket(group, i, i == 2)) for i, group in enumerate(groups)]
        assert all((future.wait() == 1.5).all() for future in futures)


def empty_buckets():
    """First, in the middle, and the only one of its type."""
    state = cgx.torch.HookState()
    groups = [[parameter(torch.float32, 0)], [parameter(torch.float32, 5)], [parameter(torch.float32, 2, 0)],
              [parameter(torch.float32, 7), parameter(torch.float32, 0)], [parameter(torch.float16, 0)]]
    for _ in range(3):
        passing = [FakeBucket(group, i, i == 4) for i, group in enumerate(groups)]
        futures = [cgx.torch.comm_hook(state, bucket) for bucket in passing]
        for bucket, future in zip(passing, futures):
            assert torch.equal(future.wait(), torch.full_like(bucket.buffer(), 1.5))


def dropped_step():
    state = cgx.torch.HookState()
    parameters = [parameter(torch.float32, 5)]
    for _ in range(3):
        cgx.torch.comm_hook(state, FakeBucket(parameters)).wait()
        state.drop_step()


def same_on_all_ranks(tensors):
    digest = hashlib.sha256(b"".join(t.detach().cpu().numpy().tobytes() for t in tensors)).hexdigest()
    everybody = [None] * SIZE
    dist.all_gather_object(everybody, digest)
    assert len(set(everybody)) == 1, everybody


def summed_as_fp32(_, bucket):
    """The average of what the bucket holds, for types that gloo does not take."""
    total = bucket.buffer().float()
    return dist.all_reduce(total, async_op=True).get_future().then(lambda _: (total / SIZE).to(bucket.buffer().dtype))


def train_wrapped(wrapper, epsilon, theirs_hook=default_hooks.allreduce_hook):
    """Against gloo inside the same wrapper: sums of two ranks differ by one rounding to the wrapper's type at most."""
    theirs, _ = make(False)
    hook = wrapper(theirs_hook)
    hook.__name__ = "wrapped"
    theirs.register_comm_hook(None, hook)
    ours, _ = make(False)
    hook = wrapper(cgx.torch.comm_hook)
    hook.__name__ = "wrapped"  # by its own name torch 1.13 refuses the bf16 one without NCCL
    ours.register_comm_hook(cgx.torch.HookState(model=ours), hook)
    optimizer = torch.optim.SGD(ours.parameters(), lr=0.1)
    for step in range(5):
        theirs.module.load_state_dict(ours.module.state_dict())
        for model in (ours, theirs):
            model.zero_grad(set_to_none=True)
            model(batch(step)).square().mean().backward()
        for one, other in zip(ours.parameters(), theirs.parameters()):
            torch.testing.assert_close(one.grad, other.grad, rtol=epsilon, atol=2.0 ** -24)
        optimizer.step()
        same_on_all_ranks(list(ours.parameters()))


def fp16_wrapper():
    train_wrapped(default_hooks.fp16_compress_wrapper, 2.0 ** -10)


def bf16_wrapper():
    train_wrapped(default_hooks.bf16_compress_wrapper, 2.0 ** -7, summed_as_fp32)


def bucket_type_differs_from_its_parameters():
    parameters = [parameter(torch.float32, 8, 4), parameter(torch.float32, 3), parameter(torch.float32, 1000)]
    for dtype in (torch.bfloat16, torch.float16, torch.float64):
        state = cgx.torch.HookState()
        for _ in range(3):
            futures = [cgx.torch.comm_hook(state, CastBucket(parameters[:2], dtype, 0, False)),
                       cgx.torch.comm_hook(state, CastBucket(parameters[2:], dtype, 1, True))]
            for result in [future.wait() for future in futures]:
                assert result.dtype == dtype and (result == 1.5).all(), result


def type_that_changes_is_refused():
    state, parameters = cgx.torch.HookState(), [parameter(torch.float32, 8, 4)]
    cgx.torch.comm_hook(state, CastBucket(parameters, torch.float32)).wait()
    try:
        cgx.torch.comm_hook(state, CastBucket(parameters, torch.float16)).wait()
    except Exception as error:
        assert "came as torch.float16, in the first pass as torch.float32" in str(error), error
    else:
        raise AssertionError("the tensor is registered with another type")
    state.close()
    assert (cgx.torch.comm_hook(state, CastBucket(parameters, torch.float16)).wait() == 1.5).all()


def sparse_gradients():
    def make_sparse():
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Embedding(50, 4, sparse=True), torch.nn.Flatten(), torch.nn.Linear(12, 2))
        return DistributedDataParallel(net)

    ours, theirs = make_sparse(), make_sparse()
    cgx.torch.register(ours)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (ours, theirs)]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for step in range(4):
            words = torch.randint(0, 50, (6, 3), generator=torch.Generator().manual_seed(10 * step + RANK))
            for model, optimizer in zip((ours, theirs), optimizers):
                optimizer.zero_grad(set_to_none=True)
                model(words).square().mean().backward()
            for one, other in zip(ours.parameters(), theirs.parameters()):
                assert one.grad.layout == other.grad.layout
                torch.testing.assert_close(one.grad.to_dense(), other.grad.to_dense(), rtol=1e-6, atol=1e-8)
                if one.grad.is_sparse:
                    rows = [set(grad.coalesce().indices()[0].tolist()) for grad in (one.grad, other.grad)]
                    assert rows[0] == rows[1], rows
            for optimizer in optimizers:
                optimizer.step()
    assert sum("sparse gradients" in str(warning.message) for warning in said) == 1, said


def results_that_are_not_finite_drop_the_step():
    """One rank overflows: all of them keep what error feedback held before, and nobody calls drop_step()."""
    tensors = [parameter(torch.float32, 5), parameter(torch.float16, 7)]
    state = cgx.torch.HookState(named_parameters=[("fed.first", tensors[0]), ("fed.second", tensors[1])])
    for step in range(6):
        overflow = [math.inf, math.nan][step % 2] if step in (2, 3) and RANK == step % 2 else 1.0
        tensors[1].grad = torch.full((7,), overflow, dtype=torch.float16, device=DEVICE)
        futures = [cgx.torch.comm_hook(state, FakeBucket([tensor], i, i == 1)) for i, tensor in enumerate(tensors)]
        finite = all([bool(future.wait().isfinite().all()) for future in futures])
        assert finite == (step not in (2, 3)), (step, finite)
        if step == 0:
            done = StepsDone(state)
        if step == 3:
            state.drop_step()  # said by hand as well: once is enough
    assert done.said == [(2, True), (3, True)], done.said


def results_are_not_looked_at_without_error_feedback():
    """To read all gradients once more takes time that the optimizer needs."""
    state, looks, look = cgx.torch.HookState(), [], cgx._torch_exchange.all_finite
    cgx._torch_exchange.all_finite = lambda tensor: looks.append(tensor) or look(tensor)
    tensor = parameter(torch.float32, 5)
    for step in range(4):
        tensor.grad = torch.full((5,), [1.0, math.inf][step % 2], device=DEVICE)
        cgx.torch.comm_hook(state, FakeBucket([tensor])).wait()
        if step == 0:
            done = StepsDone(state)
    state.drop_step()  # said by hand
    assert (looks, done.said) == ([], [(3, True)]), (looks, done.said)


def uneven_inputs():
    """DDP.join: ranks that have run out count as zeros, and count or do not count in the average, as with gloo."""
    for static in (True, False):
        models = [make(hook)[0] for hook in (False, True)]
        for model in models:
            with model.join(divide_by_initial_world_size=static):
                for step in range(2 + 2 * RANK):
                    model.zero_grad()
                    model(batch(step)).square().mean().backward()
        if RANK == SIZE - 1:
            for one, other in zip(*(model.parameters() for model in models)):
                torch.testing.assert_close(one.grad, other.grad, rtol=1e-6, atol=1e-9)
