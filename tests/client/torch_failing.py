"""Scenarios of torch_ranks.py: passes that failed on some ranks only, and states that cannot go on."""

import contextlib
import traceback

import torch
import torch.distributed as dist

import cgx.torch
import cgx._torch_failure
from cgx._torch_exchange import Exchange, Part
from cgx._torch_group import is_lost
from torch_living import DaemonAnew, assert_pass, assert_pass_fails, buckets
from torch_scene import RANK


@contextlib.contextmanager
def raising(owner, name, error):
    """What is called so fails: Part.fulfil loses the results on their way to DDP, behind a step that is over."""
    def fail(*_):
        raise error

    own = getattr(owner, name)
    setattr(owner, name, fail)
    try:
        yield
    finally:
        setattr(owner, name, own)


def assert_pass_fails_on_rank_0(state, passing, error):
    if RANK == 0:
        with raising(Part, "fulfil", error):
            assert_pass_fails(state, passing, type(error))
    else:
        assert_pass(state, passing)
    dist.barrier()


def assert_step_lost(state, passing, *words):
    """And again, until all ranks say that their parameters are the same."""
    for _ in range(2):
        assert_pass_fails(state, passing, cgx.errors.StepLostError)
        text = str(cgx.torch.last_error(state))
        for word in (*words, "STEP_LOST", "load a checkpoint on all ranks", "cgx.torch.shutdown() on all ranks"):
            assert word in text, text


def pass_that_one_rank_lacks_after_its_daemon_was_lost():
    """Of two machines. Rank 1 has made an update that rank 0 has not: both must be told, for ever."""
    state, passing = cgx.torch.HookState(), buckets(torch.float32, torch.float32)
    for _ in range(2):
        assert_pass(state, passing)
    assert_pass_fails_on_rank_0(state, passing, cgx.errors.DaemonLostError("DAEMON_LOST: as if it had ended here"))
    with DaemonAnew() as daemon:
        daemon.start()
        if RANK == 0:
            assert is_lost(state._exchange.session)
        else:
            assert_pass_fails(state, passing, cgx.errors.PeerLostError)
        assert_step_lost(state, passing, "3 on rank 1 and 2 on rank 0")
        dist.barrier()
        cgx.torch.shutdown()
        for _ in range(2):
            assert_pass(state, passing)
        cgx.torch.shutdown()
        dist.barrier()


def daemon_lost_behind_a_pass_that_all_have():
    """Passes go on being counted where the ranks meet again: once after a pass that all have, once after one that failed."""
    state, passing = cgx.torch.HookState(), buckets(torch.float32, torch.float32)
    for _ in range(3):
        assert_pass(state, passing)
    with DaemonAnew() as daemon:
        daemon.start()
        assert_pass_fails(state, passing, (cgx.errors.DaemonLostError, cgx.errors.PeerLostError))
        for _ in range(2):
            assert_pass(state, passing)
        assert state._exchange.first_step == 3 and state.epoch_of(4) is not None and state.epoch_of(5) is None
        state.drop_step()
        assert_pass(state, passing)
        cgx.torch.shutdown()
        dist.barrier()


def pass_that_one_rank_lacks_while_all_live():
    state, passing = cgx.torch.HookState(), buckets(torch.float32)
    assert_pass(state, passing)
    assert_pass_fails_on_rank_0(state, passing, ArithmeticError("the copy has failed"))
    if RANK == 0:
        assert_step_lost(state, passing, "go on with pass 2", "this one with 1", "the copy has failed")
    else:
        assert_pass_fails(state, passing, cgx.errors.RankLostError)
    dist.barrier()
    cgx.torch.shutdown()
    dist.barrier()
    assert_pass(state, passing)


def mismatch_without_a_store():
    """As with MPI: the daemons' words are all that tells what differs."""
    cgx._torch_failure.default_store = lambda: None
    for steps, kind in (("8 against 7", cgx.errors.StepLostError), ("8 against 8", cgx.errors.MismatchError)):
        mismatch = cgx.errors.MismatchError(f"MISMATCH: rank 1 describes it differently (size 2 against 3, first step {steps}, ...)")
        said = cgx._torch_failure.lost_pass(None, "any", mismatch)
        assert type(said) is kind and f"first step {steps}" in str(said), said


