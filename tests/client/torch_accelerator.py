"""An accelerator made of threads, for ranks of torch_ranks.py: their tensors lie on the CPU, and the hook must not see it.

What is copied on one of its streams is copied later, by the stream's thread. Everything else is what torch.cuda has.
"""

import contextlib
import queue
import random
import threading
import time

import torch

import cgx._torch_device as device
import cgx._torch_exchange as exchange
from cgx._library import library
from cgx.errors import check
from cgx.session import Block

_MOST_S = 0.004


class Stream:
    def __init__(self, device=None):
        self._work, self._random, self._pushed, self._done = queue.SimpleQueue(), random.Random(5), 0, 0
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self):
        while True:
            work = self._work.get()
            time.sleep(self._random.uniform(0, _MOST_S))
            work()
            self._done += 1

    def push(self, work):
        self._pushed += 1
        self._work.put(work)

    def wait_stream(self, other):
        event = Event()
        event.record(other)
        self.push(event.synchronize)

    def synchronize(self):
        event = Event()
        event.record(self)
        event.synchronize()

    def query(self):
        return self._done == self._pushed


class Event:
    def __init__(self):
        self._passed = threading.Event()

    def record(self, stream):
        stream.push(self._passed.set)

    def synchronize(self):
        self._passed.wait()


class EventThatNobodyWaitsFor(Event):
    """Planted: the hook goes on before the copy is over."""

    def synchronize(self):
        pass


class EventThatMayFail(Event):
    """As a device's error, which whoever waits for the copy is told."""

    _waits_left = 0

    @classmethod
    def fails_at(cls, wait):
        cls._waits_left = wait

    def synchronize(self):
        super().synchronize()
        EventThatMayFail._waits_left -= 1
        if EventThatMayFail._waits_left == 0:
            raise ArithmeticError("the copy has failed")


class ArenaThere(Event):
    """The arena lies on the accelerator, and a worker has it."""


class Shared:
    """As device.Shared; a worker waits for the stream before it reads."""

    device = None

    def block(self, session, size):
        return Block(session, size)

    def tensor(self, block, dtype):
        return torch.frombuffer(block.buffer(), dtype=dtype)

    def hand_over(self, communicator, step, ids, places, stream):
        stream.synchronize()
        check(library.cgx_submit_inout(communicator.handle, step, ids, places, places, len(ids)))

    def sum_of(self, communicator, session, value):
        number = session.empty((1,))
        number[0] = value
        return float(communicator.allreduce(number)[0])


class Module:
    """As torch.cuda."""

    def __init__(self, event=Event):
        self.Stream, self.Event = Stream, event
        self._current = Stream()

    def current_stream(self, device):
        return self._current

    def stream(self, stream):
        return contextlib.nullcontext()


def use(event=Event):
    """From now on the hook takes the CPU for an accelerator."""
    module, known = Module(event), {}
    device._module_of = lambda _: module
    device._copy = lambda stream, target, source, _: stream.push(lambda: target.copy_(source))
    if event is ArenaThere:
        device.Accelerator.share = lambda *_: Shared()
    find = exchange.accelerator_of

    def accelerator_of(where):
        if where.type != "cpu":
            return find(where)
        return known.setdefault(where, device.Accelerator(where))

    exchange.accelerator_of = accelerator_of
