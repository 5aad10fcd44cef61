"""Gloo through torch.distributed as a benchmark peer: one process per rank, driven by the runner (see command.h)."""

import json
import os
import resource
import socket
import sys
import time

import numpy
import torch
import torch.distributed as dist


def test_values(rank, elements):
    """The same numbers as test_value() in command.h."""
    with numpy.errstate(over="ignore"):
        x = (numpy.uint64(rank + 1) << numpy.uint64(32)) | numpy.arange(elements, dtype=numpy.uint64)
        x *= numpy.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> numpy.uint64(29))) * numpy.uint64(0xBF58476D1CE4E5B9)
        x ^= x >> numpy.uint64(32)
    total = sum(((x >> numpy.uint64(8 * i)) & numpy.uint64(0xFF)).astype(numpy.int32) for i in range(4))
    return (total - 510).astype(numpy.float32) / numpy.float32(512)


class Buffers:
    """One tensor per size, with a pristine copy to start each command from."""

    def __init__(self, rank):
        self.rank, self.by_bytes = rank, {}

    def get(self, size):
        if size not in self.by_bytes:
            pristine = torch.from_numpy(test_values(self.rank, size // 4))
            self.by_bytes[size] = (pristine, pristine.clone())
        return self.by_bytes[size]


def largest_error(result, ranks):
    elements = result.numel()
    picked = numpy.arange(0, elements, elements // 1021 if elements > 1024 else 1)
    expected = sum(test_values(r, elements)[picked].astype(numpy.float64) for r in range(ranks))
    return float(numpy.abs(result.numpy()[picked] - expected).max())


def measure(buffers, size, repetitions, warmup, check):
    pristine, data = buffers.get(size)
    data.copy_(pristine)
    dist.all_reduce(data)
    error = largest_error(data, dist.get_world_size()) if check else 0.0
    for _ in range(warmup - 1):
        dist.all_reduce(data)
    data.copy_(pristine)
    cpu, faults = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    times = []
    for _ in range(repetitions):
        start = time.perf_counter()
        dist.all_reduce(data)
        times.append(1e6 * (time.perf_counter() - start))
    return {"cpu_s": time.process_time() - cpu, "error": error, "us": times,
            "faults": resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults}


def main():
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    runner = socket.socket(socket.AF_UNIX)
    runner.connect(sys.argv[1])
    stream = runner.makefile("rw")
    stream.write(f"rank {rank} pid {os.getpid()}\n")
    stream.flush()
    buffers, checked = Buffers(rank), set()
    for line in stream:
        verb, *numbers = line.split()
        if verb == "quit":
            break
        size, repetitions, warmup = map(int, numbers)
        reply = measure(buffers, size, repetitions, warmup, check=size not in checked)
        checked.add(size)
        stream.write(json.dumps(reply) + "\n")
        stream.flush()


if __name__ == "__main__":
    main()
