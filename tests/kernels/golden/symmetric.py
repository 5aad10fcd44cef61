"""Uniform levels around zero (qsgd, terngrad, int8): ARITHMETIC.md "Symmetric levels"."""

import numpy as np

from arithmetic import FLOAT_MAX, INF, NAN, Codec, F, floats, magnitude, max_magnitude, pack, square_scale, total
from maxmin import Levels


def largest_level(x, norm):
    largest = floats(max_magnitude(x))
    if norm == "max":
        return largest
    s = square_scale(max_magnitude(x))
    squares = total((x * s) * (x * s))
    if norm == "clip":
        clipped = F(2.5) * (np.sqrt(squares / F(len(x))) / s)
        return clipped if F(2.0**-100) <= clipped < largest else largest
    root = np.sqrt(squares) / s
    return FLOAT_MAX if not np.isfinite(root) else max(root, largest)


class Symmetric(Codec):
    def __init__(self, text, bits, stochastic, norm):
        super().__init__(text)
        self.bits, self.stochastic, self.norm = bits, stochastic, norm

    def fit(self, x, limit):
        s = 2**(self.bits - 1) - 1
        level = largest_level(x, self.norm)
        levels = Levels(F(0), F(0), s, 2 * s)
        if level < F(2.0**-100):
            levels.first = levels.last = s
            return levels, level
        huge = max_magnitude(level) >= 0x7E000000
        levels.prescale = F(2.0**-8) if huge else F(1)
        levels.inverse = F(s) / (level * levels.prescale)
        levels.unit = level / F(s)
        if huge or limit != INF:
            levels.narrow(limit)
        return levels, level

    def bucket(self, x, key, limit):
        if max_magnitude(x) >= INF:
            return floats([NAN]).tobytes(), pack(np.zeros(len(x), int), self.bits), floats([NAN] * len(x))
        levels, level = self.fit(x, limit)
        if self.norm == "clip" and levels.unit:
            x = np.copysign(np.minimum(np.abs(x), level), x)
        codes = levels.codes(x, self.bits, self.stochastic, key)
        return np.array([levels.unit], F).tobytes(), pack(codes, self.bits), levels.values(codes)


def codecs():
    rounding = (("", False), (",stochastic", True))
    yield "qsgd", 1, [Symmetric(f"qsgd:{bits},bucket=64{text}{norm}", bits, stochastic, "l2" if norm else "max")
                      for bits in range(2, 9) for text, stochastic in rounding for norm in ("", ",norm=l2")]
    yield "terngrad", 1, [Symmetric("terngrad,bucket=64", 2, True, "max"),
                          Symmetric("terngrad,bucket=64,clip", 2, True, "clip")]
    yield "int8", 1, [Symmetric(f"int8,bucket=64{text}", 8, stochastic, "max") for text, stochastic in rounding]
