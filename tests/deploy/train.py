"""Two processes fit one line through cgx as it is installed here; says where libcgx came from and what the result is.

usage: train.py      environment: CGX_AUTOSTART=1, or a daemon's socket in CGX_SOCKET, or the machine's daemon

Needs NumPy and the installed package only, so that it also runs in a bare root.
"""

import multiprocessing
import os
import sys
import tempfile

RANKS, STEPS, ROWS, RATE = 2, 60, 512, 0.2


class FileStore:
    """A key is a file in a folder all ranks see."""

    def __init__(self, folder):
        self._folder = folder

    def _path(self, key):
        return os.path.join(self._folder, key.encode().hex())

    def put(self, key, value):
        path = self._path(key)
        with open(path + f".{os.getpid()}", "wb") as file:
            file.write(value)
        os.replace(file.name, path)

    def get(self, key):
        try:
            with open(self._path(key), "rb") as file:
                return file.read()
        except FileNotFoundError:
            return None


def fit(rank, folder, results):
    import numpy

    import cgx
    random = numpy.random.default_rng(rank)
    slope, inputs = numpy.float32([3, -1]), random.standard_normal((ROWS, 2), dtype=numpy.float32)
    targets, weights = inputs @ slope, numpy.zeros(2, numpy.float32)
    store = FileStore(folder)
    with cgx.Session(job="train", connect_timeout=60) as session:
        world = session.communicator("world", rank, RANKS, store.put, store.get, timeout=60)
        gradient = session.empty(2)
        for _ in range(STEPS):
            gradient[:] = 2 * inputs.T @ (inputs @ weights - targets) / ROWS
            world.allreduce(gradient, op="avg")
            weights -= RATE * gradient
    results.put((rank, weights.tobytes(), float(numpy.abs(weights - slope).max()), cgx.__file__, cgx.__version__))


def main():
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        results = context.Queue()
        ranks = [context.Process(target=fit, args=(rank, folder, results)) for rank in range(RANKS)]
        for each in ranks:
            each.start()
        for each in ranks:
            each.join(120)
        if any(each.exitcode != 0 for each in ranks):
            return f"ranks ended with {[each.exitcode for each in ranks]}"
        answers = [results.get(timeout=10) for _ in ranks]
    if answers[0][1] != answers[1][1]:
        return "the ranks' weights differ"
    if answers[0][2] > 0.01:
        return f"the weights are off by {answers[0][2]}"
    print(f"two ranks agree after {STEPS} steps; cgx {answers[0][4]} from {os.path.dirname(answers[0][3])}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
