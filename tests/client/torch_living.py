"""Scenarios of torch_ranks.py: how ranks meet, part and fail, and what users see of it."""

import copy
import gc
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import weakref

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import cgx
import cgx.torch
import torch_accelerator
from cgx._torch_exchange import Part
from torch_scene import DEVICE, RANK, CastBucket, FakeBucket, Net, assert_equal, batch, gradients, make, parameter


def state_survives_pickling():
    model, state = make(True)
    model(batch(0)).square().mean().backward()
    again = pickle.loads(pickle.dumps(state))
    assert again.name == state.name
    copy.deepcopy(model.module)
    state.close()
    result = cgx.torch.comm_hook(again, FakeBucket([parameter(torch.float32, 5)])).wait()
    assert (result == 1.5).all()


def models_are_copied_with_a_session_of_their_states_own():
    """Newer torch keeps the hook's state in the model. The original trains on; a copy's state joins in the same session."""
    with cgx.Session() as session:
        model, theirs = make(False)[0], make(False)[0]
        state = cgx.torch.register(model, session=session, gradient_unit=lambda: 1.0)
        for step in range(3):
            for each in (model, theirs):
                each.zero_grad()
                each(batch(step)).square().mean().backward()
            assert_equal(gradients(model), gradients(theirs))
            copied = copy.deepcopy(model)
            copied(batch(step)).square().mean().backward()  # over gloo
            assert_equal(gradients(copied), gradients(theirs))
        again = copy.deepcopy(state)
        assert (again.name, again.gradient_unit) == (state.name, state.gradient_unit)
        state.close()
        assert (cgx.torch.comm_hook(again, FakeBucket([parameter(torch.float32, 5)])).wait() == 1.5).all()
        assert again._exchange.session is session
        again.close()


