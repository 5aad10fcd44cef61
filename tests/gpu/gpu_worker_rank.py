"""One rank of worker_test.py: as gpu_rank.py, but the tensors are what a GPU worker reduces.

    gpu_worker_rank.py host|copied|arena|imported RANK RANKS FOLDER JOB [PART[=ARGUMENT]]...

host: the oracle. copied: arrays of the rank's own, copied within the GPU. arena: arrays that the worker has, too.
imported: arrays of the rank's own that the worker gets to have.
"""

import ctypes
import os
import statistics
import sys
import threading
import time
import uuid

import gpu_rank
import numpy
from gpu_arrays import Array, Cuda
from gpu_rank import Folder, Gpu, Host, say, values_of

import cgx

PACED, FED = 400, 50
OF_THREAD = 2  # CU_STREAM_PER_THREAD


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


class Imported(Gpu):
    """Arrays of the rank's own, imported one by one."""

    def __init__(self, session):
        super().__init__(session)
        self._imports = []

    def put(self, values):
        array = self.cuda.array(numpy.full_like(values, 1), self.stream)
        self._held.append(array)
        if array.size >= 8:
            self._imports.append(self.session.import_(array, self.device))
            assert (array.numpy() == 1).all(), "what was there is there again"
        self.refill(array, values)
        return array

    def get(self, array):
        self.cuda.synchronize(self.stream)
        return array.numpy()

    def end_imports(self):
        for each in self._imports:
            each.end(10)
        self._imports = []

    def close(self):
        self.end_imports()
        super().close()


class Piece(Array):
    """A part of an allocation, as allocators with a cache hand them out."""

    def __init__(self, cuda, whole, offset, count, dtype="float32"):
        self.cuda, self.shape, self.dtype, self.stream = cuda, (count,), numpy.dtype(dtype), None
        self.size, self.address = count * self.dtype.itemsize, whole.address + offset


def reduced(comm, piece, stream):
    call = comm.allreduce_async(piece, out=piece, stream=stream)
    call.wait()
    piece.cuda.synchronize(stream)  # the result is ordered on the stream; the host has waited for the network only
    return piece.numpy()


def churn(comm, place, rank, times):
    """Memory that comes and goes while the communicator lives, more often than a session has arenas."""
    cuda, session = place.cuda, place.session
    for number in range(int(times)):
        array = cuda.array(values_of(rank, number, (5000,), "float32"))
        with session.import_(array, place.device):
            copies = cuda.count("cuMemcpyDtoDAsync")
            say(f"churn {number}", reduced(comm, array, place.stream))
            assert cuda.count("cuMemcpyDtoDAsync") == copies, "a copy within the GPU"
        array.free()


def pieces(comm, place, rank):
    """Parts of one allocation are one arena, which lives as long as one of them."""
    cuda, session = place.cuda, place.session
    whole = cuda.array(numpy.arange(1 << 16, dtype="float32"))
    opened = []
    parts = [Piece(cuda, whole, offset, 1000) for offset in (0, 64 << 10, 128 << 10)]
    for part in parts:
        opened.append(session.import_(part, place.device))
    again = session.import_(parts[1], place.device)
    assert (whole.numpy() == numpy.arange(1 << 16)).all(), "nothing there has changed"
    for number, part in enumerate(parts):
        say(f"piece {number}", reduced(comm, part, place.stream))
    opened[1].end(10)
    say("piece 1 again", reduced(comm, parts[1], place.stream))
    beside = Piece(cuda, whole, 192 << 10, 1000)
    copies = cuda.count("cuMemcpyDtoDAsync")
    say("beside", reduced(comm, beside, place.stream))
    assert cuda.count("cuMemcpyDtoDAsync") > copies or not cuda.counts, "nobody has imported it: it is copied"
    for each in opened + [again]:
        each.end(10)
    say("copied", reduced(comm, parts[0], place.stream))
    whole.free()


def attempt(what, act):
    began = time.perf_counter()
    try:
        act()
        answer = "OK"
    except (cgx.CgxError, ValueError) as error:
        answer = f"{type(error).__name__} {error}"
    took = time.perf_counter() - began
    print(f"{what}: {'slow ' if took > 0.2 else ''}{answer}", flush=True)


