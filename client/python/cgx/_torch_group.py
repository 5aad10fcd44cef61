"""Where a hook's ranks meet: their process group, torch's store, the job they agree on and the session they share."""

import contextlib
import hashlib
import os
import threading
import time
import uuid
import weakref

import torch.distributed as dist

from cgx.errors import CgxError, MismatchError, RankLostError, TimedOutError
from cgx.session import Session

_JOB_KEY = "cgx/job"
_LOOK_S, _LOOKS_S = 0.2, 1.0
_PAUSE_S = 0.01

_ordinals = weakref.WeakKeyDictionary()  # process group -> how many hook states it has had: the same on all its ranks
_attempts = weakref.WeakKeyDictionary()  # process group -> {name of a communicator: how often its ranks tried to join it}
_made_up = {}  # process -> what its job is called where nothing names it, also over the next store
_sessions = {}  # process -> (job, session): a forked child opens its own
_lock = threading.RLock()  # a handler of signals may interrupt its own thread anywhere


def whole_group(group=None):
    return group if group is not None else dist.distributed_c10d._get_default_group()


def _names():
    """{group: name}; both places are private, so a group may also be unknown."""
    c10d = dist.distributed_c10d
    return getattr(c10d, "_pg_names", None) or getattr(getattr(c10d, "_world", None), "pg_names", {})


def next_name(group):
    """Of a group's next communicator. Every rank of it makes its hook states in the same order."""
    group = whole_group(group)
    with _lock:
        number = _ordinals.get(group, 0)
        _ordinals[group] = number + 1
    return f"ddp-{_names().get(group) or 'group'}-{number}"


def given_name(group, name):
    """Of a communicator that a user names: groups of other ranks have another one, else ranks of both would meet."""
    ranks = ranks_of(group)
    return name if ranks is None else f"{name}-{hashlib.sha256(str(ranks).encode()).hexdigest()[:12]}"


def give_back_name(group):
    """Of a state that could not be made: whoever tries again here means the same one as the other ranks."""
    with _lock:
        _ordinals[whole_group(group)] -= 1


def attempt_at(group, name):
    """The name of the next attempt to join. States of one name count on: the store still has what was told in earlier ones."""
    return f"{name}/{_attempts_of(group).get(name, 0)}"


def count_attempt(group, name):
    with _lock:
        counts = _attempts_of(group)
        counts[name] = counts.get(name, 0) + 1


def _attempts_of(group):
    return _attempts.setdefault(whole_group(group), {})


def reference_to(group):
    """Of what next_name() counts for, as it was then: the world may be another one later."""
    return weakref.ref(whole_group(group))


def lives(reference):
    """Whether a group has not been destroyed; of one that is not known yet, too."""
    group = None if reference is None else reference()
    return reference is None or any(each is group for each in list(_names()))


def ranks_of(group):
    """A group's ranks in the world, by their rank in it; None for the world itself."""
    group = whole_group(group)
    if group is whole_group():
        return None
    return [dist.get_global_rank(group, rank) for rank in range(dist.get_world_size(group))]


def world_size():
    return dist.get_world_size(whole_group())


def group_of(ranks):
    """A group of this process with these ranks; None, the default group, for the world."""
    if ranks is None:
        return None
    for group in list(_names()):
        if ranks_of(group) == ranks:
            return group
    raise ValueError(f"this hook state was pickled for a process group of ranks {ranks}; make that group first")


# The store


def default_store():
    return getattr(dist.distributed_c10d, "_get_default_store", lambda: None)()


@contextlib.contextmanager
def _asking(store):
    """What the store raises where it has gone, as the loss of who serves it. One that only takes too long is there."""
    try:
        yield
    except RuntimeError as error:
        said, tcp = str(error).split("\n")[0], _tcp_store(store)
        if tcp is None or "timeout" in said.lower():
            raise
        server = "torchrun" if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True" else "rank 0"
        raise RankLostError(f"RANK_LOST: torch's store at {tcp.host}:{tcp.port} has gone ({said}): {server}, which serves it, "
                            "has probably ended") from None


def _tcp_store(store):
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    return store if isinstance(store, dist.TCPStore) else None


def _checks(store):
    """Torch 1.13 cannot say what is there: a counter beside each value does. Its compare_set would tell, too, but makes a Python
    object while other threads run, and so ends the process now and then."""
    return hasattr(store, "check")


def _counter(key):
    return key + "/put"


def put(store, key, value):
    with _asking(store):
        store.set(key, value)
        if not _checks(store):
            store.add(_counter(key), 1)


