"""What kernels/ARITHMETIC.md says of all codecs, in numpy: special values, sums, draws, dither, planes, ranges."""

import numpy as np

F = np.float32
np.seterr(all="ignore")

MASK64 = (1 << 64) - 1
GOLDEN64, GOLDEN32 = 0x9E3779B97F4A7C15, 0x9E3779B9
INF, NAN = 0x7F800000, 0x7FC00000
LIMITS = {"fp32": INF, "fp16": 0x477FF000, "bf16": 0x7F7F8000}
FLOAT_MAX = np.finfo(F).max
BUCKET = 64


def floats(bits):
    return np.asarray(bits, np.uint32).view(F)


def bits_of(x):
    return np.ascontiguousarray(x, F).view(np.uint32)


def magnitude(x):
    return bits_of(x) & np.uint32(0x7FFFFFFF)


def canonical(x):
    return floats(np.where(magnitude(x) > INF, np.uint32(NAN), bits_of(x)))


def max_magnitude(x):
    return int(magnitude(x).max())


def to_half(x):
    """Nearest even; every NaN becomes 7E00."""
    return np.where(magnitude(x) > INF, np.uint16(0x7E00), x.astype(np.float16).view(np.uint16))


def to_brain(x):
    bits = bits_of(x).astype(np.uint64)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(magnitude(x) > INF, np.uint16(0x7FC0), rounded)


def from_half(words):
    return canonical(words.view(np.float16).astype(F))


def from_brain(words):
    return canonical(floats(words.astype(np.uint32) << np.uint32(16)))


def total(values):
    """64 partials, then a tree."""
    partials = np.zeros(64, F)
    for start in range(0, len(values), 64):
        part = values[start:start + 64]
        partials[:len(part)] += part
    half = 32
    while half:
        partials[:half] += partials[half:2 * half]
        half //= 2
    return partials[0]


def sum_scale(largest):
    return F(2.0**-13) if largest >= 0x76800000 else F(1)


def square_scale(largest):
    return F(2.0**-70) if largest >= 0x5B800000 else F(1)


def mix64(x):
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK64
    return x ^ (x >> 31)


def draw_stream(*words):
    stream = 0
    for word in words:
        stream = mix64(((stream ^ word) + GOLDEN64) & MASK64)
    return stream


def bucket_key(stream, bucket):
    return mix64((stream + (bucket + 1) * GOLDEN64) & MASK64)


def draws(key, count):
    """Draws 0 .. count - 1 of a bucket."""
    x = np.arange(count, dtype=np.uint32) * np.uint32(GOLDEN32) + np.uint32(key & 0xFFFFFFFF)
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D)
    x ^= np.uint32(key >> 32)
    x = (x ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B)
    return x ^ (x >> np.uint32(16))


def dither(key, bits, n):
    """The dither of values 0 .. n - 1: a byte each up to 8 bits, else a halfword."""
    e = np.arange(n)
    block, j, lane = e // 64, e % 64 // 16, e % 16
    if bits == 8:
        return (draws(key, 16 * (n // 64 + 1))[16 * block + lane] >> (8 * j).astype(np.uint32)).astype(int) & 0xFF
    index, shift = 32 * block + 16 * (j // 2) + lane, (16 * (j % 2)).astype(np.uint32)
    return (draws(key, 32 * (n // 64 + 1))[index] >> shift).astype(int) & 0xFFFF


def pack(codes, bits):
    """Codes of one bucket as blocks of planes."""
    codes = np.concatenate([codes, np.zeros(-len(codes) % 64, int)]).astype(np.uint64)
    return b"".join(pack_block(codes[i:i + 64].reshape(4, 16), bits) for i in range(0, len(codes), 64))


def pack_block(codes, bits):
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


def padded(data):
    return data + bytes(-len(data) % 8)


class Codec:
    """One spec of a codec whose ranges are metadata, then codes. A family supplies bucket()."""

    def __init__(self, text, bucket=BUCKET):
        self.text, self.bucket_size = text, bucket

    def bucket(self, x, key, limit):
        """(metadata bytes, code bytes, decoded values) of one bucket."""
        raise NotImplementedError

    def encode(self, x, stream, first_bucket, limit=INF):
        """(encoded range, decoded values)"""
        meta, codes, decoded = b"", b"", []
        for b, start in enumerate(range(0, len(x), self.bucket_size)):
            part = self.bucket(x[start:start + self.bucket_size], bucket_key(stream, first_bucket + b), limit)
            meta += part[0]
            codes += part[1]
            decoded.append(part[2])
        return padded(meta + codes), np.concatenate(decoded)

    def contribution(self, x, stream, first_bucket):
        """What an encoded part adds to a sum."""
        return self.encode(x, stream, first_bucket)[1]

    def merge(self, parts):
        """The sum of contributions, from +0.0."""
        result = np.zeros(len(parts[0]), F)
        for part in parts:
            result = canonical(result + part)
        return result


def overflow_to_infinity(x, limit):
    high = (magnitude(x) >= limit) & (magnitude(x) < INF)
    return floats(np.where(high, (bits_of(x) & np.uint32(0x80000000)) | np.uint32(INF), bits_of(x)))
