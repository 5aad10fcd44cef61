"""What keeps one rank from joining, told to the others while they wait for it: through the store they meet in.

`name`: of an attempt to join, which all ranks count alike.
"""

import re
import socket
import time

import torch.distributed as dist

from cgx import errors
from cgx._torch_group import default_store, look, put

_LINGER_S = 3.0  # a rank that ends may take the store with it: the others get so long to hear why
_PAUSE_S = 0.02
_HOSTS_NAMED = 64
_RANKS_NAMED = 8
_LEFT = " left communicator "  # what daemons say of a rank that has closed it
# What a communicator ends with: where all ranks are still there they meet again by themselves.
MEETS_AGAIN = (errors.DaemonLostError, errors.PeerLostError, errors.DeviceLostError)
_NEEDS_A_CHECKPOINT = (errors.StepLostError, errors.ReplicaDivergedError)
ENDS = (errors.RankLostError, *MEETS_AGAIN, *_NEEDS_A_CHECKPOINT)
RESTORE = "load a checkpoint on all ranks, then call cgx.torch.shutdown() on all ranks, before training goes on"
NO_UPDATE = "no rank made that update (then no checkpoint is needed)"


def where_we_are(group):
    return f"rank {dist.get_rank(group)} on {socket.gethostname()}"


def advice_after(error, is_refused):
    """What to do about it. is_refused: the communicator does not redo what failed, whatever the reason."""
    if isinstance(error, errors.RankLostError):
        if _LEFT not in str(error):
            return "; make the process group anew before training goes on"
        return ("; where that rank's process lives, call cgx.torch.shutdown() on all ranks before training goes "
                "on, else make the process group anew")  # the group lives with the process
    if (is_refused or isinstance(error, _NEEDS_A_CHECKPOINT)) and RESTORE not in str(error):
        return f"; {RESTORE}"
    return ""


def tell_failure(group, name, error, leave=None):
    """Tells the ranks that wait for this one in attempt `name` why it does not come; waits a moment for them.

    leave: called once the reason is stored, for those who hear of it by that alone. Returns what the error does not say
    itself: which rank is on which machine.
    """
    store = default_store()
    if store is None:
        return ""
    hosts = ""
    try:
        hosts = _hosts(store, group, name)
        _tell(store, group, name, error, hosts)
        if leave is not None:
            leave()
        _linger(store, name, _others(group))
    except RuntimeError:  # the store has gone with another rank
        pass
    return hosts


def tell_end(group, name, error):
    """As tell_failure, in a process that ends: waits for those that have come already, but for no others.

    Of several that end, only the first one does, and the one that serves the store.
    """
    store = default_store()
    if store is None:
        return
    is_first = look(store, _key(name)) is None
    if is_first:
        _tell(store, group, name, error, _hosts(store, group, name))
    if is_first or dist.get_rank(group) == 0:
        _linger(store, name, [rank for rank in _others(group) if _has_come(store, name, rank)])


def _tell(store, group, name, error, hosts):
    put(store, _heard(name, dist.get_rank(group)), "1")  # it has an error of its own
    if look(store, _key(name)) is None:  # the first one counts
        said = f"{type(error).__name__} {where_we_are(group)} cannot take part: {error}{hosts}"
        put(store, _key(name), said.encode().hex())


def _linger(store, name, ranks):
    """Until they have heard."""
    deadline = time.monotonic() + _LINGER_S
    while ranks and time.monotonic() < deadline:
        ranks = [rank for rank in ranks if look(store, _heard(name, rank)) is None]
        time.sleep(_PAUSE_S)


def _others(group):
    return [rank for rank in range(dist.get_world_size(group)) if rank != dist.get_rank(group)]


def introduce(group, name, passes):
    """Says where this rank is and how many passes it has completed, for what is said about it."""
    store = default_store()
    if store is not None:
        put(store, _host(name, dist.get_rank(group)), socket.gethostname().encode().hex())
        put(store, _passes(name, dist.get_rank(group)), str(passes))


def missing_where_this_rank_speaks(group, name):
    """The ranks that have not introduced themselves; none where a lower one has, which says it for all."""
    store, own = default_store(), dist.get_rank(group)
    if store is None or any(_has_come(store, name, rank) for rank in range(own)):
        return []
    above = range(own + 1, dist.get_world_size(group))
    return [*range(own), *(rank for rank in above if not _has_come(store, name, rank))]


def _has_come(store, name, rank):
    return look(store, _passes(name, rank)) is not None


def lost_pass(group, name, mismatch):
    """The daemons' MISMATCH as what it is where the ranks have not completed the same passes; else itself."""
    store, by_count = default_store(), {}
    try:
        for rank in range(dist.get_world_size(group)) if store is not None else ():
            passes = look(store, _passes(name, rank))
            if passes is not None:
                by_count.setdefault(int(passes), []).append(rank)
    except RuntimeError:  # the store has gone
        return mismatch
    if len(by_count) > 1:
        who = " and ".join(f"{passes} on {ranks_named(ranks)}" for passes, ranks in sorted(by_count.items(), reverse=True))
        said = (f"the ranks have not completed the same number of passes, but {who}, so their parameters differ unless "
                f"{NO_UPDATE} ({mismatch})")
    elif store is None and _first_steps_differ(mismatch):
        said = f"the ranks may not have completed the same number of passes, which is their first step ({mismatch})"
    else:
        return mismatch
    return errors.StepLostError(f"STEP_LOST: {said}; {RESTORE}")


def _first_steps_differ(mismatch):
    steps = re.search(r"first step (\d+) against (\d+)", str(mismatch))
    return steps is not None and steps[1] != steps[2]


def ranks_named(ranks):
    named = ", ".join(map(str, ranks[:_RANKS_NAMED]))
    more = f" and {len(ranks) - _RANKS_NAMED} more" if len(ranks) > _RANKS_NAMED else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {named}{more}"


def _hosts(store, group, name):
    """"; rank 0 is on a, rank 1 on b": daemons know each other by addresses, which may not tell."""
    known = {}
    for rank in range(min(dist.get_world_size(group), _HOSTS_NAMED)):
        host = look(store, _host(name, rank))
        if host is not None:
            known[rank] = bytes.fromhex(host.decode()).decode(errors="replace")
    if len(set(known.values())) < 2:
        return ""
    return " (" + ", ".join(f"rank {rank} is on {host}" for rank, host in known.items()) + ")"


def raise_others_failure(group, name):
    """Raises what another rank has told."""
    store = default_store()
    if store is None:
        return
    told = look(store, _key(name))
    if told is None:
        return
    kind, text = bytes.fromhex(told.decode()).decode(errors="replace").split(" ", 1)
    put(store, _heard(name, dist.get_rank(group)), "1")
    named = getattr(errors, kind, errors.CgxError)
    raise (named if issubclass(named, errors.CgxError) else errors.CgxError)(text)


def _key(name):
    return f"cgx/{name}/failed"


def _host(name, rank):
    return f"cgx/{name}/host/{rank}"


def _passes(name, rank):
    return f"cgx/{name}/passes/{rank}"


def _heard(name, rank):
    return f"cgx/{name}/heard/{rank}"
