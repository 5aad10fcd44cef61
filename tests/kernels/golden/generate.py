"""Writes the golden vectors from kernels/ARITHMETIC.md alone: numpy in fp32, nothing of the C++ code.

One file per codec, and inputs.txt with the values they share. Run without arguments to rewrite them beside this file;
golden_test.py compares instead. A family of codecs is a module with codecs(): name, wire version, specs.
"""

import os

import numpy as np

import casts
import fp8
import maxmin
import natural
import signs
import sparse
import symmetric
from arithmetic import (F, LIMITS, MASK64, bucket_key, canonical, draw_stream, draws, floats, from_brain, from_half,
                        overflow_to_infinity, to_brain, to_half)

HERE = os.path.dirname(os.path.abspath(__file__))
FAMILIES = (casts, maxmin, signs, symmetric, natural, fp8, sparse)
STREAM = draw_stream(1, 2, 3, 4, (5 << 32) | 6)
FIRST_BUCKET = 7
LONGEST = 48  # bytes; of longer encodings a digest is kept

# Three machines' parts of a sum, the second one raw, for each type of tensor.
REDUCTIONS = (("fp32", "several", "sparse", "zeros"), ("fp32", "huge", "nonfinite", "range"),
              ("fp16", "tall", "tall", "tall"), ("bf16", "tall", "several", "several"))
# Longer than a bucket of the sparse codecs; made by draws, on both sides.
LONG = {"long": 0x5EED, "other": 0xFEED}
LONG_COUNT = 65536 + 300


def inputs():
    """Every kind of bucket, 64 values each."""
    bits = draws(0x1234567890ABCDEF, 256)
    uniform = (bits >> np.uint32(8)).astype(F) * F(2.0**-24) - F(0.25)  # [-0.25, 0.75)
    block, noise = uniform[:64], bits[:64]
    sparse = np.where(noise & 3, F(0), block)
    minus = np.where(noise & 4, -F(0), block)
    yield "one", uniform[:1]
    yield "short", uniform[1:64]
    yield "block", uniform[:64]
    yield "over", np.concatenate([block, uniform[64:65] + F(2)])
    yield "several", uniform[:200]
    yield "zeros", np.concatenate([sparse, minus, np.abs(sparse), -np.abs(sparse)])
    yield "sparse", np.where(bits[:200] & 7, F(0), uniform[:200])
    yield "nothing", np.concatenate([np.zeros(64, F), np.full(64, -F(0))])
    yield "constant", np.concatenate([np.full(64, F(0.1)), np.full(64, -F(3)), block * F(2.0**-101),
                                      np.where(noise & 1, F(0), F(2.0**-120))])
    special, infinite, payload = block.copy(), block.copy(), block.copy()
    special[17], infinite[63] = F("nan"), -F("inf")
    payload.view(np.uint32)[[3, 40]] = 0x7F800001, 0xFFC12345
    yield "nonfinite", np.concatenate([special, block, infinite, payload])
    yield "huge", np.concatenate([block * F(2.0**127), sparse * F(2.0**126), np.where(noise & 1, F(3e38), F(-3.4e38)),
                                  block * F(2.0**112)])
    spread = np.where(noise & 1, block * F(2.0**-80), block)
    yield "range", np.concatenate([spread, block * F(2.0**-95), floats(noise & np.uint32(0x1FF)),
                                   floats(noise & np.uint32(0x807FFFFF))])
    yield "tiny", np.concatenate([np.where(noise & 1, floats(0x80000001), -F(0)), np.where(noise & 1, floats(1), F(0)),
                                  np.where(noise & 1, floats(0x00800000), F(2.0**-99))])
    edges = [0x477FE000, 0x477FEFFF, 0x477FF000, 0xC77FF000, 0x477F8000, 0x477F7FFF, 0x7F7F7FFF, 0x7F7F8000, 0xFF7FFFFF,
             0x33000000, 0x33000001, 0x38800000, 0x387FC000, 0x3F808000, 0x3F818000, 0x00008000, 0x00018000, 0x3F801000]
    yield "edges", floats(edges)
    yield "tall", np.concatenate([block * F(80000), np.where(noise & 1, block, F(0)) * F(60000), block[:9] * F(3)])


