"""What a hook tells the person who trains: on rank 0 a line at the start, and a warning when signal is lost; on the lowest
of the ranks that have come, who is awaited.
"""

import contextlib
import os
import sys
import time
import warnings

from cgx._report import report, warning_of
from cgx._torch_failure import missing_where_this_rank_speaks, raise_others_failure, ranks_named

_FIRST_LOOK, _LOOKS_APART = 60, 4  # passes: 60, 240, 960, ...: codecs are measured every 50 steps by default
_AWAITED_S = 5.0  # then as long again, twice as long, ...


class SignalLossWarning(RuntimeWarning):
    """Little of a layer's gradients reaches the other machines."""


class Telling:
    """Of one communicator. announce: None: unless $CGX_QUIET is 1.

    What keeps it from telling fails no pass: the other ranks would wait in theirs. Only the warning may be an error.
    """

    def __init__(self, announce):
        self.announce = os.environ.get("CGX_QUIET") != "1" if announce is None else announce
        self._look_at, self._passes, self._warned = _FIRST_LOOK, 0, set()
        self._has_complained = False

    def joined(self, communicator):
        if self.announce and communicator.rank == 0:
            known = self._known(communicator)
            if known is not None:
                _say(known.line())

    def pass_begins(self, communicator):
        self._passes += 1
        if self._passes < self._look_at or communicator.rank != 0:
            return
        self._look_at *= _LOOKS_APART
        known = self._known(communicator) if self.announce else None
        if known is not None:
            self._warn(known.losing())

    def _known(self, communicator):
        """None where the daemon does not answer as this package understands."""
        try:
            return report(communicator)
        except Exception as error:
            if not self._has_complained:
                _say(f"cgx: there is no report of communicator {communicator.name}: {type(error).__name__}: {error}")
            self._has_complained = True
            return None

    def _warn(self, losing):
        news = [layer for layer in losing if layer.name not in self._warned]
        self._warned.update(layer.name for layer in news)
        if news:
            warnings.warn(warning_of(news), SignalLossWarning, stacklevel=2)


class Awaiting:
    """One rank's wait for the others to join in attempt `name`."""

    def __init__(self, group, name, communicator, announce):
        self._group, self._name, self._communicator, self._announce = group, name, communicator, announce
        self._began, self._says_after = time.monotonic(), _AWAITED_S

    def look(self):
        """Some times a second. Raises what another rank says keeps it from joining."""
        raise_others_failure(self._group, self._name)
        waited = time.monotonic() - self._began
        if self._announce and waited >= self._says_after:
            self._says_after = 2 * waited
            missing = missing_where_this_rank_speaks(self._group, self._name)
            if missing:
                _say(f"cgx: communicator {self._communicator} has waited {waited:.0f} s for {ranks_named(missing)}: "
                     "ranks join at the end of a backward pass")


def _say(line):
    with contextlib.suppress(OSError, ValueError):  # whoever read it has gone, or it is closed
        print(line, file=sys.stderr, flush=True)