def pickled_state_keeps_its_group():
    groups = [dist.new_group([0, 1]), dist.new_group([2])]
    state = cgx.torch.HookState(process_group=groups[RANK // 2])
    again = pickle.loads(pickle.dumps(state))
    assert pickle.loads(pickle.dumps(again)).__getstate__() == state.__getstate__()  # also before it is used
    result = cgx.torch.comm_hook(again, FakeBucket([parameter(torch.float32, 5)])).wait()
    assert (result == (1.5 if RANK < 2 else 3)).all(), result
    with cgx.Session() as session:
        try:
            pickle.dumps(cgx.torch.HookState(session=session))
        except TypeError as error:
            assert "session of its own" in str(error), error
        else:
            raise AssertionError("a session cannot be pickled")


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
    for step in range(2, 4):  # the first pass after, and a later one
        try:
            model(batch(step)).square().mean().backward()
        except RuntimeError as error:
            assert "RANK_LOST" in str(error) and "rank 1" in str(error), error
            assert "make the process group anew" in str(error), error
            assert isinstance(cgx.torch.last_error(model), cgx.errors.RankLostError)
        else:
            raise AssertionError("backward went on without rank 1")
    os._exit(0)  # gloo's group is broken


def spelled_differently():
    """Machines whose scripts name the job's first machine in different words."""
    os.environ.update(MASTER_ADDR=["localhost", "127.0.0.1"][RANK], MASTER_PORT="1")
    model, _ = make(True)
    model(batch(0)).square().mean().backward()


def without_a_store():
    """As with MPI: rank 0 of each group makes one."""
    groups = [dist.new_group([0, 2]), dist.new_group([1])]
    dist.distributed_c10d._get_default_store = lambda: None
    group = groups[RANK % 2]
    for state in (cgx.torch.HookState(process_group=group), cgx.torch.HookState()):
        result = cgx.torch.comm_hook(state, FakeBucket([parameter(torch.float32, 5)])).wait()
        assert (result == 2).all(), result


def two_jobs_at_once():
    """Of two ranks each, which meet over files: nothing in the environment tells them apart."""
    for name in ("MASTER_ADDR", "MASTER_PORT", "SLURM_JOB_ID"):
        os.environ.pop(name, None)
    job, folder, passing = RANK // 2, sys.argv[4], buckets(torch.float32)
    dist.barrier()
    dist.destroy_process_group()
    dist.init_process_group("gloo", init_method=f"file://{folder}/job{job}", rank=RANK % 2, world_size=2)
    state = cgx.torch.HookState()
    for count in range(3):
        result = cgx.torch.comm_hook(state, passing[0]).wait()
        assert (result == 1.5 + 2 * job).all(), result
        open(os.path.join(folder, f"{count}.{RANK}"), "w").close()
        end = time.monotonic() + 40
        while not all(os.path.exists(os.path.join(folder, f"{count}.{rank}")) for rank in range(4)):
            assert time.monotonic() < end, "the other job does not train"
            time.sleep(0.01)


def job_named_differently():
    os.environ["CGX_JOB"] = "one" if RANK == 0 else "two"
    if RANK == 1:
        dist.barrier()
    try:
        cgx.torch.HookState()
    except cgx.errors.MismatchError as error:
        assert RANK == 1 and "'two'" in str(error) and "'one'" in str(error), error
    else:
        assert RANK == 0
    if RANK == 0:
        dist.barrier()


def extra_state_on_one_rank():
    if RANK == 0:
        cgx.torch.HookState()
    state = cgx.torch.HookState(timeout=2)
    begin = time.monotonic()
    try:
        cgx.torch.comm_hook(state, FakeBucket([parameter(torch.float32, 5)])).wait()
    except Exception as error:
        for words in ("joining communicator", f"rank {1 - RANK}", "the order they are made in"):
            assert words in str(error), error
    else:
        raise AssertionError("the ranks' states do not belong together")
    assert time.monotonic() - begin < 20
    assert isinstance(cgx.torch.last_error(state), cgx.errors.TimedOutError)


def two_models_in_two_threads():
    """Rank 1 begins with the other model, and takes up the first when that one has gone through."""
    states = [cgx.torch.HookState(name=name) for name in ("first", "second")]
    results = {}

    def train(model):
        bucket = FakeBucket([parameter(torch.float32, 5 + model)])
        for _ in range(3):
            results[model] = cgx.torch.comm_hook(states[model], bucket).wait()

    threads = [threading.Thread(target=train, args=(model,), daemon=True) for model in (0, 1)]
    threads[RANK].start()
    if RANK == 1:
        threads[1].join(60)
    threads[1 - RANK].start()
    for thread in threads:
        thread.join(60)
    assert all((results[model] == 1.5).all() for model in (0, 1)), results


def no_daemon():
    os.environ["CGX_SOCKET"] = os.path.join(sys.argv[4], "nobody.sock")
    try:
        cgx.torch.HookState()
    except cgx.errors.UnavailableError as error:
        assert "nobody.sock" in str(error), error
    else:
        raise AssertionError("there is no daemon")


def daemon_started_anew():
    """The hook meets again by itself, while the processes and their group live."""
    model, state = make(True)
    for step in range(2):
        model(batch(step)).square().mean().backward()
    with DaemonAnew() as daemon:
        try:
            for _ in range(100):  # until it is noticed
                model(batch(2)).square().mean().backward()
        except RuntimeError as error:
            assert "DAEMON_LOST" in str(error), error
            assert isinstance(cgx.torch.last_error(state), cgx.errors.DaemonLostError)
        else:
            raise AssertionError("backward went on without a daemon")
        dist.barrier()
        daemon.start()
        theirs, _ = make(False)
        for step in range(3, 6):
            for each in (model, theirs):
                each.zero_grad()
                each(batch(step)).square().mean().backward()
            assert_equal(gradients(model), gradients(theirs))
        assert cgx.torch.last_error(state) is None
        cgx.torch.shutdown()
        dist.barrier()


class DaemonAnew:
    """Rank 0's daemon, killed; another after start(). All ranks call both."""

    def __enter__(self):
        self._process = None
        dist.barrier()
        if RANK == 0:
            os.kill(int(os.environ["CGX_TEST_DAEMON_PID"]), signal.SIGKILL)
        return self

    def start(self):
        path = os.environ["CGX_SOCKET"]
        command = [os.path.join(os.environ["CGX_BUILD_DIR"], "bin", "cgxd"), "--socket", path, "--set",
                   f"run_directory={os.path.dirname(path)}"]
        if RANK == 0:
            if os.path.exists(path):
                os.unlink(path)
            while not os.path.exists(path):
                if self._process is None or self._process.poll() is not None:  # the killed one was not gone yet
                    self._process = subprocess.Popen(command)
                time.sleep(0.01)
        dist.barrier()

    def __exit__(self, *error):
        if self._process is not None:
            self._process.terminate()
            self._process.wait()


def daemon_started_anew_before_the_first_pass():
    """The session was opened when the state was made."""
    state, passing = cgx.torch.HookState(), buckets(torch.float32)
    with DaemonAnew() as daemon:
        daemon.start()
        assert_pass_fails(state, passing, cgx.errors.DaemonLostError)
        assert_pass(state, passing)
        cgx.torch.shutdown()
        dist.barrier()


def daemon_started_anew_on_one_machine():
    """Of two. Each model meets again at its own time, in one session: that of rank 1 lives throughout."""
    first, second, passing = cgx.torch.HookState(), cgx.torch.HookState(), buckets(torch.float32)
    lost = (cgx.errors.DaemonLostError, cgx.errors.PeerLostError)
    for state in (first, second):
        assert_pass(state, passing)
    session = first._exchange.session
    third = cgx.torch.HookState()
    with DaemonAnew() as daemon:
        daemon.start()
        for state in (second, first, third):
            assert_pass_fails(state, passing, lost)
        for state in (first, second, third, first, second):
            assert_pass(state, passing)
        assert {state._exchange.session for state in (first, second, third)} == {first._exchange.session}
        assert session.is_open == (RANK == 1)
        cgx.torch.shutdown()
        dist.barrier()


def model_made_again_after_the_daemon_was_started_anew():
    state, passing = cgx.torch.HookState(name="again"), buckets(torch.float32)
    assert_pass(state, passing)
    with DaemonAnew() as daemon:
        daemon.start()
        assert_pass_fails(state, passing, cgx.errors.DaemonLostError)
        assert_pass(cgx.torch.HookState(name="again"), passing)
        cgx.torch.shutdown()
        dist.barrier()


def buckets_of_past_passes_are_freed():
    """DDP makes its buckets anew before the second pass: those of the first are of the size of all gradients."""
    model, _ = make(False)
    state, seen = cgx.torch.HookState(model=model), []

    def hook(state, bucket):
        seen.append(weakref.ref(bucket.buffer()))
        return cgx.torch.comm_hook(state, bucket)

    model.register_comm_hook(state, hook)
    for step in range(4):
        model(batch(step)).square().mean().backward()
        if step == 0:
            first = list(seen)
    gc.collect()
    assert [each() is None for each in first] == [True] * len(first), first
    assert state.report() is not None


def dropped_model_is_forgotten():
    """Nothing of the hook's keeps a state, and with it its communicator, also where no other model joins."""
    for join in (lambda model: cgx.torch.register(model), lambda model: model.register_comm_hook(None, cgx.torch.comm_hook)):
        model = DistributedDataParallel(Net().to(DEVICE))
        join(model)
        model(batch(0)).square().mean().backward()
        state, = cgx.torch._states
        communicator, state = state._exchange.communicator, weakref.ref(state)
        dist.barrier()
        del model
        deadline = time.monotonic() + 20
        while state() is not None and time.monotonic() < deadline:  # the poller may still look at its results
            gc.collect()
            time.sleep(0.01)
        assert state() is None, gc.get_referrers(state())
        assert communicator not in communicator.session.communicators, "it is still joined"
        dist.barrier()


def profiled():
    model, _ = make(True)
    for step in range(3):
        model(batch(step)).square().mean().backward()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        model(batch(3)).square().mean().backward()
    spans = [event for event in profile.events() if event.name == "cgx:all_reduce"]
    assert spans and all(span.is_async for span in spans), spans


def shutdown_and_again():
    model, state = make(True)
    for _ in range(3):
        for step in range(2):
            model(batch(step)).square().mean().backward()
        session = state._exchange.session
        cgx.torch.shutdown()
        assert not session.is_open
        dist.barrier()
    cgx.torch.shutdown()


def shutdown_while_the_session_is_opened():
    """In a handler of signals, which runs in the thread that opens it, and while another thread does."""
    signal.alarm(40)
    own, called = cgx._torch_group.Session, []
    signal.signal(signal.SIGUSR1, lambda *_: called.append(cgx.torch.shutdown()))

    def interrupted(**options):
        os.kill(os.getpid(), signal.SIGUSR1)
        while len(called) < len(opening):
            time.sleep(0.001)
        return own(**options)

    cgx._torch_group.Session, opening = interrupted, [0]
    first = cgx._torch_group.shared_session()
    cgx.torch.shutdown()
    opening.append(1)
    thread = threading.Thread(target=cgx._torch_group.shared_session)
    thread.start()
    while thread.is_alive():
        thread.join(0.01)
    assert called == [None, None] and not first.is_open, called
    signal.alarm(0)


def typed_errors():
    """What torch makes a RuntimeError of is to be had as what it was."""
    state = cgx.torch.HookState()
    model = DistributedDataParallel(Net())
    model.register_comm_hook(state, cgx.torch.comm_hook)
    model(batch(0)).square().mean().backward()
    assert cgx.torch.last_error() is None and cgx.torch.last_error(state) is None
    state.gradient_unit = lambda: 1.0 + RANK
    try:
        with cgx.torch.typed_errors(model):
            model(batch(1)).square().mean().backward()
    except cgx.errors.MismatchError as error:
        assert cgx.torch.last_error(model) is error and "gradient unit" in str(error)
    except cgx.CgxError as error:
        assert cgx.torch.last_error(state) is error, error
    else:
        raise AssertionError("the ranks' units differ")


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
    futures = whole_pass()
    failed = [fails(future) for future in futures]
    # A rank that had not begun the pass is not told: its own meets the other's next one.
    assert all(failed) or (RANK == 0 and not any(failed)), failed
    if all(failed):
        futures = whole_pass()
    assert all((future.wait() == 1.5).all() for future in futures)


def buckets(*dtypes):
    return [FakeBucket([parameter(dtype, 3 + i)], i, i == len(dtypes) - 1) for i, dtype in enumerate(dtypes)]


def error_before_the_first_pass_is_handed_over():
    """Its buckets wait for each other: DDP waits for all of them, so all of them fail."""
    state = cgx.torch.HookState(gradient_unit=lambda: 1024 / 0.0)
    passing = buckets(torch.float32, torch.float32, torch.float16)
    futures = [cgx.torch.comm_hook(state, bucket) for bucket in passing]
    assert [future.done() for future in futures] == [True] * 3, futures
    for future in futures:
        try:
            future.wait()
        except Exception as error:  # torch chooses the class, the text is ours
            assert "the hook's gradient_unit: float division by zero" in str(error), error
        else:
            raise AssertionError("there is no gradient unit")
    assert isinstance(cgx.torch.last_error(state), ZeroDivisionError)


def assert_pass(state, passing):
    futures = [cgx.torch.comm_hook(state, bucket) for bucket in passing]
    assert all((future.wait() == 1.5).all() for future in futures)
    assert cgx.torch.last_error(state) is None


def assert_pass_fails(state, passing, kind, meanwhile=lambda: None):
    """All its buckets."""
    futures = [cgx.torch.comm_hook(state, bucket) for bucket in passing]
    meanwhile()
    for future in futures:
        try:
            future.wait()
        except Exception as error:  # torch chooses the class, the text is ours
            assert str(cgx.torch.last_error(state)) in str(error), error
        else:
            raise AssertionError("the pass has failed")
    assert isinstance(cgx.torch.last_error(state), kind), cgx.torch.last_error(state)


def error_of_one_pass_is_not_the_next_ones():
    """Whether it comes before a step has begun or after its end, and on one rank or on all of them."""
    rate, passing = 0.0, buckets(torch.float32, torch.float32, torch.float16)
    state = cgx.torch.HookState(gradient_unit=lambda: 1024 / rate)
    for _ in range(2):  # the first pass, then a later one
        rate = 0.0
        assert_pass_fails(state, passing, ZeroDivisionError)
        rate = 0.1
        assert_pass(state, passing)

    def warn(_):
        raise cgx.torch.SignalLossWarning("as with -W error")

    state._telling.pass_begins, own = warn, state._telling.pass_begins
    assert_pass_fails(state, passing, cgx.torch.SignalLossWarning)
    state._telling.pass_begins = own
    assert_pass(state, passing)


def all_have_begun(state):
    """The daemon has read what both have handed over: only who has begun a pass is told of its failure."""
    state._exchange.drain()
    assert state._exchange.count(True) == 2


def assert_rank_1_fails(state, passing, its_own, kind):
    """`its_own` is its pass; the other rank, which waits for the rest of that, hears of it, too. Then all go on."""
    if RANK == 1:
        assert_pass_fails(state, its_own, kind, lambda: all_have_begun(state))
    else:
        assert_pass_fails(state, passing, cgx.errors.StepAbandonedError, lambda: all_have_begun(state))
    for _ in range(2):
        assert_pass(state, passing)


def pass_that_fails_in_the_middle_is_redone():
    """On all ranks, then on one."""
    state, passing = cgx.torch.HookState(), buckets(torch.float32, torch.float32)
    wrong = [passing[0], CastBucket(passing[1].parameters(), torch.float64, 1)]
    assert_pass(state, passing)
    assert_pass_fails(state, wrong, ValueError, lambda: all_have_begun(state))
    assert_pass(state, passing)
    assert_rank_1_fails(state, passing, wrong, ValueError)


def pass_whose_copy_fails_is_redone():
    """On one rank: of the first bucket, of which nobody has heard then, and of the last one."""
    state, passing = cgx.torch.HookState(), buckets(torch.float32, torch.float32)
    assert_pass(state, passing)
    if RANK == 1:
        torch_accelerator.EventThatMayFail.fails_at(1)
        assert_pass_fails(state, passing, ArithmeticError)
    assert_pass(state, passing)
    if RANK == 1:
        torch_accelerator.EventThatMayFail.fails_at(2)
    assert_rank_1_fails(state, passing, passing, ArithmeticError)


def what_has_failed_is_not_delivered():
    """The poller may have a result while the main thread fails the pass: DDP may use the memory again by then."""
    part = Part(FakeBucket([parameter(torch.float32, 5)]))
    part.result, part.factor = torch.ones(5), 2.0
    part.fail(ValueError("the pass has failed"))
    part.fulfil()
    assert torch.equal(part.result, torch.ones(5)), part.result


def nothing_waits_for_a_hook_that_a_handler_interrupts():
    """The handler may call shutdown(), which waits for the poller."""
    part = Part(FakeBucket([parameter(torch.float32, 5)]))
    part.result = torch.ones(5)
    for lock, act in ((part._settling, part.fulfil), (part._settling, lambda: part.fail(ValueError("the pass has failed"))),
                      (part._looking, part.look_early)):
        with lock:
            poller = threading.Thread(target=act, daemon=True)
            poller.start()
            poller.join(10)
            assert not poller.is_alive(), act
    part.fulfil()
    assert torch.equal(part.future.wait(), torch.ones(5))
