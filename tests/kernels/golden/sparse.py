"""Some values of each 65,536: ARITHMETIC.md "Sparse"."""

import numpy as np

from arithmetic import INF, NAN, Codec, F, bits_of, bucket_key, draws, floats, magnitude, max_magnitude, padded
from casts import Half
from maxmin import MaxMin

BUCKET = 65536
NONE, LIST, GAPS, BITMAP, DRAWN = range(5)


def put_values(x, kind, limit):
    """(bytes, what they decode to)"""
    if kind == "fp32":
        return padded(x.tobytes()), x
    if kind == "fp16":
        _, data, sent = Half("fp16").bucket(x, 0, limit)
        return padded(data), sent
    codec, meta, codes, sent = MaxMin("", int(kind[6:]), False), b"", b"", [np.zeros(0, F)]
    for start in range(0, len(x), 512):
        part = codec.bucket(x[start:start + 512], 0, limit)
        meta, codes = meta + part[0], codes + part[1]
        sent.append(part[2])
    return meta + codes, np.concatenate(sent)


def put_gaps(index):
    out, following = bytearray(), 0
    for i in index:
        gap, following = int(i) - following, int(i) + 1
        out += b"\xff" * (gap // 255) + bytes([gap % 255])
    return bytes(out)


def put_indices(index, n):
    """(form, bytes): the shortest; of equal ones the one with the lower number."""
    if len(index) == 0:
        return NONE, b""
    bitmap = np.zeros(n, np.uint8)
    bitmap[index] = 1
    forms = [(LIST, index.astype("<u2").tobytes()), (GAPS, put_gaps(index)),
             (BITMAP, np.packbits(bitmap, bitorder="little").tobytes())]
    return min(((form, padded(data)) for form, data in forms), key=lambda item: (len(item[1]), item[0]))


def entry(count, form, flags, body):
    return (np.array([8 + len(body)], "<u4").tobytes() + np.array([count], "<u2").tobytes() + bytes([form, flags]) +
            body)


class Sparse(Codec):
    def __init__(self, text, kind):
        super().__init__(text if kind == "fp32" else f"{text},values={kind}", BUCKET)
        self.kind = kind

    def wire_bucket(self, x, key, limit):
        """(entry, decoded, the values as they are on the wire)"""
        raise NotImplementedError

    def bucket(self, x, key, limit):
        data, decoded, _ = self.wire_bucket(x, key, limit)
        return b"", data, decoded


class Largest(Sparse):
    """The `most` of largest magnitude, of equal ones the first; none below `floor` (bits)."""

    def want(self, n):
        raise NotImplementedError

    def wire_bucket(self, x, key, limit):
        if max_magnitude(x) >= limit:
            return entry(0, NONE, 1, b""), floats([NAN] * len(x)), None
        most, floor = self.want(len(x))
        order = np.argsort(-magnitude(x).astype(np.int64), kind="stable")[:most]
        index = np.sort(order[magnitude(x)[order] >= floor])
        form, indices = put_indices(index, len(x))
        values, sent = put_values(x[index], self.kind, limit)
        decoded = np.zeros(len(x), F)
        decoded[index] = sent
        return entry(len(index), form, 0, indices + values), decoded, decoded


class TopK(Largest):
    def __init__(self, share, kind):
        super().__init__(f"topk:{share}", kind)
        self.share = F(share)

    def want(self, n):
        numerator, denominator = float(self.share).as_integer_ratio()
        return max(-(-n * numerator // denominator), 1), 1


class Threshold(Largest):
    def __init__(self, threshold, kind):
        super().__init__(f"threshold:{threshold}", kind)
        self.threshold = F(threshold)

    def want(self, n):
        return (n + 3) // 4, int(bits_of(self.threshold))


class RandomK(Sparse):
    def __init__(self, share, kind, feedback=False):
        super().__init__(f"randomk:{share}", kind)
        self.text += ",feedback" if feedback else ""
        self.stride, self.feedback = int(F(1) / F(share) + F(0.5)), feedback

    def weigh(self, x, index, n, limit):
        """Each value times the length of its stratum; stays below the limit."""
        if self.feedback:
            return x
        weighed = x * np.minimum(self.stride, n - index // self.stride * self.stride).astype(F)
        largest = floats((bits_of(weighed) & np.uint32(0x80000000)) | np.uint32(limit - 1))
        return np.where(magnitude(weighed) >= limit, largest, weighed)

    def wire_bucket(self, x, key, limit):
        n, count = len(x), -(-len(x) // self.stride)
        strata = np.arange(count) * self.stride
        lengths = np.minimum(self.stride, n - strata)
        index = strata + (draws(key, count).astype(np.uint64) * lengths.astype(np.uint64) >> np.uint64(32)).astype(int)
        name = np.array([key], "<u8").tobytes()
        values, sent = put_values(x[index], self.kind, limit)
        if max_magnitude(x) >= limit:
            return entry(count, DRAWN, 1, name + bytes(len(values))), floats([NAN] * n), None
        decoded, wire = np.zeros(n, F), np.zeros(n, F)
        decoded[index], wire[index] = self.weigh(sent, index, n, limit), sent
        return entry(count, DRAWN, 0, name + values), decoded, wire

    def contribution(self, x, stream, first_bucket):
        parts = []
        for b, start in enumerate(range(0, len(x), BUCKET)):
            part = self.wire_bucket(x[start:start + BUCKET], bucket_key(stream, first_bucket + b), INF)
            parts.append(part[1] if part[2] is None else part[2])
        return np.concatenate(parts)


KINDS = ("fp32", "fp16", "maxmin8", "maxmin4")


def codecs():
    yield "topk", 1, [TopK(0.01, kind) for kind in KINDS] + [TopK(0.25, "fp32"), TopK(0.0001, "fp32")]
    yield "threshold", 1, [Threshold(0.001, kind) for kind in KINDS] + [Threshold(3, "fp32")]
    yield "randomk", 1, [RandomK(0.01, kind) for kind in KINDS] + [RandomK(0.25, "fp32"), RandomK(0.01, "fp32", True)]
