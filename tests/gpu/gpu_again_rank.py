"""One rank of again_test.py: what comes after something has failed, in a session of its own.

    gpu_again_rank.py arena RANK RANKS FOLDER JOB PART[=ARGUMENT]
"""

import ctypes
import sys
import time

from gpu_arrays import Cuda
from gpu_rank import Folder, say, values_of
from gpu_worker_rank import Shared, attempt, reduced, uuid_of

import cgx
from cgx._arrays import dtype_number
from cgx._library import TensorOptions, library

FP32 = dtype_number("fp32")


class Rank:
    def __init__(self, rank, ranks, folder, job):
        self.rank, self.ranks, self.job = int(rank), int(ranks), job
        self.store, self.cuda = Folder(folder), Cuda()
        self.device, self.stream = uuid_of(self.cuda), self.cuda.stream()

    def session(self, **options):
        return cgx.Session(job=self.job, **options)

    def meet(self, session, name, **options):
        return session.communicator(name, self.rank, self.ranks, self.store.put, self.store.get, timeout=30,
                                    device=self.device, **options)

    def shared(self, session, values):
        made = session.empty(values.shape, "fp32", device=self.device)
        array = Shared(self.cuda, made, values.dtype, self.stream)
        self.refill(array, values)
        return array

    def refill(self, array, values):
        source = self.cuda.array(values)
        self.cuda.copy(array, source, self.stream)
        self.cuda.synchronize(self.stream)
        source.free()


def at_a_line(what):
    print(what, flush=True)
    sys.stdin.readline()


def refused(rank):
    """A communicator that fails while ranks join, and one of new sessions that comes at once."""
    with rank.session() as session:
        attempt("refused", lambda: rank.meet(session, "first", first_step=rank.rank))
    at_a_line("left")
    with rank.session() as session, rank.meet(session, "second") as comm:
        array = rank.shared(session, values_of(rank.rank, 1, (5000,), "float32"))
        say("sum", reduced(comm, array, rank.stream))
        array.free()


def bereft(rank):
    """A session with many imports closes when their worker has died; says how long that takes."""
    session = rank.session()
    comm = rank.meet(session, "first")
    arrays = [rank.cuda.array(values_of(rank.rank, number, (5000,), "float32")) for number in range(8)]
    for array in arrays:
        session.import_(array, rank.device)
    at_a_line("ready")
    attempt("lost", lambda: reduced(comm, arrays[0], rank.stream))
    comm.close()
    began = time.perf_counter()
    session.close()
    print("closed", time.perf_counter() - began, flush=True)
    for array in arrays:
        array.free()


def full(rank, arena_bytes):
    """On a GPU with little memory, where the first arena of a host may be larger than that."""
    with rank.session(arena_bytes=int(arena_bytes)) as session, rank.meet(session, "first") as comm:
        for elements in (5000, 5 << 20):
            array = rank.shared(session, values_of(rank.rank, 1, (elements,), "float32"))
            say(f"sum of {elements}", reduced(comm, array, rank.stream))
            array.free()


def many(rank):
    """More arrays than a session has arenas, each more than half of the smallest arena."""
    with rank.session(arena_bytes=1 << 20) as session, rank.meet(session, "first"):
        print("made", len([session.empty((300_000,), "fp32", device=rank.device) for _ in range(70)]), flush=True)


def register_home(comm, array):
    """As C programs do: an array on a GPU that is a tensor's home."""
    shape = (ctypes.c_uint64 * 1)(array.shape[0])
    options = TensorOptions(name=b"tensor", dtype=FP32, dims=1, shape=shape, home=array.address)
    comm._do(library.cgx_register, ctypes.byref(options), ctypes.byref(ctypes.c_uint32()))


def homes(rank):
    """Homes in memory that a worker had which has died, and then in memory that its successor has."""
    values = values_of(rank.rank, 1, (5000,), "float32")
    with rank.session() as session:
        with rank.meet(session, "first") as comm:
            array = rank.shared(session, values)
            register_home(comm, array)
            comm.commit()
            at_a_line("ready")
            attempt("lost", lambda: reduced(comm, array, rank.stream))
        with rank.meet(session, "second") as comm:
            attempt("old", lambda: register_home(comm, array))
            array.free()
            array = rank.shared(session, values)
            attempt("new", lambda: register_home(comm, array))
            attempt("committed", comm.commit)
            array.free()


PARTS = {"homes": homes, "many": many, "refused": refused, "bereft": bereft, "full": full}


def main(kind, rank, ranks, folder, job, part):
    one = Rank(rank, ranks, folder, job)
    name, _, argument = part.partition("=")
    PARTS[name](one, *filter(None, [argument]))
    one.cuda.destroy(one.stream)


if __name__ == "__main__":
    main(*sys.argv[1:])
