"""A trainer that sleeps where it would compute: a model's gradients, in the order and at the pace of a backward pass.

usage: model_rank.py MODEL RANK RANKS FOLDER [busy]; then on standard input: steps N -> the periods of N steps, in us, as JSON
busy: it computes instead, so that it takes longer where others have its core.
"""

import json
import math
import os
import sys
import time

import cgx

RESNET50_BACKWARD_S = 0.0635  # on a V100 (Espresso's artifact)


def resnet50():
    """[(name, shape, operations)]: 161 tensors, first layer first."""
    layers = [("conv1", 3, 64, 7, 112)]
    inputs, size = 64, 56
    for stage, (blocks, width) in enumerate(((3, 64), (4, 128), (6, 256), (3, 512))):
        for block in range(blocks):
            if block == 0 and stage > 0:
                size //= 2
            name = f"layer{stage + 1}.{block}"
            layers += [(f"{name}.conv1", inputs, width, 1, size), (f"{name}.conv2", width, width, 3, size),
                       (f"{name}.conv3", width, 4 * width, 1, size)]
            if block == 0:
                layers.append((f"{name}.downsample", inputs, 4 * width, 1, size))
            inputs = 4 * width
    tensors = []
    for name, before, after, kernel, extent in layers:
        shape = (after, before * kernel * kernel)
        tensors.append((f"{name}.weight", shape, math.prod(shape) * extent * extent))
        tensors += [(f"{name}.bn.{what}", (after,), after * extent * extent) for what in ("weight", "bias")]
    return tensors + [("fc.weight", (1000, 2048), 1000 * 2048), ("fc.bias", (1000,), 1000)]


def tiny():
    return [(f"layer{i}.weight", (128, 128), 1) for i in range(32)]


MODELS = {"resnet50": (resnet50, RESNET50_BACKWARD_S), "tiny": (tiny, 0.002)}


class Sleeping:
    """`until` returns so many seconds after it was made."""

    def __init__(self):
        self.first = time.perf_counter()

    def until(self, seconds):
        left = self.first + seconds - time.perf_counter()
        if left > 100e-6:
            time.sleep(left)


class Computing:
    """`until` returns when this thread has had so many seconds of a processor since it was made."""

    def __init__(self):
        self.first = time.thread_time()

    def until(self, seconds):
        while time.thread_time() - self.first < seconds:
            pass


class Trainer:
    def __init__(self, model, rank, ranks, folder, busy=False):
        self.pass_of_time = Computing if busy else Sleeping
        make, self.backward_s = MODELS[model]
        layers = make()
        session = cgx.Session(job="model", arena_bytes=4 * sum(math.prod(shape) for _, shape, _ in layers) + (8 << 20))
        self.communicator = session.communicator("model", rank, ranks, *store(folder))
        arrays = [session.empty(shape) for _, shape, _ in layers]
        for array in arrays:
            array[:] = 1.0 / (rank + 1)
        self.arrays = arrays
        tensors = [self.communicator.register(name, array) for (name, _, _), array in zip(layers, arrays)]
        self.communicator.commit()
        total, done = sum(operations for _, _, operations in layers), 0
        self.arrivals = []  # last layer first
        for tensor, (_, _, operations) in reversed(list(zip(tensors, layers))):
            done += operations
            self.arrivals.append((self.backward_s * done / total, tensor))
        self.number = 0

    def step(self):
        began = time.perf_counter()
        self.pass_of_time().until(self.backward_s / 2)  # forward
        backward = self.pass_of_time()
        for arrival_s, tensor in self.arrivals:
            backward.until(arrival_s)
            self.communicator.submit(self.number, [tensor])
        self.communicator.step_end(self.number)
        self.communicator.wait(self.number)
        self.number += 1
        return 1e6 * (time.perf_counter() - began)


def store(folder):
    def path(key):
        return os.path.join(folder, key.replace("/", "_"))

    def put(key, value):
        with open(path(key) + ".new", "wb") as file:
            file.write(value)
        os.replace(path(key) + ".new", path(key))

    def get(key):
        try:
            with open(path(key), "rb") as file:
                return file.read()
        except FileNotFoundError:
            return None

    return put, get


def main():
    model, rank, ranks, folder = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    trainer = Trainer(model, rank, ranks, folder, busy="busy" in sys.argv[5:])
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps([trainer.step() for _ in range(int(line.split()[1]))]), flush=True)


if __name__ == "__main__":
    main()
