"""Scenarios of torch_ranks.py: what people are told."""

import contextlib
import io
import os
import re
import signal
import time
import warnings

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import cgx
import cgx._report
import cgx._torch_exchange
import cgx._torch_told
import cgx.torch
from cgx._torch_exchange import Exchange
from torch_scene import RANK, FakeBucket, batch, make, parameter


def train(model, first, last):
    for step in range(first, last):
        model.zero_grad(set_to_none=True)
        model(batch(step)).square().mean().backward()


def told():
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        model, state = make(True)
        assert state.report() is None
        train(model, 0, 5)
    elements = sum(p.numel() for p in model.parameters())
    line = said.getvalue()
    if RANK == 0:
        assert line.startswith(f"cgx: {elements / 1000:.1f} k gradients, topk:0.01"), line
        assert "x fewer bytes, 2 machines x 1 rank\n" in line and line.count("\n") == 1, line
    else:
        assert line == "", line
    report = state.report()
    assert (report.ranks, report.machines, report.elements) == (2, 2, elements), report
    assert report.ratio > 5, report.ratio
    layers = {layer.name: layer for layer in report.layers}
    assert set(layers) == {name for name, _ in model.module.named_parameters()}, layers
    first, second = layers["first.weight"], layers["second.weight"]
    assert first.codec.startswith("topk:0.01") and second.codec.startswith("maxmin:4"), layers
    assert first.bytes == 4 * 32 * 64 and 0 < first.sent_bytes < first.bytes / 10, first
    assert 0 < first.sent_share < 0.5 < second.sent_share, (first, second)
    assert all(layer.seconds is not None and 0 < layer.seconds < 20 for layer in report.layers), report.layers
    assert first.loses_signal and not second.loses_signal, (first, second)
    text = str(report)
    assert "first.weight" in text and "topk:0.01" in text, text
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        train(model, 5, 70)
    warned = [w for w in caught if issubclass(w.category, cgx.torch.SignalLossWarning)]
    assert len(warned) == (1 if RANK == 0 else 0), caught
    if RANK == 0:
        assert "first.weight (topk:0.01" in str(warned[0].message) and "more bits" in str(warned[0].message), warned[0]


def told_of_four():
    """Default policy. A bucket of 512 values is 256 bytes and 8 of its range; a bias travels as it is."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        model = DistributedDataParallel(torch.nn.Linear(1024, 1024))
        cgx.torch.register(model)
        model(torch.ones(1, 1024)).sum().backward()
    raw, sent = 4 * 1024 * 1025, 2048 * (256 + 8) + 4 * 1024
    assert round(raw / sent, 1) == 7.7, raw / sent
    wanted = "cgx: 1.0 M gradients, 4 bits, 7.7x fewer bytes, 2 machines x 2 ranks\n" if RANK == 0 else ""
    assert said.getvalue() == wanted, said.getvalue()


def told_of_feedback():
    """A second communicator of the name goes on with the residuals that both daemons have kept."""
    state = cgx.torch.HookState(name="kept", named_parameters=[("weight", weight := parameter(torch.float32, 64, 64))])
    for life in range(2):
        said = io.StringIO()
        with contextlib.redirect_stderr(said):
            for _ in range(3):
                cgx.torch.comm_hook(state, FakeBucket([weight])).wait()
        goes_on = "2 machines x 1 rank; error feedback goes on from step 2\n" in said.getvalue()
        assert goes_on == (RANK == 0 and life == 1), said.getvalue()
        assert "begins at zero" not in said.getvalue(), said.getvalue()
        state.close()


def told_on_one_machine():
    for quiet, wanted in ((False, 1), (True, 0)):
        said = io.StringIO()
        if quiet:
            os.environ["CGX_QUIET"] = "1"
        with contextlib.redirect_stderr(said):
            train(make(True)[0], 0, 1)
        text = said.getvalue()
        assert text.count("added up on this machine alone, 2 ranks\n") == (wanted if RANK == 0 else 0), text


class Unwritable(io.StringIO):
    def write(self, _):
        raise BrokenPipeError("nobody reads this")


def told_who_is_awaited():
    """Rank 1 dies before its first pass. Of the others the first one says so, again and again, until the time-out."""
    cgx._torch_told._AWAITED_S = 2.0
    state, bucket = cgx.torch.HookState(timeout=8), FakeBucket([parameter(torch.float32, 8, 8)])
    dist.barrier()
    if RANK == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        try:
            cgx.torch.comm_hook(state, bucket).wait()
            raise AssertionError("rank 1 has not come")
        except RuntimeError as error:
            assert "TIMED_OUT" in str(error) and "rank 1" in str(error), error
    line = r"cgx: communicator ddp-\S+ has waited (\d+) s for rank 1: ranks join at the end of a backward pass\n"
    waited = [int(seconds) for seconds in re.findall(line, said.getvalue())]
    if RANK == 0:
        assert waited and waited[0] >= 2 and len(waited) <= 3, said.getvalue()
        assert all(2 * first <= second + 1 for first, second in zip(waited, waited[1:])), said.getvalue()
    else:
        assert said.getvalue() == "", said.getvalue()
    os._exit(0)  # gloo's group is broken


def told_that_a_process_ended():
    """Before its first pass, by an exception of the script's own. A state that nobody waits for holds up no end."""
    state, bucket = cgx.torch.HookState(), FakeBucket([parameter(torch.float32, 8, 8)])
    dist.barrier()
    if RANK == 1:
        time.sleep(0.5)  # it is awaited
        raise ValueError("the data has ended")
    began = time.monotonic()
    try:
        cgx.torch.comm_hook(state, bucket).wait()
        raise AssertionError("rank 1 has not come")
    except RuntimeError:
        assert time.monotonic() - began < 20, "it was told late"
        print(cgx.torch.last_error(state))
        assert isinstance(cgx.torch.last_error(state), cgx.errors.RankLostError)
    os._exit(0)  # gloo's group is broken


