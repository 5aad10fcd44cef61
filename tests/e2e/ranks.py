"""Ranks that a test drives command by command (rank.c), and jobs made of them.

Every answer is waited for with a deadline, so a test that would hang fails instead, and says what did not come.
"""

import itertools
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass, field

import numpy as np

import sums
from daemons import binary

ANSWER_S = 20.0  # longer than any clock but the communicator's


@dataclass
class Answer:
    command: str
    status: str
    text: str
    began: float
    ended: float
    value: int = 0
    more: dict = field(default_factory=dict)

    @property
    def ok(self):
        return self.status == "OK"

    @property
    def seconds(self):
        return self.ended - self.began

    @staticmethod
    def parse(line):
        members = json.loads(line)
        known = {name: members.pop(name) for name in ("command", "status", "text", "began", "ended", "value")}
        return Answer(**known, more=members)


class Rank:
    """One rank program on the machine of `daemon` (or of `machine`, without a daemon)."""

    def __init__(self, daemon, machine=None, prefix=(), **environment):
        self.daemon = daemon
        self._buffer = b""
        self._asked = []
        machine = machine or daemon.machine
        socket = {"CGX_SOCKET": daemon.socket} if daemon else {}
        self.process = machine.start([*prefix, binary("e2e_rank")], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                     env={**os.environ, **socket, **environment})

    def send(self, *words):
        self._asked.append(" ".join(str(w) for w in words))
        self.process.stdin.write((self._asked[-1] + "\n").encode())
        self.process.stdin.flush()

    def receive(self, timeout_s=ANSWER_S):
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.process.stdout], [], [], left)[0]:
                raise AssertionError(f"no answer to '{self._asked[0]}' within {timeout_s:.0f} s")
            piece = os.read(self.process.stdout.fileno(), 1 << 16)
            if not piece:
                raise AssertionError(f"the rank died at '{self._asked[0]}' (exit {self.process.wait()})")
            self._buffer += piece
        line, self._buffer = self._buffer.split(b"\n", 1)
        self._asked.pop(0)
        answer = Answer.parse(line)
        assert answer.status != "PROGRAM", answer.text
        return answer

    def ask(self, *words, timeout_s=ANSWER_S):
        self.send(*words)
        return self.receive(timeout_s)

    def must(self, *words, timeout_s=ANSWER_S):
        answer = self.ask(*words, timeout_s=timeout_s)
        assert answer.ok, f"{' '.join(str(w) for w in words)}: {answer.status}: {answer.text}"
        return answer

    def kill(self):
        """Returns the moment before the signal."""
        at = time.monotonic()
        self.process.send_signal(signal.SIGKILL)
        return at

    def end(self):
        self.process.stdin.close()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()


@dataclass(frozen=True)
class Tensor:
    name: str
    shape: tuple = (64, 64)
    dtype: str = "fp32"
    op: int = sums.SUM


TENSORS = (Tensor("weight", (300, 41)), Tensor("bias", (41,), op=sums.AVG), Tensor("embedding", (1000, 33), op=sums.AVG))


def own(word, rank):
    """Processes that have met before number their communicators differently: a list has each one's."""
    return word[rank] if isinstance(word, list) else word


