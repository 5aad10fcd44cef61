"""Writes the golden vectors from kernels/ARITHMETIC.md alone: numpy in fp32, nothing of the C++ code.

Run without arguments to rewrite maxmin.txt beside this file; golden_test.py compares instead.
"""

import os
import sys

import numpy as np

F = np.float32
MASK64 = (1 << 64) - 1
GOLDEN64, GOLDEN32 = 0x9E3779B97F4A7C15, 0x9E3779B9
BUCKET = 64


def mix64(x):
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK64
    return x ^ (x >> 31)


def bucket_key(stream, bucket):
    return mix64((stream + (bucket + 1) * GOLDEN64) & MASK64)


def draw(key, index):
    x = (index * GOLDEN32 + key) & 0xFFFFFFFF
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & 0xFFFFFFFF
    x ^= key >> 32
    x = ((x ^ (x >> 15)) * 0x846CA68B) & 0xFFFFFFFF
    return x ^ (x >> 16)


def draw_stream(*words):
    stream = 0
    for word in words:
        stream = mix64(((stream ^ word) + GOLDEN64) & MASK64)
    return stream


def dither(key, bits, e):
    block, j, l = e // 64, e % 64 // 16, e % 16
    if bits <= 4:
        return draw(key, 16 * block + l) >> (8 * j) & 0xFF
    return draw(key, 32 * block + 16 * (j // 2) + l) >> (16 * (j % 2)) & 0xFFFF


def fit(x, bits):
    """unit, lo, z, zero_exact, prescale, base, inverse of one bucket; None if it is not finite."""
    m = 2**bits - 1
    if not np.isfinite(x).all():
        return None
    huge = np.abs(x).max() >= F(2.0**125)
    prescale = F(2.0**-8) if huge else F(1)
    lo, hi = x.min() * prescale + F(0), x.max() * prescale + F(0)
    span = hi - lo
    zero = bool((x == 0).any())
    if span < F(2.0**-100):
        return F(0), F(0) if zero else x.min() + F(0), 0, False, F(1), F(0), F(0)
    zero_exact = zero and bits > 1
    inside = zero_exact and lo < 0 < hi
    steps = F(m - 1 if inside else m)
    unit, inverse = span / steps, steps / span
    if zero_exact:
        z = min(int(np.ceil(-lo / unit)), m) if inside else (0 if lo == 0 else m)
        base, sent_lo = F(0), F(0)
    else:
        z, base, sent_lo = 0, lo, lo / prescale
    if huge:
        with np.errstate(over="ignore"):
            unit = min(unit / prescale, np.finfo(F).max)
    return F(unit), F(sent_lo), z, zero_exact, prescale, base, inverse


def values(unit, lo, z, codes):
    with np.errstate(over="ignore"):
        return np.array([lo + F(int(c) - z) * unit for c in codes], F)


def encode_bucket(x, bits, stochastic, key):
    """(metadata bytes, codes)"""
    m = 2**bits - 1
    found = fit(x, bits)
    if found is None:
        return np.array([0, 0x7FC00000], np.uint32).tobytes(), np.zeros(len(x), int)
    unit, lo, z, zero_exact, prescale, base, inverse = found
    scale = 256 if bits <= 4 else 65536
    codes = np.zeros(len(x), int)
    finite = [c for c in range(m + 1) if np.isfinite(values(unit, lo, z, [c]))[0]] if inverse else [0]
    for e, value in enumerate(x):
        offset = value * prescale - base
        if stochastic:
            fixed = int(np.rint(offset * (inverse * F(scale)))) + z * scale
            code = (min(max(fixed, 0), m * scale) + dither(key, bits, e)) // scale
        else:
            code = min(max(int(np.rint(offset * inverse)) + z, 0), m)
        codes[e] = min(max(code, finite[0]), finite[-1])
    words = [-unit, F(z)] if zero_exact else [unit, lo]
    return np.array(words, F).tobytes(), codes


def pack_block(codes, bits):
    codes = np.concatenate([codes, np.zeros(64 - len(codes), int)]).astype(np.uint64).reshape(4, 16)
    out, shift = b"", 0
    for width in (8, 4, 2, 1):
        if not bits & width:
            continue
        part = (codes >> np.uint64(shift)) & np.uint64(2**width - 1)
        shift += width
        if width == 1:
            out += np.packbits(part.reshape(64).astype(np.uint8), bitorder="little").tobytes()
        elif width == 8:
            out += part.astype(np.uint8).tobytes()
        else:
            lanes = sum(part[j] << np.uint64(width * j) for j in range(4))
            out += lanes.astype("<u2" if width == 4 else "<u1").tobytes()
    return out


def encode(x, bits, stochastic, stream, first_bucket):
    """(encoded range, decoded values)"""
    meta, packed, decoded = b"", b"", []
    for b, start in enumerate(range(0, len(x), BUCKET)):
        part = x[start:start + BUCKET]
        head, codes = encode_bucket(part, bits, stochastic, bucket_key(stream, first_bucket + b))
        meta += head
        packed += pack_block(codes, bits)
        found = fit(part, bits)
        if found is None:
            decoded.append(np.full(len(part), np.uint32(0x7FC00000)).view(F))
        else:
            decoded.append(values(found[0], found[1], found[2], codes))
    return meta + packed, np.concatenate(decoded)


def inputs():
    """Every kind of bucket, 64 values each, and a short one at the end of `normal`."""
    bits = np.array([draw(0x1234567890ABCDEF, i) for i in range(64)], np.uint32)
    uniform = (bits >> np.uint32(8)).astype(F) * F(2.0**-24) - F(0.25)  # [-0.25, 0.75)
    sparse = np.where(bits & 3, F(0), uniform)
    minus = np.where(bits & 4, -F(0), uniform)
    spread = np.where(bits & 1, uniform * F(2.0**-80), uniform)
    yield "normal", np.concatenate([uniform, uniform[:7] + F(2)])
    yield "zeros", np.concatenate([sparse, minus, np.abs(sparse), -np.abs(sparse)])
    yield "constant", np.concatenate([np.full(64, F(0.1)), np.zeros(64, F), uniform * F(2.0**-101),
                                      np.where(bits & 1, F(0), F(2.0**-120))])
    special = uniform.copy()
    special[17], infinite = F("nan"), uniform.copy()
    infinite[63] = -F("inf")
    yield "nonfinite", np.concatenate([special, uniform, infinite])
    yield "huge", np.concatenate([uniform * F(2.0**127), sparse * F(2.0**126),
                                  np.where(bits & 1, np.finfo(F).max, -np.finfo(F).max)])
    yield "range", np.concatenate([spread, uniform * F(2.0**-95), (bits & np.uint32(0x1FF)).view(F)])


def fnv1a(data):
    digest = 0xCBF29CE484222325
    for byte in data:
        digest = ((digest ^ byte) * 0x100000001B3) & MASK64
    return digest


def lines():
    stream = draw_stream(1, 2, 3, 4, (5 << 32) | 6)
    yield "# Golden vectors of max-min quantization, bucket 64; written by generate.py, read by golden_test.*"
    yield f"stream {stream:016x}"
    yield "draws " + " ".join(f"{draw(bucket_key(stream, 7), i):08x}" for i in range(8))
    for name, x in inputs():
        x = x.astype(F)
        yield f"input {name} " + x.tobytes().hex()
        for bits in range(1, 9):
            for stochastic in (False, True):
                encoded, decoded = encode(x, bits, stochastic, stream, 7)
                spec = f"maxmin:{bits},bucket=64" + (",stochastic" if stochastic else "")
                yield f"case {name} {spec} {encoded.hex()} {fnv1a(decoded.tobytes()):016x}"


def text():
    return "\n".join(lines()) + "\n"


if __name__ == "__main__":
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "maxmin.txt"), "w", encoding="ascii") as file:
        file.write(text())
    sys.exit(0)