def mistakes(comm, place, rank):
    """What cannot be imported, and imports that cannot end."""
    cuda, session, device = place.cuda, place.session, place.device
    whole = cuda.array(numpy.zeros(10_000, "float32"))
    freed = cuda.array(numpy.zeros(1000, "float32"))
    freed.free()
    host = numpy.zeros(1000, "float32")
    with cgx.Session(job="other") as other:
        attempt("vmm", lambda: session.import_(other.empty(1000, device=device), device))
    attempt("arena", lambda: session.import_(session.empty(1000, device=device), device))
    attempt("past the end", lambda: session.import_(Piece(cuda, whole, 0, 10_001), device))
    attempt("odd", lambda: session.import_(Piece(cuda, whole, 4, 100), device))
    attempt("tiny", lambda: session.import_(Piece(cuda, whole, 0, 1), device))
    attempt("freed", lambda: session.import_(freed, device))
    attempt("host", lambda: session.import_(host, device))
    attempt("unknown gpu", lambda: session.import_(whole, uuid.UUID(int=7)))
    part = Piece(cuda, whole, 0, 1000)
    imported = session.import_(part, device)
    attempt("overlapping", lambda: session.import_(Piece(cuda, whole, 256, 1000), device))
    call = comm.allreduce_async(part, out=part, stream=place.stream) if rank == 0 else None
    if rank == 0:
        attempt("named", lambda: imported.end(0.05))
    sys.stdin.readline()
    call = call or comm.allreduce_async(part, out=part, stream=place.stream)
    call.wait()
    attempt("ended", lambda: imported.end(10))
    attempt("ended again", lambda: imported.end(10))
    whole.free()
    again = cuda.array(numpy.zeros(1000, "float32"))
    attempt("sound", lambda: session.import_(again, device).end(10))
    again.free()


def elsewhere(comm, place, rank):
    """A thread whose current GPU is not the tensor's: its default stream is another GPU's, and any other says whose it is."""
    array, there = place.put(numpy.ones(1000, "float32")), place.cuda
    other = Cuda(1)
    attempt("default", lambda: comm.allreduce(array, out=array, stream=0))
    attempt("legacy", lambda: comm.allreduce(array, out=array, stream=1))
    attempt("of the thread", lambda: comm.allreduce(array, out=array, stream=2))
    attempt("named", lambda: comm.allreduce(array, out=array, stream=place.stream))
    other.use(False)
    attempt("no context", lambda: comm.allreduce(array, out=array, stream=0))
    there.use()
    attempt("sound", lambda: comm.allreduce(array, out=array, stream=0))


def behind(cuda, stream, seconds, wait=time.sleep):
    """Work that takes so long, or until wait(seconds) has returned; to be held until it is done."""
    work = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: wait(seconds))
    cuda.call("cuLaunchHostFunc", ctypes.c_void_p(stream), work, None)
    return work


def reduced_once(comm, place):
    """The GPU, an array that has been reduced on it, and what may be copied there later."""
    array, source = place.put(numpy.ones(5000, "float32")), place.cuda.array(numpy.ones(5000, "float32"))
    comm.allreduce(array, out=array, stream=place.stream)
    return place.cuda, array, source


def closing(comm, place, rank, seconds):
    """The other rank is lost while this one's GPU is behind; this one closes at once."""
    cuda, array, source = reduced_once(comm, place)
    if rank == 1:
        os._exit(0)
    work = behind(cuda, place.stream, float(seconds))
    cuda.copy(array, source, place.stream)
    attempt("lost", lambda: comm.allreduce(array, out=array, stream=place.stream))
    comm.close()
    if isinstance(place, Imported):
        attempt("ended", place.end_imports)
    attempt("closed", place.session.close)
    if float(seconds) > 10:
        os._exit(0)  # the stand-in waits for its streams, as a driver does
    del work
    source.free()


