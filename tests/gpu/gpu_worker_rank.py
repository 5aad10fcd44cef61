"""One rank of worker_test.py: as gpu_rank.py, but the tensors are what a GPU worker reduces.

    gpu_worker_rank.py host|copied|arena RANK RANKS FOLDER JOB [PART[=ARGUMENT]]...

host: the oracle. copied: arrays of the rank's own, copied within the GPU. arena: arrays that the worker has, too.
"""

import ctypes
import sys
import time
import uuid

import gpu_rank
import numpy
from gpu_arrays import Array
from gpu_rank import Folder, Gpu, Host, say, values_of

import cgx

PACED = 400


def uuid_of(cuda, device=0):
    held = ctypes.create_string_buffer(16)
    cuda.call("cuDeviceGetUuid_v2", held, ctypes.c_int(device))
    return uuid.UUID(bytes=held.raw)


class Shared(Array):
    """An array that session.empty() made on the GPU."""

    def __init__(self, cuda, made, dtype, stream):
        self.cuda, self.made, self.shape, self.dtype, self.stream = cuda, made, made.shape, numpy.dtype(dtype), stream
        self.size = int(numpy.prod(self.shape)) * self.dtype.itemsize
        self.address = made.__cuda_array_interface__["data"][0]

    def free(self):
        self.made = None


class Arena(Gpu):
    """Tensors in an arena that the rank and the worker have."""

    def put(self, values):
        name = {"uint16": "bf16", "float32": "fp32", "float16": "fp16", "float64": "fp64"}.get(str(values.dtype), str(values.dtype))
        array = Shared(self.cuda, self.session.empty(values.shape, name, device=self.device), values.dtype, self.stream)
        self._held.append(array)
        self.refill(array, values)
        return array


def paced(comm, place, rank):
    """Many small steps, until somebody dies; says when."""
    array = place.put(numpy.zeros((70_001,), "float32"))
    tensor = comm.register("paced", array)
    comm.commit()
    for step in range(PACED):
        place.refill(array, values_of(rank, step, array.shape, "float32"))
        comm.submit(step, [tensor])
        comm.step_end(step)
        comm.wait(step)
        say(f"step {step}", place.get(array))


def types(comm, place, rank):
    """A step of tensors of every type, merged."""
    arrays = {dtype: place.put(numpy.zeros(5003, dtype)) for dtype in ("float64", "float32", "int64", "float16", "int32", "uint8")}
    tensors = [comm.register(dtype, array, op="sum") for dtype, array in arrays.items()]
    comm.commit()
    for step in range(3):
        for dtype, array in arrays.items():
            place.refill(array, values_of(rank, step, array.shape, dtype))
        comm.submit(step, tensors)
        comm.step_end(step)
        comm.wait(step)
        for dtype, array in arrays.items():
            say(f"step {step} {dtype}", place.get(array))


def families(comm, place, rank):
    """Tensors that the policy has a codec each for; no vectors, which travel raw."""
    arrays = [place.put(numpy.zeros((2, 2501 + 33 * number), "float32")) for number in range(16)]
    tensors = [comm.register(f"tensor{number:02}", array) for number, array in enumerate(arrays)]
    comm.commit()
    for step in range(3):
        for number, array in enumerate(arrays):
            place.refill(array, values_of(rank, 100 * step + number, array.shape, "float32"))
        comm.submit(step, tensors)
        comm.step_end(step)
        comm.wait(step)
        for number, array in enumerate(arrays):
            say(f"step {step} tensor {number}", place.get(array))


def counted(comm, place, steps, elements):
    """Steps of one small tensor; yields how long each took."""
    array = place.put(numpy.zeros(elements, "float32"))
    tensor = comm.register("counted", array)
    comm.commit()
    for step in range(steps):
        began = time.perf_counter()
        comm.submit(step, [tensor])
        comm.step_end(step)
        comm.wait(step)
        yield time.perf_counter() - began


def small(comm, place, rank, steps):
    for _ in counted(comm, place, int(steps), 256):
        pass


def sized(comm, place, rank, elements):
    for _ in counted(comm, place, 3, int(elements)):
        pass


def timed(comm, place, rank, steps):
    for seconds in counted(comm, place, int(steps), 70_001):
        print("took", seconds, flush=True)


def large(comm, place, rank):
    comm.register("large", place.put(numpy.zeros(3 << 20, "float32")))
    comm.commit()


def commit_on_command(comm, place, rank):
    """Says that it is about to commit, and does when a line comes."""
    comm.register("tensor", place.put(numpy.zeros(70_001, "float32")))
    print("registered", flush=True)
    sys.stdin.readline()
    comm.commit()
    print("committed", flush=True)
    sys.stdin.readline()


PARTS = {"commit": commit_on_command, "small": small, "timed": timed, "sized": sized, "large": large, "types": types, "families": families, "calls": gpu_rank.calls, "steps": gpu_rank.steps, "paced": paced}


def main(kind, rank, ranks, folder, job, *parts):
    store = Folder(folder)
    with cgx.Session(job=job, arena_bytes=8 << 20) as session:
        place = {"host": Host, "copied": Gpu, "arena": Arena}[kind](session)
        place.session = session
        place.device = None if kind == "host" else uuid_of(place.cuda)
        comm = session.communicator("world", int(rank), int(ranks), store.put, store.get, timeout=60, device=place.device)
        try:
            for part in parts or ("calls", "steps"):
                name, _, argument = part.partition("=")
                PARTS[name](comm, place, int(rank), *filter(None, [argument]))
        except cgx.CgxError as error:
            print(f"failed {error.status} {error}", flush=True)
        comm.close()
        place.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