def drawn(key):
    """Magnitudes from 2^-7 to 2, a quarter zeros."""
    bits = draws(key, LONG_COUNT)
    values = floats((bits & np.uint32(0x807FFFFF)) | ((np.uint32(120) + (bits >> np.uint32(23) & np.uint32(7)))
                                                      << np.uint32(23)))
    return np.where(bits >> np.uint32(26) & np.uint32(3), values, F(0))


def fnv1a(data):
    digest = 0xCBF29CE484222325
    for byte in data:
        digest = ((digest ^ byte) * 0x100000001B3) & MASK64
    return f"{digest:016x}"


def bytes_text(data):
    return data.hex() if len(data) <= LONGEST else f"digest:{len(data)}:{fnv1a(data)}"


def as_type(x, dtype):
    """A tensor's elements, as bytes, and what they are as fp32."""
    if dtype == "fp16":
        return to_half(x).tobytes(), from_half(to_half(x))
    if dtype == "bf16":
        return to_brain(x).tobytes(), from_brain(to_brain(x))
    return x.tobytes(), x


def reduction(codec, dtype, parts):
    """(encoded sum, its values as the tensor has them) of parts: encoded, raw, encoded."""
    count = min(len(part) for part in parts)
    seen = []
    for machine, part in enumerate(parts):
        part = as_type(part[:count], dtype)[1]
        seen.append(canonical(part) if machine == 1 else codec.contribution(part, STREAM, FIRST_BUCKET))
    merged = overflow_to_infinity(codec.merge(seen), LIMITS[dtype])
    encoded, decoded = codec.encode(merged, STREAM, FIRST_BUCKET, LIMITS[dtype])
    return encoded, as_type(decoded, dtype)[0]


def codec_lines(name, version, specs, values):
    reductions = REDUCTIONS
    if specs[0].bucket_size > 4096:
        values = values | {name: drawn(key) for name, key in LONG.items()}
        reductions += (("fp32", "long", "other", "long"), ("fp16", "other", "long", "long"))
    yield f"# Golden vectors of {name}; written by generate.py from kernels/ARITHMETIC.md, read by golden_test.*"
    yield f"codec {name}"
    yield f"version {version}"
    for codec in specs:
        for input_name, x in values.items():
            encoded, decoded = codec.encode(x, STREAM, FIRST_BUCKET)
            yield f"case {input_name} {codec.text} {bytes_text(encoded)} {fnv1a(decoded.tobytes())}"
        for dtype, *parts in reductions:
            encoded, result = reduction(codec, dtype, [values[part] for part in parts])
            yield f"reduce {dtype} {' '.join(parts)} {codec.text} {bytes_text(encoded)} {fnv1a(result)}"


def input_lines(values):
    yield "# What the golden vectors are made of: fp32, little-endian; written by generate.py"
    yield f"stream {STREAM:016x}"
    yield "draws " + " ".join(f"{x:08x}" for x in draws(bucket_key(STREAM, FIRST_BUCKET), 8))
    for name, x in values.items():
        yield f"input {name} {x.tobytes().hex()}"
    for name, key in LONG.items():
        yield f"drawn {name} {LONG_COUNT} {key:x}"


def files():
    """(file name, text) of all."""
    values = {name: np.ascontiguousarray(x, F) for name, x in inputs()}
    yield "inputs.txt", "\n".join(input_lines(values)) + "\n"
    for family in FAMILIES:
        for name, version, specs in family.codecs():
            yield f"{name}.txt", "\n".join(codec_lines(name, version, specs, values)) + "\n"


if __name__ == "__main__":
    for file_name, text in files():
        with open(os.path.join(HERE, file_name), "w", encoding="ascii") as file:
            file.write(text)
