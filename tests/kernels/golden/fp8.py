"""Eight-bit floats under a scale for every 32 values: ARITHMETIC.md "Eight-bit floats"."""

import numpy as np

from arithmetic import Codec, F, bits_of, canonical, floats, magnitude, max_magnitude


class Fp8(Codec):
    def __init__(self, text, mantissa_bits, bias, top):
        super().__init__(text)
        self.mantissa_bits, self.bias, self.top = mantissa_bits, bias, top
        codes = np.arange(128)
        exponent, mantissa = codes >> mantissa_bits, codes & (1 << mantissa_bits) - 1
        one = 1 << mantissa_bits
        self.numbers = np.where(codes == 0, 0, (1 + mantissa / one) * 2.0**(exponent - bias)).astype(F)

    def nearest(self, y):
        """The code of the nearest number; of two as near, the larger one. Below the smallest step: zero."""
        shift = 23 - self.mantissa_bits
        rounded = bits_of(y).astype(np.int64) + (1 << shift - 1) - (127 - self.bias << 23)
        return np.maximum(rounded, 0) >> shift

    def values(self, codes, scale):
        power = floats(0x400000 if scale == 0 else scale << 23)
        return canonical(self.numbers[codes & 127] * power * np.where(codes >> 7, F(-1), F(1)))

    def half(self, x, limit, finite):
        """(scale, codes, values) of up to 32 values."""
        if not finite:
            return 255, np.zeros(len(x), int), floats([0x7FC00000] * len(x))
        exponent = (max_magnitude(x) + 0x1FFFFF) >> 23
        scale = max(exponent - self.top, 0)
        codes = self.nearest(floats(magnitude(x)) * F(2.0**(127 - scale)))
        while (beyond := magnitude(self.values(codes, scale)) >= limit).any():
            codes = codes - beyond
        codes = codes | (bits_of(x) >> np.uint32(31)).astype(int) << 7
        return scale, codes, self.values(codes, scale)

    def bucket(self, x, key, limit):
        meta, data, decoded = b"", b"", []
        finite = max_magnitude(x) < limit
        for start in range(0, len(x), 64):
            scales, codes = [0, 0], np.zeros(64, np.uint8)
            for h in (0, 1):
                part = x[start + 32 * h:min(start + 32 * h + 32, start + 64)]
                if len(part) == 0:
                    continue
                scales[h], found, values = self.half(part, limit, finite)
                codes[32 * h:32 * h + len(part)] = found
                decoded.append(values)
            meta += bytes(scales)
            data += codes.reshape(4, 16).T.tobytes()
        return meta, data, np.concatenate(decoded)


def codecs():
    yield "fp8", 1, [Fp8("fp8:e4m3,bucket=64", 3, 7, 8), Fp8("fp8:e5m2,bucket=64", 2, 15, 15)]
