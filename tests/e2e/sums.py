"""The sum cgxd promises, computed the slow way with numpy, and seeded data to sum.

A machine's contribution is its ranks added in rank order, for AVG times fp32(1/n); machines are added to +0.0 in the
order of their lowest rank, or in two levels: those of each rack first, then the racks. fp16 and bf16 are added in fp32 and cast last; fp64 in fp64; integers wrap.
"""

import numpy as np

# In the order of cgx_dtype. bf16 lives in uint16: numpy has no such type.
DTYPES = {"fp32": (0, np.float32), "fp16": (1, np.float16), "bf16": (2, np.uint16), "fp64": (3, np.float64),
          "int8": (4, np.int8), "uint8": (5, np.uint8), "int32": (6, np.int32), "int64": (7, np.int64)}
SUM, AVG = 0, 1


def to_bf16(values):
    """fp32 to bf16, nearest even; finite values only."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bf16(halves):
    return (halves.astype(np.uint32) << 16).view(np.float32)


def data(dtype, shape, *seed):
    """What one rank contributes: the same for the same seed."""
    generator = np.random.default_rng(seed)
    kind = DTYPES[dtype][1]
    if dtype == "bf16":
        return to_bf16(generator.standard_normal(shape, np.float32))
    if np.issubdtype(kind, np.integer):
        limits = np.iinfo(kind)
        return generator.integers(limits.min, limits.max, shape, dtype=kind, endpoint=True)
    return generator.standard_normal(shape).astype(kind)


def added(values):
    total = values[0].copy()
    for other in values[1:]:
        total += other
    return total


def expected(dtype, op, contributions, machines, rack_machines=0):
    """The result on every rank; `contributions` by rank, `machines[rank]` tells where a rank lives."""
    wide = {"fp16": np.float32, "bf16": np.float32}.get(dtype, DTYPES[dtype][1])
    values = [from_bf16(c) if dtype == "bf16" else c.astype(wide) for c in contributions]
    scale = wide(1.0 / len(values)) if op == AVG else None  # fp64 has a reciprocal of its own
    with np.errstate(over="ignore"):
        parts = []
        for machine in dict.fromkeys(machines):  # in the order of the lowest rank
            part = added([v for v, m in zip(values, machines) if m == machine])
            parts.append(part if scale is None else part * scale)
        if rack_machines:
            parts = [added(parts[i:i + rack_machines]) for i in range(0, len(parts), rack_machines)]
        total = np.zeros_like(values[0]) + added(parts)
    return to_bf16(total) if dtype == "bf16" else total.astype(DTYPES[dtype][1])