class Job:
    """Ranks of one job. `places[rank]` is the index of the daemon that the rank connects to."""

    _numbers = itertools.count(1)

    def __init__(self, daemons, places, name=None, uid=None, arena_bytes=8 << 20, prefix=(), open_now=True):
        self.daemons, self.places = daemons, places
        self.name = name or f"job{next(self._numbers)}"
        self.folder = tempfile.mkdtemp(prefix="cgx-e2e-")
        os.chmod(self.folder, 0o1777)
        self.ranks = [Rank(daemons[place], prefix=prefix) for place in places]
        self.tensors = ()
        self.rack_machines = 0  # as in the policy, where it says two_level
        if uid is not None:
            self.must("become", uid)
        if open_now:
            self.must("open", self.name, "-", arena_bytes)

    # Everybody at once

    def all(self, *words, ranks=None, timeout_s=ANSWER_S):
        """The same words to every rank, then all answers in rank order.

        `%d` is the rank's number; of a list (a communicator's handles) each rank gets its own.
        """
        chosen = range(len(self.ranks)) if ranks is None else ranks
        for rank in chosen:
            self.ranks[rank].send(*(rank if word == "%d" else own(word, rank) for word in words))
        return [self.ranks[rank].receive(timeout_s) for rank in chosen]

    def must(self, *words, ranks=None, timeout_s=ANSWER_S):
        answers = self.all(*words, ranks=ranks, timeout_s=timeout_s)
        for rank, answer in enumerate(answers):
            assert answer.ok, f"rank {rank}: {words[0]}: {answer.status}: {answer.text}"
        return answers

    # A communicator

    def create_soon(self, rank, name="grads", trick="-", size=None, first_step=1, timeout_ms=60000):
        """Asks one rank to create its end; the answer has to be received. Tricks: see rank.c."""
        self.ranks[rank].send("create", name, rank, size or len(self.ranks), first_step, timeout_ms, self.folder, trick)

    def create(self, name="grads", first_step=1, timeout_ms=60000):
        return self.must("create", name, "%d", len(self.ranks), first_step, timeout_ms, self.folder)[0].value

    def register(self, comm, tensors, ranks=None):
        for tensor in tensors:
            dtype = sums.DTYPES[tensor.dtype][0]
            self.must("register", comm, tensor.name, dtype, tensor.op, *tensor.shape, ranks=ranks)

    def join(self, name="grads", tensors=TENSORS, first_step=1, timeout_ms=60000):
        """Creates a communicator and commits its tensors."""
        comm = self.create(name, first_step, timeout_ms)
        self.register(comm, tensors)
        self.must("commit", comm)
        self.tensors = tensors
        return comm

    # Steps

    def path(self, *parts):
        return os.path.join(self.folder, "-".join(str(p) for p in parts))

    def data(self, step, rank, index):
        tensor = self.tensors[index]
        return sums.data(tensor.dtype, tensor.shape, step, rank, index)

    def expected(self, step, index, absent=()):
        """`absent`: ranks without this tensor count as zero."""
        tensor = self.tensors[index]
        given = [self.data(step, rank, index) * (rank not in absent) for rank in range(len(self.ranks))]
        return sums.expected(tensor.dtype, tensor.op, given, self.places, self.rack_machines)

    def fill(self, comm, step, ranks=None):
        for rank in range(len(self.ranks)) if ranks is None else ranks:
            for index in range(len(self.tensors)):
                path = self.path("in", rank, index)
                self.data(step, rank, index).tofile(path)
                self.ranks[rank].must("fill", own(comm, rank), index, path)

    def result(self, comm, rank, index):
        path = self.path("out", rank, index)
        self.ranks[rank].must("dump", own(comm, rank), index, path)
        tensor = self.tensors[index]
        return np.fromfile(path, sums.DTYPES[tensor.dtype][1]).reshape(tensor.shape)

    def submit(self, comm, step, ranks=None):
        """Returns when the last rank ended its part."""
        self.fill(comm, step, ranks)
        self.must("submit", comm, step, *range(len(self.tensors)), ranks=ranks)
        return max(answer.began for answer in self.must("end", comm, step, ranks=ranks))

    def check(self, comm, step, absent=None):
        """Every rank holds the reference's bits. `absent`: {tensor index: ranks}."""
        for index, tensor in enumerate(self.tensors):
            right = self.expected(step, index, (absent or {}).get(index, ()))
            for rank in range(len(self.ranks)):
                got = self.result(comm, rank, index)
                assert got.tobytes() == right.tobytes(), (
                    f"{self.name}, step {step}, rank {rank}, tensor {tensor.name}: wrong bits in "
                    f"{np.count_nonzero(got != right)} of {right.size} elements")

    def step(self, comm, step):
        """One whole step with the right bits; returns how long it took from the last rank's end of it."""
        ended = self.submit(comm, step)
        seconds = max(answer.ended for answer in self.must("wait", comm, step)) - ended
        self.check(comm, step)
        return seconds

    def close(self):
        for rank in self.ranks:
            rank.end()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