def look(store, key):
    """What the store has for a key now. store.get would wait, and hold up whoever else uses the store."""
    with _asking(store):
        there = store.check([key]) if _checks(store) else store.add(_counter(key), 0) > 0
        return store.get(key) if there else None


def put_first(store, key, value):
    """What the first rank to come has put there."""
    if _checks(store):
        with _asking(store):
            return store.compare_set(key, "", value)
    with _asking(store):
        is_first = store.add(key + "/ranks", 1) == 1
    if is_first:
        put(store, key, value)
    while (there := look(store, key)) is None:
        time.sleep(_PAUSE_S)
    return there


def rendezvous(group):
    """put and get over torch's own store, or one that rank 0 makes when torch has none (MPI)."""
    store = default_store() or _store_of_its_own(group)

    def get(key):
        value = look(store, key)
        return None if value is None else bytes.fromhex(value.decode())

    return (lambda key, value: put(store, key, value.hex())), get


def _store_of_its_own(group):
    """A TCP store at the group's rank 0, which tells the others where it is."""
    rank, place = dist.get_rank(group), [None]
    store = None
    if rank == 0:
        host = os.environ.get("MASTER_ADDR") or "127.0.0.1"
        store = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False)
        place = [(host, store.port)]
    dist.broadcast_object_list(place, src=(ranks_of(group) or [0])[0], group=group)
    return store or dist.TCPStore(*place[0], is_master=False, wait_for_workers=False)


# The job and its session


def _own_job(store):
    """Tells apart jobs of one user on one machine: $CGX_JOB, else what the launcher calls this run, else a name made here.

    An allocation of Slurm may have several runs at once: each has a step, or a port, of its own.
    """
    environment = os.environ
    if environment.get("CGX_JOB"):
        return environment["CGX_JOB"]
    if environment.get("TORCHELASTIC_RUN_ID", "none") != "none":
        return "torchrun-" + environment["TORCHELASTIC_RUN_ID"]
    if environment.get("SLURM_JOB_ID"):
        step, port = environment.get("SLURM_STEP_ID"), environment.get("MASTER_PORT")
        return f"slurm-{environment['SLURM_JOB_ID']}" + (f".{step}" if step else "") + (f"-{port}" if port else "")
    if environment.get("MASTER_PORT"):
        return f"torch-{environment.get('MASTER_ADDR', '')}-{environment['MASTER_PORT']}"
    if store is None:
        return "default"  # ranks could not agree on another one
    return _made_up.setdefault(os.getpid(), f"torch-{uuid.uuid4().hex[:12]}")


def _agreed_job():
    """The name that the first rank to come gave: machines may spell MASTER_ADDR differently."""
    store = default_store()
    own = _own_job(store)
    if store is None:
        return own
    agreed = put_first(store, _JOB_KEY, own).decode()
    if own == _made_up.get(os.getpid()):
        _made_up[os.getpid()] = agreed
    if os.environ.get("CGX_JOB") and agreed != own:
        raise MismatchError(f"MISMATCH: $CGX_JOB of this rank is {own!r}, another rank calls the job {agreed!r}")
    return agreed


def shared_session():
    """Opened without the lock: a handler of signals may call shutdown() meanwhile, also in a thread that waits here."""
    job = _agreed_job()
    with _lock:
        known = _known_session(job)
    if known is not None:
        return known
    opened = Session(job=job)
    with _lock:
        known = _known_session(job)
        if known is None:
            _sessions[os.getpid()] = (job, opened)
            return opened
    opened.close()  # another thread was faster
    return known


def _known_session(job):
    known, session = _sessions.get(os.getpid(), (None, None))
    return session if session is not None and session.is_open and known == job else None


def drop_shared_session(lost=None):
    """lost: only this one: models that have met again after it share another."""
    with _lock:
        _, session = _sessions.get(os.getpid(), (None, None))
        if session is None or lost not in (None, session):
            return
        del _sessions[os.getpid()]
    session.close()


def is_lost(session):
    """Whether its daemon has gone. Looks for longer than libcgx sleeps between two looks at its socket."""
    seen, deadline = 0, time.monotonic() + _LOOKS_S
    while session.is_open and time.monotonic() < deadline:
        try:
            seen = session.poll(seen, _LOOK_S)  # other events, and the loss itself, end a look
        except TimedOutError:
            return False
        except CgxError:
            return True
    return not session.is_open


def _renew_lock():
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_renew_lock)