def told_that_rank_0_was_killed():
    """Before its first pass, and with it the store in which the ranks meet: also who comes later hears it."""
    states, bucket = [cgx.torch.HookState(timeout=60) for _ in range(2)], FakeBucket([parameter(torch.float32, 8, 8)])
    dist.barrier()
    if RANK == 0:
        time.sleep(1)  # it is awaited
        os.kill(os.getpid(), signal.SIGKILL)
    began = time.monotonic()
    for state in states:
        try:
            cgx.torch.comm_hook(state, bucket).wait()
            raise AssertionError("rank 0 has not come")
        except RuntimeError as error:
            for words in ("RANK_LOST: torch's store at 127.0.0.1:", "rank 0, which serves it", "make the process group anew"):
                assert words in str(error), error
        assert isinstance(cgx.torch.last_error(state), cgx.errors.RankLostError)
    try:
        cgx.torch.HookState()
        raise AssertionError("its ranks cannot agree on a job")
    except cgx.errors.RankLostError as error:
        assert "rank 0, which serves it" in str(error), error
    assert time.monotonic() - began < 40, "it was told late"
    os._exit(0)  # gloo's group is broken


def told_nothing():
    """Neither a report that cannot be read nor a standard error that nobody reads fails a pass of rank 0 alone."""
    def unreadable(_):
        raise ValueError("one field too many")

    weight = parameter(torch.float32, 8, 8)
    for stderr, own in ((Unwritable(), cgx.report), (Unwritable(), unreadable), (io.StringIO(), unreadable)):
        cgx._torch_told.report = own
        state = cgx.torch.HookState()
        with contextlib.redirect_stderr(stderr):
            for _ in range(62):
                assert (cgx.torch.comm_hook(state, FakeBucket([weight])).wait() == 1.5).all()
        assert cgx.torch.last_error(state) is None
    wanted = f"cgx: there is no report of communicator {state.name}: ValueError: one field too many\n" if RANK == 0 else ""
    assert stderr.getvalue() == wanted, stderr.getvalue()


def report_of_a_later_daemon():
    """It says more of each thing, and names may hold what ends a line elsewhere."""
    class Later:
        def cgx_report(self, _, first, text, following):
            text.value = ("communicator\tjob\tddp\t2\t1\t3\tfp32\t0\t7\t100\t50\t\tnews\n"
                          "tensor\tfirst\x0blayer\tfp32\tnone\t4\t16\t16\t0\t1\t1\tnews\nwhat is new\tnews\n").encode()
            return 0

    class Any:
        handle, name = None, "ddp"

        def _do(self, function, *arguments):
            assert function(self.handle, *arguments) == 0

    own, cgx._report.library = cgx._report.library, Later()
    try:
        known = cgx.report(Any())
    finally:
        cgx._report.library = own
    assert (known.job, known.ranks, known.wire_bytes, known.feedback_begins) == ("job", 2, 50, ""), known
    assert [layer.name for layer in known.layers] == ["first\x0blayer"], known.layers


