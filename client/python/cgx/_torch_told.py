"""What a hook tells the person who trains, on rank 0 only: a line at the start, a warning when signal is lost."""

import os
import sys
import warnings

from cgx._report import report, warning_of

_FIRST_LOOK, _LOOKS_APART = 60, 4  # passes: 60, 240, 960, ...: codecs are measured every 50 steps by default


class SignalLossWarning(RuntimeWarning):
    """Little of a layer's gradients reaches the other machines."""


class Telling:
    """Of one communicator. announce: None: unless $CGX_QUIET is 1."""

    def __init__(self, announce):
        self.announce = os.environ.get("CGX_QUIET") != "1" if announce is None else announce
        self._look_at, self._passes, self._warned = _FIRST_LOOK, 0, set()

    def joined(self, communicator):
        if self.announce and communicator.rank == 0:
            print(report(communicator).line(), file=sys.stderr, flush=True)

    def pass_begins(self, communicator):
        self._passes += 1
        if self._passes < self._look_at or communicator.rank != 0:
            return
        self._look_at *= _LOOKS_APART
        if self.announce:
            self._warn(report(communicator).losing())

    def _warn(self, losing):
        news = [layer for layer in losing if layer.name not in self._warned]
        self._warned.update(layer.name for layer in news)
        if news:
            warnings.warn(warning_of(news), SignalLossWarning, stacklevel=2)
