"""One bit per value: ARITHMETIC.md "Signs"."""

import numpy as np

from arithmetic import (INF, NAN, Codec, F, bits_of, canonical, floats, magnitude, max_magnitude, pack, sum_scale,
                        total)


def mean(x, wanted, largest):
    """Of the wanted values; never beyond the largest magnitude."""
    count = int(wanted.sum())
    if count == 0:
        return F(0)
    s = sum_scale(largest)
    value = total(np.where(wanted, x * s, F(0))) / F(count) / s
    if magnitude(value) > largest:
        value = floats((bits_of(value) & np.uint32(0x80000000)) | np.uint32(largest))
    return F(value)


def mean_magnitude(x):
    """NaN where the bucket is not finite."""
    largest = max_magnitude(x)
    if largest >= INF:
        return floats(NAN)
    if int(magnitude(x).min()) == largest:
        return floats(largest)
    return mean(np.abs(x), np.ones(len(x), bool), largest)


class Sign(Codec):
    def numbers(self, x):
        """(what a clear bit stands for, what a set bit stands for, metadata)"""
        scale = mean_magnitude(x)
        return scale, F(0) - scale, [scale]

    def bucket(self, x, key, limit):
        clear, set_, words = self.numbers(x)
        signs = (bits_of(x) >> np.uint32(31)).astype(int)
        if max_magnitude(x) >= INF:
            signs, clear, set_ = 0 * signs, floats(NAN), floats(NAN)
            words = [clear] * len(words)
        return np.array(words, F).tobytes(), pack(signs, 1), np.where(signs == 1, F(set_), F(clear)).astype(F)


class Vote(Sign):
    def merge(self, parts):
        result = []
        for start in range(0, len(parts[0]), self.bucket_size):
            votes, weight = 0, F(0)
            for part in (whole[start:start + self.bucket_size] for whole in parts):
                votes = votes + np.where(bits_of(part) >> np.uint32(31) == 1, -1, 1)
                weight = weight + mean_magnitude(part)
            odd = np.arange(len(votes)) % 2 == 1
            negative = (votes < 0) | ((votes == 0) & odd)
            result.append(canonical(np.where(negative, F(0) - weight, weight).astype(F)))
        return np.concatenate(result)


class OneBit(Sign):
    def numbers(self, x):
        largest, negative = max_magnitude(x), bits_of(x) >> np.uint32(31) == 1
        clear, set_ = mean(x, ~negative, largest), mean(x, negative, largest) + F(0)
        return clear, set_, [clear, set_]


def codecs():
    yield "efsign", 1, [Sign("efsign,bucket=64")]
    yield "signsgd", 1, [Vote("signsgd,bucket=64")]
    yield "onebit", 1, [OneBit("onebit,bucket=64")]
