"""The codecs' encoders written with torch's own operators, on one core: what a user would do without cgxd.

usage: torch_codecs.py BYTES ROUNDS. Prints {codec: GB/s of fp32 read}, CPU time, medians. Nothing here keeps residuals, and
results are what cgxd's codec of that name would send: codes packed into bytes, indices and values side by side.
"""

import json
import statistics
import sys
import time

import torch

BUCKET, SPARSE_BUCKET, SHARE = 512, 65536, 0.01


def pack(codes, bits):
    """Codes below 2^bits, 8 / bits of them to a byte."""
    per_byte = 8 // bits
    parts = codes.to(torch.uint8).view(-1, per_byte)
    packed = parts[:, 0].clone()
    for i in range(1, per_byte):
        packed |= parts[:, i] << (bits * i)
    return packed


def maxmin(x, bits, stochastic):
    buckets = x.view(-1, BUCKET)
    low, high = buckets.amin(1, keepdim=True), buckets.amax(1, keepdim=True)
    unit = (high - low) / (2**bits - 1)
    levels = (buckets - low) / unit
    levels = (levels + torch.rand_like(levels)).floor() if stochastic else levels.round()
    return pack(levels.clamp(0, 2**bits - 1), bits), unit, low


def symmetric(x, bits, stochastic, scale=None):
    buckets = x.view(-1, BUCKET)
    levels = 2**(bits - 1) - 1
    largest = buckets.abs().amax(1, keepdim=True) if scale is None else scale(buckets)
    codes = buckets / largest * levels
    codes = (codes + torch.rand_like(codes)).floor() if stochastic else codes.round()
    return pack(codes.clamp(-levels, levels) + levels, bits), largest


def efsign(x):
    buckets = x.view(-1, BUCKET)
    return pack((buckets < 0), 1), buckets.abs().mean(1)


def onebit(x):
    buckets = x.view(-1, BUCKET)
    negative = buckets < 0
    count = negative.sum(1)
    below = torch.where(negative, buckets, torch.zeros(())).sum(1) / count
    above = torch.where(negative, torch.zeros(()), buckets).sum(1) / (BUCKET - count)
    return pack(negative, 1), below, above


def natural(x):
    buckets = x.view(-1, BUCKET)
    mantissa, exponent = torch.frexp(buckets)
    exponent = exponent + (torch.rand_like(mantissa) < 2 * mantissa.abs() - 1).int()
    top = exponent.amax(1, keepdim=True)
    return pack((exponent - top + 7).clamp(0, 7) + 8 * (buckets < 0), 4), top


def fp8(x):
    blocks = x.view(-1, 32)
    top = torch.frexp(blocks.abs().amax(1, keepdim=True))[1]
    mantissa, exponent = torch.frexp(torch.ldexp(blocks, 9 - top))
    codes = (mantissa.abs() * 16 - 8).round() + (exponent + 6).clamp(0, 15) * 8 + 128 * (blocks < 0)
    return codes.to(torch.uint8), top.to(torch.uint8)


def topk(x):
    buckets = x.view(-1, SPARSE_BUCKET)
    indices = buckets.abs().topk(int(SHARE * SPARSE_BUCKET), 1, sorted=False)[1]
    return buckets.gather(1, indices), indices.to(torch.int16)


def threshold(x):
    indices = (x.abs() >= 0.0258).nonzero().view(-1)
    return x[indices], indices


def randomk(x):
    indices = torch.randperm(x.numel())[:int(SHARE * x.numel())]
    return x[indices]


def cast(dtype):
    target = []

    def run(x):
        if not target:
            target.append(torch.empty(x.shape, dtype=dtype))
        return target[0].copy_(x)
    return run


ENCODERS = {
    "fp16": cast(torch.float16), "bf16": cast(torch.bfloat16), "maxmin4": lambda x: maxmin(x, 4, True),
    "maxmin8": lambda x: maxmin(x, 8, False), "qsgd4": lambda x: symmetric(x, 4, True),
    "int8": lambda x: symmetric(x, 8, False), "terngrad": lambda x: symmetric(x, 2, True), "efsign": efsign,
    "onebit": onebit, "natural4": natural, "fp8": fp8, "topk": topk, "threshold": threshold, "randomk": randomk,
}


def main():
    count, rounds = int(sys.argv[1]) // 4, int(sys.argv[2])
    torch.set_num_threads(1)
    x = torch.randn(count, generator=torch.Generator().manual_seed(1)) * 0.01
    rates = {}
    for name, encode in ENCODERS.items():
        seconds = []
        for _ in range(rounds + 1):  # the first one warms up
            start = time.thread_time()
            encode(x)
            seconds.append(time.thread_time() - start)
        rates[name] = 4 * count / statistics.median(seconds[1:]) * 1e-9
    print(json.dumps(rates))


if __name__ == "__main__":
    main()
