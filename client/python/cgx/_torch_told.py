"""What a hook tells the person who trains, on rank 0 only: a line at the start, a warning when signal is lost."""

import contextlib
import os
import sys
import warnings

from cgx._report import report, warning_of

_FIRST_LOOK, _LOOKS_APART = 60, 4  # passes: 60, 240, 960, ...: codecs are measured every 50 steps by default


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


def _say(line):
    with contextlib.suppress(OSError, ValueError):  # whoever read it has gone, or it is closed
        print(line, file=sys.stderr, flush=True)
