"""Max-min: ARITHMETIC.md "Max-min"."""

import numpy as np

from arithmetic import FLOAT_MAX, INF, NAN, Codec, F, dither, floats, magnitude, max_magnitude, pack


class Levels:
    """How one bucket is quantized: value = lo + (code - z) * unit."""

    def __init__(self, unit, lo, z, m, inverse=F(0), base=F(0), prescale=F(1)):
        self.unit, self.lo, self.z, self.m = unit, lo, z, m
        self.inverse, self.base, self.prescale = inverse, base, prescale
        self.first, self.last = 0, m

    def values(self, codes):
        return F(self.lo) + (np.asarray(codes) - self.z).astype(F) * F(self.unit)

    def narrow(self, limit):
        def beyond(code):
            return int(magnitude(self.values([code]))[0]) >= limit
        while beyond(self.last) and self.last > self.first:
            self.last -= 1
        while beyond(self.first) and self.first < self.last:
            self.first += 1

    def codes(self, x, bits, stochastic, key):
        offset = x * self.prescale - self.base
        if stochastic:
            one = 2**8 if bits <= 4 else 2**16
            fixed = np.rint(offset * (self.inverse * F(one))).astype(int) + self.z * one
            codes = (np.clip(fixed, 0, self.m * one) + dither(key, 8 if bits <= 4 else 16, len(x))) // one
        else:
            codes = np.clip(np.rint(offset * self.inverse).astype(int) + self.z, 0, self.m)
        return np.clip(codes, self.first, self.last)


class MaxMin(Codec):
    def __init__(self, text, bits, stochastic):
        super().__init__(text)
        self.bits, self.stochastic = bits, stochastic

    def fit(self, x, limit):
        """(levels, zero-exact)"""
        m = 2**self.bits - 1
        huge = max_magnitude(x) >= 0x7E000000
        s = F(2.0**-8) if huge else F(1)
        lo, hi = x.min() * s + F(0), x.max() * s + F(0)
        span, zero = hi - lo, bool((x == 0).any())
        if span < F(2.0**-100):
            return Levels(F(0), F(0) if zero else x.min() + F(0), 0, 0), False
        exact = zero and self.bits > 1
        inside = exact and lo < 0 < hi
        steps = F(m - 1 if inside else m)
        unit, inverse = span / steps, steps / span
        z, base, sent_lo = 0, lo, lo / s
        if exact:
            z = min(int(np.ceil(-lo / unit)), m) if inside else 0 if lo == 0 else m
            base, sent_lo = F(0), F(0)
        levels = Levels(min(unit / s, FLOAT_MAX) if huge else unit, sent_lo, z, m, inverse, base, s)
        if huge or limit != INF:
            levels.narrow(limit)
        return levels, exact

    def bucket(self, x, key, limit):
        if max_magnitude(x) >= INF:
            codes = np.zeros(len(x), int)
            return np.array([0, NAN], np.uint32).tobytes(), pack(codes, self.bits), floats([NAN] * len(x))
        levels, exact = self.fit(x, limit)
        codes = levels.codes(x, self.bits, self.stochastic, key)
        words = [-levels.unit, F(levels.z)] if exact else [levels.unit, levels.lo]
        return np.array(words, F).tobytes(), pack(codes, self.bits), levels.values(codes)


def codecs():
    yield "maxmin", 1, [MaxMin(f"maxmin:{bits},bucket=64" + (",stochastic" if stochastic else ""), bits, stochastic)
                        for bits in range(1, 9) for stochastic in (False, True)]
