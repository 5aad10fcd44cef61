"""Mistakes of one rank of staging_test.py, a line each: what was wrong, and what the library answered."""

import ctypes
import sys
import threading
import uuid

import numpy
from gpu_arrays import Array, Cuda, DlpackArray, Pooled

import cgx

WORLD = "world"


def attempt(what, act):
    try:
        act()
        answer = "OK"
    except (cgx.CgxError, ValueError, NotImplementedError) as error:
        answer = f"{type(error).__name__} {error}"
    print(f"{what}: {answer}", flush=True)


def without_context(cuda, comm, array):
    cuda.use(False)
    try:
        comm.allreduce(array)
    finally:
        cuda.use()


class Elsewhere:
    """An array that says it lies at an address."""

    def __init__(self, array, **changes):
        self.__cuda_array_interface__ = {**array.__cuda_array_interface__, **changes}


def blocked(cuda, comm, array, tensor):
    """The stream holds work that ends when this thread says so: handing over must not wait for it."""
    stream, gate = cuda.stream(), threading.Event()
    hold = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: gate.wait(20))
    cuda.call("cuLaunchHostFunc", ctypes.c_void_p(stream), hold, None)
    before = cuda.count("cuStreamSynchronize") + cuda.count("cuCtxSynchronize")
    comm.submit(0, [tensor], stream=stream)
    call = comm.allreduce_async(array, stream=stream)
    comm.step_end(0)
    assert not gate.is_set() and not call.done()
    gate.set()
    call.wait()
    comm.wait(0)
    assert cuda.count("cuStreamSynchronize") + cuda.count("cuCtxSynchronize") == before
    cuda.synchronize(stream)
    cuda.destroy(stream)


def steady(cuda, comm, tensor):
    """After the second step nothing is allocated, registered or loaded."""
    names = ("cuMemAlloc", "cuMemHostRegister", "cuMemHostAlloc", "cuEventCreate", "cuStreamCreate", "cuModuleLoadData",
             "cuStreamSynchronize", "cuCtxSynchronize")
    counts = []
    for step in range(1, 8):
        comm.submit(step, [tensor])
        comm.step_end(step)
        comm.wait(step)
        cuda.synchronize(None)
        counts.append([cuda.count(name) for name in names[:-2]])
    assert counts[1] == counts[-1], counts


def main():
    cuda, other = Cuda(0), None
    with cgx.Session(job="wrong") as session:
        comm = session.communicator(WORLD)
        array = cuda.array(numpy.ones(100, "float32"))
        tensor = comm.register("weights", array)
        comm.commit()
        attempt("blocked", lambda: blocked(cuda, comm, array, tensor))
        attempt("steady", lambda: steady(cuda, comm, tensor))
        attempt("no context", lambda: without_context(cuda, comm, array))
        attempt("too long", lambda: comm.allreduce(Elsewhere(array, shape=(101,))))
        pool = Pooled(cuda, (2000,), "float32")
        attempt("past a pool", lambda: comm.allreduce(Elsewhere(pool, shape=(600_000,))))
        pool.free()
        attempt("host memory", lambda: comm.allreduce(Elsewhere(array, data=(id(array) & ~63, False))))
        attempt("read-only", lambda: comm.allreduce(Elsewhere(array, data=(array.address, True))))
        attempt("strided", lambda: comm.allreduce(Elsewhere(array, shape=(50,), strides=(8,))))
        attempt("mixed", lambda: comm.allreduce(array, out=session.empty(100)))
        attempt("rocm", lambda: comm.allreduce(DlpackArray(array, device_type=10)))
        other = Cuda(1)
        theirs = other.array(numpy.ones(100, "float32"))
        cuda.use()
        attempt("other gpu", lambda: comm.allreduce(theirs))
        other.use()
        theirs.free()
        cuda.use()
        gone = cuda.array(numpy.ones(100, "float32"))
        call = comm.allreduce_async(gone)
        cuda.synchronize(None)
        gone.free()
        attempt("freed before its result", call.wait)
        attempt("freed", lambda: comm.allreduce(gone))
        cuda.order("fail=cuMemHostRegister:1=2")
        attempt("no memory to pin", lambda: comm.allreduce(cuda_large(cuda)))
        attempt("sound", lambda: comm.allreduce(array))
    for each in LARGE + [array]:
        each.free()


LARGE = []


def cuda_large(cuda):
    LARGE.append(Array(cuda, (20 << 20,), "float32"))
    return LARGE[-1]


def without_driver():
    with cgx.Session(job="wrong") as session:
        comm = session.communicator(WORLD)
        values = numpy.ones(10, "float32")
        about = {"shape": (10,), "typestr": "<f4", "data": (values.ctypes.data, False), "version": 3}
        array = type("Array", (), {"__cuda_array_interface__": about})()
        attempt("no driver", lambda: comm.allreduce(array))
        attempt("no driver, no arena", lambda: session.empty(10, device=uuid.UUID(int=7)))
        attempt("sound", lambda: comm.allreduce(values))


if __name__ == "__main__":
    without_driver() if sys.argv[1:2] == ["host"] else main()
