"""Two ranks of staging_test.py: the GPU of the first fails while its gradient is copied; the other one waits for it."""

import sys
import time

import numpy
from gpu_arrays import Cuda
from gpu_rank import Folder

import cgx


def attempt(what):
    try:
        what()
        print("OK", flush=True)
    except cgx.CgxError as error:
        print(type(error).__name__, error, flush=True)


def main(kind, rank, ranks, folder):
    store = Folder(folder)
    values = numpy.ones(1000, "float32")
    session = cgx.Session(job="gpu")
    comm = session.communicator("world", int(rank), int(ranks), store.put, store.get, timeout=60)
    cuda = Cuda() if kind == "gpu" else None
    array = cuda.array(values) if cuda else session.empty(1000)
    tensor = comm.register("weights", array)
    comm.commit()
    if cuda:
        cuda.order("fail=cuEventSynchronize:*=700")
        store.put("failing", str(time.time()).encode())
    comm.submit(0, [tensor])
    attempt(lambda: (comm.step_end(0), comm.wait(0)))
    if cuda:
        attempt(lambda: comm.submit(1, [tensor]))
        cuda.order("recover")
        session.close()
        array.free()
    else:
        print(time.time() - float(store.get("failing").decode()), flush=True)
        session.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