def end_of_a_communicator_says_what_to_do():
    """Each on all ranks, and without a look at the step. What is made anew under the name joins then."""
    passing, why = buckets(torch.float32), "as if its communicator had ended"
    for kind in (cgx.errors.StepLostError, cgx.errors.ReplicaDivergedError, cgx.errors.MismatchError):
        state, error = cgx.torch.HookState(name="ending"), kind(why)
        assert_pass(state, passing)
        with raising(Exchange, "redo", kind(why)):
            with raising(Part, "fulfil", error):
                assert_pass_fails(state, passing, kind)
            for _ in range(2):
                assert_pass_fails(state, passing, kind)
                text = str(cgx.torch.last_error(state))
                assert text.count("then call cgx.torch.shutdown() on all ranks") == 1, text
        assert_pass(again := cgx.torch.HookState(name="ending"), passing)
        again.close()
        dist.barrier()


def worker_lost():
    """A new communicator gets a new worker: the hook meets again."""
    state, passing, error = cgx.torch.HookState(), buckets(torch.float32), cgx.errors.DeviceLostError("the worker has ended")
    assert_pass(state, passing)
    with raising(Exchange, "redo", error):
        with raising(Part, "fulfil", error):
            assert_pass_fails(state, passing, cgx.errors.DeviceLostError)
        assert_pass(state, passing)
    assert state._exchange.first_step == 1


def shutdown_goes_through_all():
    """What one communicator raises while it is closed, another's does not, and each state can join anew."""
    states, passing = [cgx.torch.HookState() for _ in range(4)], buckets(torch.float32)
    for state in states:
        assert_pass(state, passing)
    session = states[0]._exchange.session
    dist.barrier()

    def stuck():
        raise cgx.errors.TimedOutError("TIMED_OUT: a stream is stuck")

    states[0]._exchange.close = states[2]._exchange.communicator.close = session.before_close(stuck) or stuck
    try:
        cgx.torch.shutdown()
    except cgx.errors.TimedOutError as error:
        assert "a stream is stuck" in str(error), error
    else:
        raise AssertionError("nobody hears that a stream is stuck")
    assert [state._exchange for state in states] == [None] * 4
    assert not session.is_open
    dist.barrier()
    for state in states:
        assert_pass(state, passing)


def state_made_again_where_it_could_not_be():
    """On rank 1, whose daemon comes later: the state is still the first one there."""
    passing = buckets(torch.float32)
    if RANK == 1:
        error = cgx.errors.UnavailableError("no daemon answers yet")
        with raising(cgx.torch, "shared_session", error), contextlib.suppress(cgx.errors.UnavailableError):
            cgx.torch.HookState()
    state = cgx.torch.HookState(timeout=10)
    if RANK == 0:
        assert_pass_fails(state, passing, cgx.errors.UnavailableError)
    assert_pass(state, passing)
    assert_pass(cgx.torch.HookState(timeout=10), passing)


def depth(error):
    return len(traceback.extract_tb(error.__traceback__))


def failed_pass_of_many_buckets():
    """What it failed with is raised for each of them, and does not grow by that."""
    state, passing = cgx.torch.HookState(gradient_unit=lambda: 1 / 0), buckets(*[torch.float32] * 100)
    for _ in range(3):
        assert_pass_fails(state, passing, ZeroDivisionError)
        for _ in range(30):
            with contextlib.suppress(ZeroDivisionError), cgx.torch.typed_errors(state):
                raise RuntimeError(str(state.error))
        assert 0 < depth(state.error) < 20, depth(state.error)
    state.gradient_unit = None
    assert_pass(state, passing)
    assert_pass_fails_on_rank_0(state, passing, ArithmeticError("the copy has failed"))
    if RANK == 0:
        for _ in range(30):
            assert_step_lost(state, passing)
        assert depth(state.error) < 20, depth(state.error)
    dist.barrier()
