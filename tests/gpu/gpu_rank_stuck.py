"""A rank of staging_test.py whose stream never makes the copy of its gradient: closing ends all the same, and says so."""

import os
import sys
import time
from ctypes import CFUNCTYPE, c_void_p

import numpy
from gpu_arrays import Cuda
from gpu_rank import Folder

import cgx


def attempt(what):
    began = time.monotonic()
    try:
        what()
        print("OK", flush=True)
    except cgx.CgxError as error:
        print(type(error).__name__, f"{time.monotonic() - began:.1f}", error, flush=True)


def main(_, rank, ranks, folder):
    store = Folder(folder)
    session = cgx.Session(job="gpu")
    comm = session.communicator("world", int(rank), int(ranks), store.put, store.get, timeout=1)
    cuda = Cuda()
    stream = cuda.stream()
    tensor = comm.register("weights", cuda.array(numpy.ones(1000, "float32")))
    comm.commit()
    stuck = CFUNCTYPE(None, c_void_p)(lambda _: time.sleep(600))
    cuda.call("cuLaunchHostFunc", c_void_p(stream), stuck, c_void_p())
    comm.submit(0, [tensor], stream=stream)
    attempt(comm.close)
    attempt(session.close)
    os._exit(0)  # the stand-in waits for its streams, as a driver does


if __name__ == "__main__":
    main(*sys.argv[1:])
