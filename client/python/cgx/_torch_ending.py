"""A process that ends before the first pass is over, told to the ranks that wait for it, or will.

What ends it most often is an exception of the script's own, of which no other rank knows. A killed process tells nothing.
"""

import os
import sys
from multiprocessing import util

import torch.distributed as dist

from cgx._torch_failure import tell_end
from cgx.errors import RankLostError

_armed_in = None  # the process


def when_this_process_ends(tell):
    """Calls it then, once however often it is asked. Processes of multiprocessing end without atexit."""
    global _armed_in
    if _armed_in != os.getpid():
        _armed_in = os.getpid()
        util.Finalize(None, tell, exitpriority=100)


def tell_others(group, attempt):
    """They hear it where torch's store is still there. Nothing is raised: the process ends."""
    try:
        if dist.is_initialized():
            tell_end(group, attempt, RankLostError(f"RANK_LOST: its process ended before its first backward pass was over{_why()}"))
    except Exception:  # the group was destroyed, or the store has gone
        pass


def _why():
    """As the interpreter has just printed it."""
    error = getattr(sys, "last_value", None)
    return "" if error is None else f": {type(error).__name__}: {error}"