def gradients_elsewhere_on_one_rank():
    """Both ranks fail at once, by name, and the next step works on both."""
    state = cgx.torch.HookState(named_parameters=[("weight", weight := parameter(torch.float32, 8, 8))])
    bucket = FakeBucket([weight])
    if RANK == 1:
        bucket._buffer = torch.empty(64, device="meta")
    began = time.monotonic()
    try:
        cgx.torch.comm_hook(state, bucket).wait()
        raise AssertionError("gradients on no CPU must be refused")
    except RuntimeError as error:
        assert "UnsupportedGradientError" in str(error) and "gradients on meta" in str(error), error
        assert "rank 1 on " in str(error) or RANK == 1, error
        assert "do not register the hook" in str(error), error
    assert time.monotonic() - began < 10
    assert isinstance(cgx.torch.last_error(state), cgx.errors.UnsupportedGradientError)
    result = cgx.torch.comm_hook(state, FakeBucket([weight])).wait()
    assert torch.equal(result, torch.full((64,), 1.5)), result


def failure_of_one_state_is_not_the_next_ones():
    """Of one name: what rank 1 told the others stays in the store."""
    weight = parameter(torch.float32, 8, 8)
    for place in ("meta", "cpu", "meta", "cpu"):
        state, bucket = cgx.torch.HookState(name="again"), FakeBucket([weight])
        if RANK == 1:
            bucket._buffer = bucket.buffer().to(place)
        future = cgx.torch.comm_hook(state, bucket)
        if place == "cpu":
            assert torch.equal(future.wait(), torch.full((64,), 1.5))
            state.close()
        else:
            assert isinstance(cgx.torch.last_error(state), cgx.errors.UnsupportedGradientError)


def error_of_another_kind_while_joining():
    """Of one rank, which is none of the library's: in the meeting, and before it, where the model is looked for."""
    for place, name in ((cgx._torch_exchange, "rendezvous"), (cgx.torch, "models_of")):
        state, bucket = cgx.torch.HookState(), FakeBucket([parameter(torch.float32, 8, 8)])
        own = getattr(place, name)

        def no_thread(_):
            raise RuntimeError("can't start new thread")

        if RANK == 1:
            setattr(place, name, no_thread)
        began = time.monotonic()
        try:
            cgx.torch.comm_hook(state, bucket).wait()
            raise AssertionError("rank 1 did not join")
        except RuntimeError as error:
            assert "can't start new thread" in str(error), error
            assert "rank 1 on " in str(error) or RANK == 1, error
        assert time.monotonic() - began < 20
        setattr(place, name, own)
        assert torch.equal(cgx.torch.comm_hook(state, bucket).wait(), torch.full((64,), 1.5))


def arena_that_is_refused_to_one_rank():
    """After the ranks have met: the others wait for its commit, and hear that it left."""
    state, bucket = cgx.torch.HookState(), FakeBucket([parameter(torch.float32, 8, 8)])
    own = Exchange.register

    def refused(*arguments):
        raise cgx.errors.ArenaFullError("ARENA_FULL: there is no more memory here")

    for failing in (0, 1):
        if RANK == failing:
            Exchange.register = refused
        try:
            cgx.torch.comm_hook(state, bucket).wait()
            raise AssertionError("a rank without memory cannot train")
        except RuntimeError as error:
            assert "there is no more memory here" in str(error), error
            assert f"rank {failing} on " in str(error) or RANK == failing, error
            assert "process group anew" not in str(error), error
        assert isinstance(cgx.torch.last_error(state), cgx.errors.ArenaFullError)
        Exchange.register = own
    assert torch.equal(cgx.torch.comm_hook(state, bucket).wait(), torch.full((64,), 1.5))


def rank_that_shuts_down_alone():
    """Its process lives, and so does the process group."""
    state, bucket = cgx.torch.HookState(), FakeBucket([parameter(torch.float32, 8, 8)])
    cgx.torch.comm_hook(state, bucket).wait()
    dist.barrier()
    if RANK == 1:
        cgx.torch.shutdown()
    else:
        try:
            cgx.torch.comm_hook(state, bucket).wait()
            raise AssertionError("rank 1 has left")
        except RuntimeError as error:
            assert "rank 1 left communicator" in str(error), error
            assert "process lives, call cgx.torch.shutdown() on all ranks" in str(error), error
        cgx.torch.shutdown()
    dist.barrier()
    assert torch.equal(cgx.torch.comm_hook(state, bucket).wait(), torch.full((64,), 1.5))


def no_daemon_on_one_rank():
    if RANK == 1:
        os.environ["CGX_SOCKET"] = "/nowhere/cgxd.sock"
    model = DistributedDataParallel(torch.nn.Linear(32, 8))
    try:
        cgx.torch.register(model)
        model(batch(0)).sum().backward()
        raise AssertionError("a rank without a daemon cannot train")
    except RuntimeError as error:
        assert "no daemon answers at /nowhere/cgxd.sock on " in str(error), error
        assert "rank 1 on " in str(error) or RANK == 1, error