def late(comm, place, rank, seconds):
    """Two steps; in the second the GPU of rank 1 is that far behind when the rank submits."""
    array = place.put(numpy.ones(5000, "float32"))
    tensor = comm.register("behind", array)
    comm.commit()
    for step in range(2):
        work = behind(place.cuda, place.stream, float(seconds)) if (step, rank) == (1, 1) else None
        place.refill(array, numpy.ones(5000, "float32"))
        comm.submit(step, [tensor])
        comm.step_end(step)
        comm.wait(step)
        del work


def unposted(comm, place, rank):
    """As closing, without a daemon: what the GPU is behind with cannot be handed over any more."""
    cuda, array, source = reduced_once(comm, place)
    cuda.synchronize(place.stream)
    print("ready", flush=True)
    sys.stdin.readline()
    attempt("lost", lambda: comm.allreduce(source, stream=place.stream))
    work = behind(cuda, place.stream, 1.5)
    cuda.copy(array, source, place.stream)
    attempt("refused", lambda: comm.allreduce(array, out=array, stream=place.stream))
    array.free()
    attempt("closed", place.session.close)
    del work
    source.free()


def orphaned(comm, place, rank):
    """As unposted, but it has been handed over, and the worker waits for it, when the daemon dies."""
    cuda, array, source = reduced_once(comm, place)
    done = threading.Event()
    work = behind(cuda, place.stream, 20, wait=done.wait)
    cuda.copy(array, source, place.stream)
    call = comm.allreduce_async(array, out=array, stream=place.stream)
    time.sleep(0.5)
    print("ready", flush=True)
    sys.stdin.readline()
    attempt("lost", call.wait)
    array.free()
    threading.Timer(1.5, done.set).start()
    attempt("closed", place.session.close)
    del work
    source.free()


def captured(comm, place, rank):
    """While a stream is captured in a graph, nothing can be handed over or waited for there."""
    array, result, cuda = place.put(numpy.ones(1000, "float32")), place.put(numpy.zeros(1000, "float32")), place.cuda
    late = comm.allreduce_async(array, out=result, stream=place.stream)
    blocking = ctypes.c_void_p()
    cuda.call("cuStreamCreate", ctypes.byref(blocking), ctypes.c_uint(0))
    for stream in (place.stream, blocking.value):
        cuda.call("cuStreamBeginCapture_v2", ctypes.c_void_p(stream), ctypes.c_uint(0))
        attempt("captured", lambda: comm.allreduce_async(array, out=array, stream=stream))
    attempt("default", lambda: comm.allreduce_async(array, out=array, stream=0))
    attempt("result", late.wait)
    for stream in (place.stream, blocking.value):
        cuda.call("cuStreamEndCapture", ctypes.c_void_p(stream), ctypes.byref(ctypes.c_void_p()))
        attempt("sound", lambda: comm.allreduce(array, out=array, stream=stream))
    attempt("again", late.wait)
    print("value:", place.get(result).min(), flush=True)
    cuda.destroy(blocking.value)


def threads(comm, place, rank):
    """The default stream of each of two threads, of which the first is a second behind."""
    cuda, late, soon = place.cuda, values_of(rank, 1, (5000,), "float32"), values_of(rank, 2, (5000,), "float32")
    arrays = [place.put(numpy.zeros_like(late)) for _ in range(4)]
    source = cuda.array(late)
    place.refill(arrays[1], soon)
    cuda.synchronize(place.stream)
    calls, work = [], []

    def hand_over(array, out):
        cuda.use()
        calls.append(comm.allreduce_async(array, out=out, stream=OF_THREAD))

    def hand_over_late():
        cuda.use()
        work.append(behind(cuda, OF_THREAD, 1))
        cuda.copy(arrays[0], source, OF_THREAD)
        hand_over(arrays[0], arrays[2])

    for act in (hand_over_late, lambda: hand_over(arrays[1], arrays[3])):
        thread = threading.Thread(target=act)
        thread.start()
        thread.join()
    for call in calls:
        call.wait()
    for array, values in ((arrays[2], late), (arrays[3], soon)):
        assert (place.get(array) == values).all(), "of one rank alone"
    source.free()


def forgotten(comm, place, rank):
    """Imports that nobody ends: closing the session does."""
    array = place.cuda.array(numpy.ones(1000, "float32"))
    place.session.import_(array, place.device)
    say("forgotten", reduced(comm, array, place.stream))
    comm.close()
    place.session.close()
    array.free()


