"""Powers of two: ARITHMETIC.md "Natural levels"."""

import numpy as np

from arithmetic import INF, NAN, Codec, F, bits_of, dither, floats, magnitude, max_magnitude, pack


class Natural(Codec):
    def __init__(self, text, bits, stochastic):
        super().__init__(text)
        self.bits, self.stochastic = bits, stochastic
        self.levels = 2**(bits - 1) - 1

    def level(self, y, key):
        y_bits = bits_of(y).astype(int)

        def whole(raised):
            return (raised >> 23) - 127 + self.levels
        if not self.stochastic:
            m = whole(y_bits + 0x400000)
            return np.where(m > 0, m, y_bits >= (127 - self.levels) << 23)
        d = dither(key, 8, len(y))
        low = (np.rint(y * F(2.0**(self.levels - 1) * 256)).astype(int) + d) >> 8
        return np.where(y_bits >= (128 - self.levels) << 23, whole(y_bits + (d << 15 | 1 << 14)), low)

    def bucket(self, x, key, limit):
        largest = max_magnitude(x)
        if largest >= limit:
            return floats([NAN]).tobytes(), pack(np.zeros(len(x), int), self.bits), floats([NAN] * len(x))
        exponent = (largest + 0x7FFFFF) >> 23
        if exponent < 27:
            exponent = 0
        while exponent << 23 >= limit:
            exponent -= 1
        inverse = F(0) if exponent == 0 else F(2.0**(127 - exponent))
        m = np.minimum(self.level(floats(magnitude(x)) * inverse, key), self.levels)
        sign = (bits_of(x) >> np.uint32(31)).astype(int)
        value_bits = np.where((m > 0) & (exponent > 0), sign << 31 | (exponent - self.levels + m) << 23, 0)
        return (floats([exponent << 23]).tobytes(), pack(sign << (self.bits - 1) | m, self.bits),
                floats(value_bits.astype(np.uint32)))


def codecs():
    yield "natural", 1, [Natural(f"natural:{bits},bucket=64" + (",stochastic" if stochastic else ""), bits, stochastic)
                         for bits in range(2, 5) for stochastic in (False, True)]
