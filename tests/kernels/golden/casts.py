"""fp32, fp16, bf16: one number per value."""

import numpy as np

from arithmetic import Codec, INF, bits_of, from_brain, from_half, magnitude, to_brain, to_half


class Raw(Codec):
    def bucket(self, x, key, limit):
        return b"", x.tobytes(), x


def saturated(words, x, high, largest):
    sign = (bits_of(x) >> np.uint32(16)).astype(np.uint16) & np.uint16(0x8000)
    return np.where(high, sign | np.uint16(largest), words)


class Half(Codec):
    def bucket(self, x, key, limit):
        high = (magnitude(x) >= 0x477FF000) & (magnitude(x) < INF)
        words = saturated(to_half(x), x, high, 0x7BFF)
        return b"", words.tobytes(), from_half(words)


class Brain(Codec):
    def bucket(self, x, key, limit):
        largest = (limit - 1) >> 16
        high = (magnitude(x) >= (largest << 16 | 0x8000)) & (magnitude(x) < INF)
        words = saturated(to_brain(x), x, high, largest)
        return b"", words.tobytes(), from_brain(words)


def codecs():
    # Casts have no scale to share: the default bucket, so that the text is the name.
    yield "fp32", 1, [Raw("fp32", 512)]
    yield "fp16", 1, [Half("fp16", 512)]
    yield "bf16", 1, [Brain("bf16", 512)]
