"""One rank of staging_test.py: its tensors lie on the host or on a GPU, and so do its results.

    gpu_rank.py host|gpu RANK RANKS FOLDER [calls|steps]...

Prints a line per result with a sum of its bytes. FOLDER is where the ranks meet.
"""

import ctypes
import hashlib
import os
import sys
import threading
import time

import numpy
from gpu_arrays import Cuda, DlpackArray, Pooled

import cgx

CALLS = (("float32", None, 100_003), ("float16", None, 4097), ("uint16", "bf16", 1000), ("float64", None, 33),
         ("int32", None, 70_001), ("float32", None, 1), ("int64", None, 100_001), ("int8", None, 77), ("uint8", None, 5000))
TENSORS = (("large", (611, 257)), ("bias", (257,)), ("one", (1,)))
STEPS = 3  # from the fourth on a plan by order of arrival may be in force, under which other machines round other parts


class Folder:
    """A store: a file per key."""

    def __init__(self, path):
        self._path = path

    def put(self, key, value):
        name = os.path.join(self._path, key.replace("/", "_"))
        with open(f"{name}.{os.getpid()}", "wb") as file:
            file.write(value)
        os.replace(file.name, name)

    def get(self, key):
        try:
            with open(os.path.join(self._path, key.replace("/", "_")), "rb") as file:
                return file.read()
        except FileNotFoundError:
            time.sleep(0.005)
            return None


def values_of(rank, seed, shape, dtype):
    random = numpy.random.default_rng([rank, seed])
    if dtype == "uint16":  # bf16: fp32's upper half
        return (random.standard_normal(shape).astype("float32").view("uint32") >> 16).astype("uint16")
    if "int" in dtype:
        limits = numpy.iinfo(dtype)
        return random.integers(limits.min, limits.max, shape, dtype=dtype)
    return random.standard_normal(shape).astype(dtype)


def say(what, values):
    print(what, hashlib.sha256(numpy.ascontiguousarray(values).tobytes()).hexdigest()[:16], flush=True)


class Host:
    """Tensors in the arena."""

    def __init__(self, session):
        self.session, self.stream = session, None

    def put(self, values):
        array = self.session.empty(values.shape, "bf16" if values.dtype == "uint16" else str(values.dtype))
        array[...] = values
        return array

    pooled = put

    def refill(self, array, values):
        array[...] = values

    def get(self, array):
        return array

    def close(self):
        pass


class Gpu:
    """Tensors that a stream has still to fill when they are handed over; results that it copies once more."""

    def __init__(self, session):
        self.cuda = Cuda()
        self.stream = self.cuda.stream()
        self._held = []

    def put(self, values):
        self._held.append(self.cuda.array(numpy.zeros_like(values), self.stream))
        array = self._held[-1]
        self.refill(array, values)
        return array

    def pooled(self, values):
        """In memory that is mapped in pieces."""
        self._held.append(Pooled(self.cuda, values.shape, values.dtype, self.stream))
        array = self._held[-1]
        self.refill(array, values)
        return array

    def refill(self, array, values):
        self._held.append(self.cuda.array(values))
        self.cuda.copy(array, self._held[-1], self.stream)

    def get(self, array):
        self._held.append(self.cuda.array(numpy.zeros(array.shape, array.dtype)))
        self.cuda.copy(self._held[-1], array, self.stream)
        self.cuda.synchronize(self.stream)
        return self._held[-1].numpy()

    def close(self):
        self.cuda.synchronize(self.stream)
        for array in self._held:
            array.free()
        self.cuda.destroy(self.stream)


def calls(comm, place, rank):
    for number, (dtype, name, count) in enumerate(CALLS):
        source = place.put(values_of(rank, number, (count,), dtype))
        if number % 2:
            out = place.put(numpy.zeros(count, dtype))
            call = comm.allreduce_async(source, out=out, dtype=name)
            result = call.wait()
        else:
            result = comm.allreduce(source, dtype=name)
        say(f"call {number}", place.get(result))
    shown = [place.put(values_of(rank, 90 + i, (5000,), "float32")) for i in range(2)]
    if isinstance(place, Gpu):
        shown = [DlpackArray(each) for each in shown]
    under_way = [comm.allreduce_async(each, "avg", stream=place.stream) for each in shown]
    for number, (call, each) in enumerate(zip(under_way, shown)):
        call.wait()
        say(f"together {number}", place.get(getattr(each, "array", each)))


def steps(comm, place, rank):
    arrays = [place.put(numpy.zeros(shape, "float32")) for _, shape in TENSORS]
    tensors = [comm.register(name, array) for (name, _), array in zip(TENSORS, arrays)]
    comm.commit()
    for step in range(STEPS):
        for number, array in enumerate(arrays):
            place.refill(array, values_of(rank, 10 * step + number, array.shape, "float32"))
        comm.submit(step, tensors[:2])
        comm.submit(step, tensors[2:])
        comm.step_end(step)
        comm.wait(step)
        for (name, _), array in zip(TENSORS, arrays):
            say(f"step {step} {name}", place.get(array))


def pooled(comm, place, rank):
    """Tensors over the border of two pieces."""
    for count in (2000, 700_001):
        say(f"pooled {count}", place.get(comm.allreduce(place.pooled(values_of(rank, count, (count,), "float32")))))


def apart(comm, place, rank):
    """A tensor whose stream waits for what another communicator does, which was handed over later."""
    cuda, other_stream = place.cuda, place.cuda.stream()
    first, second = (cuda.array(numpy.ones(1000, "float32")) for _ in range(2))
    done = threading.Event()
    work = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: done.wait(20))
    with place.meet("other") as other:
        cuda.call("cuLaunchHostFunc", ctypes.c_void_p(place.stream), work, None)
        late = comm.allreduce_async(first, out=first, stream=place.stream)
        other.allreduce_async(second, out=second, stream=other_stream).wait(5)
        done.set()
        late.wait()
    say("apart", place.get(first))
    cuda.synchronize(other_stream)
    cuda.destroy(other_stream)
    for array in (first, second):
        array.free()


def main(kind, rank, ranks, folder, *parts):
    store = Folder(folder)
    with cgx.Session(job="gpu") as session:
        place = Gpu(session) if kind == "gpu" else Host(session)
        place.meet = lambda name: session.communicator(name, int(rank), int(ranks), store.put, store.get, timeout=60)
        comm = place.meet("world")
        for part in parts or ("calls", "steps", "pooled"):
            {"calls": calls, "steps": steps, "pooled": pooled, "apart": apart}[part](comm, place, int(rank))
    place.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