def fresh(comm, place, rank):
    """What was in imported memory is there for the worker as soon as the import returns."""
    values = values_of(rank, 1, (5000,), "float32")
    array, target = place.cuda.array(values, place.stream), place.put(numpy.zeros_like(values))
    with place.session.import_(array, place.device):
        comm.allreduce_async(array, out=target, stream=place.stream).wait()
        assert (place.get(target) == values).all(), "of one rank alone"
    array.free()


def revived(comm, place, rank):
    """The worker dies; the same session imports its memory anew, and its next communicator gets a new worker."""
    values = values_of(rank, 1, (5000,), "float32")
    array = place.cuda.array(values, place.stream)
    shared = place.session.empty(values.shape, "fp32", device=place.device)
    shared = Shared(place.cuda, shared, values.dtype, place.stream)
    place.refill(shared, values)
    imported = place.session.import_(array, place.device)
    say("sum", reduced(comm, array, place.stream))
    print("ready", flush=True)
    sys.stdin.readline()
    try:
        while True:
            reduced(comm, array, place.stream)
    except cgx.CgxError as error:
        print(f"lost {error.status}", flush=True)
    comm.close()
    imported.end(10)
    place.refill(array, values)
    place.cuda.synchronize(place.stream)  # nobody may touch its beginning while it is imported
    imported = place.session.import_(array, place.device)
    assert (array.numpy() == values).all(), "what was there is there again"
    with place.meet("again") as again:
        say("sum", reduced(again, array, place.stream))
        say("sum", reduced(again, shared, place.stream))
        fresh = Shared(place.cuda, place.session.empty(values.shape, "fp32", device=place.device), values.dtype, place.stream)
        place.refill(fresh, values)
        copies = place.cuda.count("cuMemcpyDtoDAsync")
        say("sum", reduced(again, fresh, place.stream))
        assert place.cuda.count("cuMemcpyDtoDAsync") == copies, "a copy within the GPU"
    imported.end(10)
    array.free()


def paced(comm, place, rank, steps=PACED, before=lambda step: None):
    """Many small steps, until somebody dies; says when."""
    array = place.put(numpy.zeros((70_001,), "float32"))
    tensor = comm.register("paced", array)
    comm.commit()
    for step in range(steps):
        before(step)
        place.refill(array, values_of(rank, step, array.shape, "float32"))
        comm.submit(step, [tensor])
        comm.step_end(step)
        comm.wait(step)
        say(f"step {step}", place.get(array))


def again(comm, place, rank, steps):
    """A commit that is made again where it is refused, by one machine and then by the other; so many steps."""
    array = place.put(numpy.zeros((70_001,), "float32"))
    tensor = comm.register("again", array)
    for _ in range(2):
        try:
            comm.commit()
            break
        except cgx.CgxError as error:
            print(f"refused {error.status} {error}", flush=True)
    else:
        comm.commit()
    for step in range(int(steps)):
        place.refill(array, values_of(rank, step, array.shape, "float32"))
        comm.submit(step, [tensor])
        comm.step_end(step)
        comm.wait(step)
        say(f"step {step}", place.get(array))


def fed(comm, place, rank, lines):
    """The same, so many for each line that comes."""
    paced(comm, place, rank, int(lines) * FED, lambda step: sys.stdin.readline() if step % FED == 0 else None)


def mixed(place, store, rank, ranks):
    """Ranks that do not fit together: how long each waits for the answer when all are there."""
    place.put(numpy.zeros(1000, "float32"))  # there is a worker already
    store.put(f"there/{rank}", b"")
    while any(store.get(f"there/{other}") is None for other in range(ranks)):
        pass
    began = time.perf_counter()
    try:
        place.meet("world")
    except cgx.CgxError as error:
        print(f"{time.perf_counter() - began:.3f} {type(error).__name__} {error}")
    place.close()


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


def families(comm, place, rank, count):
    """Tensors that the policy has a codec each for; no vectors, which travel raw."""
    arrays = [place.put(numpy.zeros((2, 2501 + 33 * number), "float32")) for number in range(int(count))]
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


