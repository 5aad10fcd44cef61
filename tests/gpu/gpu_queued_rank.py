"""One rank of queued_test.py: gpu_worker_rank.py with more parts."""

import ctypes
import os
import sys
import threading
import time

import gpu_worker_rank
import numpy
from gpu_rank import Host, say, values_of
from gpu_worker_rank import attempt, behind

import cgx


def overtaken(comm, place, rank):
    """A tensor is refused when its copy is on a stream already: what is handed over next does not get its memory."""
    values = values_of(rank, 9, (5000,), "float32")
    array = place.put(values)
    tensor = comm.register("refused", place.put(numpy.full_like(values, 1e6)))
    comm.commit()
    if rank == 0 and not isinstance(place, Host):
        late = place.cuda.stream()
        work = behind(place.cuda, late, 0.5)
        try:
            comm.submit(5, [tensor], stream=late)
        except cgx.CgxError as error:
            assert error.status == "STEP_ORDER", error
        else:
            raise AssertionError("a step that has not come was taken")
    if rank == 1:
        time.sleep(1)
    comm.allreduce_async(array, out=array, stream=place.stream).wait()
    say("sum", place.get(array))
    if rank == 0 and not isinstance(place, Host):
        del work
        place.cuda.destroy(late)


def unsaid(comm, place, rank):
    """A driver does not say whether a result's copy is over, as while another thread captures a graph."""
    cuda, late = place.cuda, place.cuda.stream()
    arrays = [cuda.array(numpy.full(5000, number, "float32")) for number in range(3)]
    call = comm.allreduce_async(arrays[1], out=arrays[0], stream=late)
    cuda.synchronize(late)
    while not call.done():
        time.sleep(0.01)
    work = behind(cuda, late, 1)
    call.wait()
    cuda.order("fail=cuEventQuery:1=900")
    comm.allreduce(arrays[2], out=arrays[2], stream=place.stream)
    cuda.synchronize(late)
    assert (arrays[0].numpy() == 1).all(), "of one rank alone"
    del work
    cuda.destroy(late)
    for array in arrays:
        array.free()


def capturing(comm, place, rank):
    """One thread captures a graph while another hands tensors over, for which an arena is made, too."""
    cuda, captured = place.cuda, place.cuda.stream()
    arrays = [cuda.array(numpy.ones(size, "float32")) for size in (5000, 3 << 20)]
    answers = []

    def hand_over():
        cuda.use()
        for array in arrays * 2:
            comm.allreduce(array, out=array, stream=place.stream)
            answers.append(array.shape)

    comm.allreduce(arrays[0], out=arrays[0], stream=place.stream)
    cuda.call("cuStreamBeginCapture_v2", ctypes.c_void_p(captured), ctypes.c_uint(0))
    thread = threading.Thread(target=hand_over)
    thread.start()
    thread.join()
    cuda.call("cuStreamEndCapture", ctypes.c_void_p(captured), ctypes.byref(ctypes.c_void_p()))
    assert len(answers) == 4, answers
    cuda.synchronize(place.stream)
    cuda.destroy(captured)
    for array in arrays:
        array.free()


def streams(comm, place, rank):
    """More streams than there are words, one after another."""
    cuda, array = place.cuda, place.put(numpy.ones(1000, "float32"))
    made = [cuda.stream() for _ in range(80)]
    for stream in made:
        comm.allreduce(array, out=array, stream=stream)
        cuda.synchronize(stream)
    assert cuda.count("cuEventSynchronize") == 0, "the host waited"
    for stream in made:
        cuda.destroy(stream)


def forked(comm, place, rank):
    """A child closes the session that it has of its parent."""
    cuda, array = place.cuda, place.put(numpy.ones(1000, "float32"))
    comm.allreduce(array, out=array, stream=place.stream)
    child = os.fork()
    if child == 0:
        calls = [cuda.count(name) for name in ("cuMemFree", "cuMemHostUnregister", "cuMemUnmap")]
        began = time.perf_counter()
        place.session.close()
        quick = time.perf_counter() - began < 0.5
        os._exit(0 if quick and calls == [cuda.count(name) for name in ("cuMemFree", "cuMemHostUnregister", "cuMemUnmap")] else 1)
    assert os.waitpid(child, 0)[1] == 0, "it waited, or called the driver"


def parting(comm, place, rank):
    """A session is closed when a line comes; what a driver says at the end of the process is of no interest."""
    comm.close()
    print("ready", flush=True)
    sys.stdin.readline()
    attempt("closed", place.session.close)
    os._exit(0)


gpu_worker_rank.PARTS.update({"overtaken": overtaken, "unsaid": unsaid, "capturing": capturing, "streams": streams,
                              "forked": forked, "parting": parting})

if __name__ == "__main__":
    gpu_worker_rank.main(*sys.argv[1:])
