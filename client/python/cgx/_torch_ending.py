"""An exception that ends a process before its first pass is over, told to the ranks that wait for it, or will.

It is the script's own, so that no other rank knows of it. A process that is killed tells nothing, nor does one that ends
without an exception. torchrun's agents end the other ranks themselves, and keep a store in which the word would stay.
"""

import contextlib
import datetime
import os
import sys
from multiprocessing import util

import torch.distributed as dist

from cgx._torch_failure import tell_end
from cgx._torch_group import default_store
from cgx.errors import RankLostError

_STORE_S = 3.0  # its own time-out would hold up the process's end, where the store has gone
_armed_in = None  # the process


def when_this_process_ends(tell):
    """Calls it then, once however often it is asked. Processes of multiprocessing end without atexit."""
    global _armed_in
    if _armed_in != os.getpid():
        _armed_in = os.getpid()
        util.Finalize(None, tell, exitpriority=100)


def tell_others(states):
    """Of those that have never joined. Nothing is raised: the process ends."""
    error = _ends_with()
    if error is None or "TORCHELASTIC_RUN_ID" in os.environ:
        return
    for state in states:
        with contextlib.suppress(Exception):  # the group was destroyed, or the store has gone
            place = state.awaited_in()
            if place is not None and dist.is_initialized():
                default_store().set_timeout(datetime.timedelta(seconds=_STORE_S))
                tell_end(*place, RankLostError("RANK_LOST: its process ended before its first backward pass was over: "
                                               f"{type(error).__name__}: {error}"))


def _ends_with():
    """What the interpreter has just printed, or multiprocessing is about to."""
    error = getattr(sys, "last_value", None) or sys.exc_info()[1]
    return error.__context__ if isinstance(error, SystemExit) else error