def counted(comm, place, steps, shape, values=0):
    """Steps of one tensor; yields how long each took."""
    array = place.put(numpy.full(shape, values, "float32"))
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


def laps(comm, place, rank, count):
    """As small; says how long a step of a lap took, and begins the next one when a line comes."""
    took = []
    for seconds in counted(comm, place, int(count) * FED, 256):
        took.append(seconds)
        if len(took) == FED:
            print("lap", statistics.median(took), flush=True)
            sys.stdin.readline()
            took = []


def matrix(comm, place, rank, steps):
    for _ in counted(comm, place, int(steps), (300, 500)):
        pass


def sized(comm, place, rank, elements):
    for _ in counted(comm, place, 3, int(elements)):
        pass


def timed(comm, place, rank, steps):
    for seconds in counted(comm, place, int(steps), 70_001):
        print("took", seconds, flush=True)


def matrices(comm, place, rank, rows):
    """As timed, of a matrix of random values, which codecs take: 16384, or 16384x400 for so many steps."""
    rows, _, steps = rows.partition("x")
    shape = (int(rows), 1024)
    for seconds in counted(comm, place, int(steps or 20), shape, values_of(rank, 1, shape, "float32")):
        print("took", seconds, flush=True)


def large(comm, place, rank):
    comm.register("large", place.put(numpy.zeros(3 << 20, "float32")))
    comm.commit()


LAYERS = ((256, 300), (64, 256), (33, 101), (512, 256), (70, 71), (64, 512))


def layers(comm, place, rank, steps):
    """Layers of other sizes and shapes of their values, the same ones in every step; ends when a line comes.

    A step takes as long as a planner needs to answer, so that in a given one the same plan runs whatever the machine does.
    """
    values = [numpy.sign(each) * numpy.abs(each) ** (1 + number / 4) * 4.0 ** -number
              for number, each in enumerate(values_of(rank, number, shape, "float32") for number, shape in enumerate(LAYERS))]
    arrays = [place.put(numpy.zeros(shape, "float32")) for shape in LAYERS]
    tensors = [comm.register(f"layer{number}", array) for number, array in enumerate(arrays)]
    comm.commit()
    for step in range(int(steps)):
        for array, gradient in zip(arrays, values):
            place.refill(array, gradient.astype("float32"))
        comm.submit(step, tensors)
        comm.step_end(step)
        comm.wait(step)
        time.sleep(0.1)
    print("stepped", flush=True)
    sys.stdin.readline()


def commit_on_command(comm, place, rank):
    """Says that it is about to commit, and does when a line comes."""
    comm.register("tensor", place.put(numpy.zeros(70_001, "float32")))
    print("registered", flush=True)
    sys.stdin.readline()
    comm.commit()
    print("committed", flush=True)
    sys.stdin.readline()


PARTS = {"unposted": unposted, "orphaned": orphaned, "closing": closing, "captured": captured, "elsewhere": elsewhere, "threads": threads, "fresh": fresh, "revived": revived, "layers": layers, "churn": churn, "pieces": pieces, "mistakes": mistakes, "forgotten": forgotten, "commit": commit_on_command, "small": small, "laps": laps, "matrix": matrix, "timed": timed, "matrices": matrices, "sized": sized, "large": large, "types": types, "families": families, "pooled": gpu_rank.pooled, "calls": gpu_rank.calls, "steps": gpu_rank.steps, "paced": paced, "fed": fed, "behind": late, "again": again}


def main(kind, rank, ranks, folder, job, *parts):
    store = Folder(folder)
    with cgx.Session(job=job, arena_bytes=8 << 20) as session:
        place = {"host": Host, "copied": Gpu, "arena": Arena, "imported": Imported}[kind](session)
        place.session = session
        place.device = None if kind == "host" else uuid_of(place.cuda)
        place.meet = lambda name: session.communicator(name, int(rank), int(ranks), store.put, store.get, timeout=60,
                                                       device=place.device)
        if parts == ("mixed",):
            return mixed(place, store, int(rank), int(ranks))
        comm = place.meet("world")
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
