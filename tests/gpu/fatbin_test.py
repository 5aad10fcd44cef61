"""The machine code that nvcc makes has the kernels of kernels.def, all of them and no others, and exact arithmetic."""

import functools
import os
import re
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

import machine_code  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(HERE))
FATBINS = os.path.join(os.environ.get("CGX_BUILD_DIR", "build/release"), "lib")
KERNEL = re.compile(r"^[XQ]\((\w+), (\w+), ", re.MULTILINE)
QUANTIZER = re.compile(r"^Q\((\w+), ", re.MULTILINE)  # which have kernels for small buckets besides
FOUND = re.compile(r"^F\((\w+), ", re.MULTILINE)  # whose entries must be found before they are read
OPERATION = re.compile(r"^X\((\w+)", re.MULTILINE)
WRITING = ("encode", "reduce")
# What would give other bits than the scalar lane.
INEXACT = re.compile(rb"[^\n]*(?:\bfma\.|\.approx|\.ftz)[^\n]*")
DIVIDING = {"maxmin", "symmetric", "sign"}  # in fp32

# What the four values of a sixteen-byte line take to become codes, and to come of codes (machine_code.TOGETHER).
LEVELS = ({"to integer": 1}, {"to float": 1})
MAXMIN = ({"minimum": 1, **LEVELS[0]}, LEVELS[1])
NATURAL = ({"multiply": 1}, {"select": 1})
SIGN = ({}, {"select": 1})
HALF = ({"to half": 1}, {"from half": 1})
BRAIN = ({"select": 1}, {"select": 1})

# {kernel: (its kinds of work, {operation: the most instructions a value, on sm_80 and sm_90 alike})}. So that all
# multiprocessors together keep up with 0.85 of an H100's memory, a lane may spend 52 on a value in encode, 99 in decode_add, 117
# in reduce of four parts; the test holds what there was, and a tenth.
HELD = {
    "maxmin4": (MAXMIN, {"encode": 42, "decode": 21, "decode_add": 25, "reduce": 110, "combine": 90}),
    "maxmin4_small": (MAXMIN, {"encode": 67, "decode": 34, "decode_add": 36, "reduce": 164, "combine": 150}),
    "maxmin8": (MAXMIN, {"encode": 41, "decode": 20, "decode_add": 24}),
    "maxmin2": (MAXMIN, {"encode": 43, "decode": 21, "decode_add": 25}),
    "symmetric8": (LEVELS, {"encode": 34, "decode": 19, "decode_add": 23, "reduce": 100}),
    "symmetric8_small": (LEVELS, {"encode": 58, "decode": 30, "decode_add": 33}),
    "natural4": (NATURAL, {"encode": 34, "decode": 26, "decode_add": 30}),
    "signvote": (SIGN, {"decode": 17, "decode_add": 20}),
    "half": (HALF, {"encode": 36, "decode": 17, "decode_add": 20}),
    "brain": (BRAIN, {"encode": 30, "decode": 17, "decode_add": 21}),
}
REGISTERS_MAX = {"encode": 64, "decode": 48, "decode_add": 64, "reduce": 80, "combine": 64}
MORE_REGISTERS = {("encode", "maxmin2"): 80, ("encode", "symmetric8"): 80, ("decode", "maxmin8"): 64,
                  ("decode", "maxmin4_small"): 64,
                  ("decode", "symmetric8_small"): 64, ("decode_add", "natural4"): 72}
ARCHITECTURES = (80, 90)
WARP = 32
PARTS = 4


class Bucket:
    """What a warp works on at once: aligned fp32, of a kernel for small buckets four of 64 values, else one of 512."""

    def __init__(self, kernel):
        small = kernel.endswith("_small")
        self.values = 4 * 64 if small else 512
        self.fours = self.values // WARP // 4  # of a lane
        self.merged = 0 if small else 1  # as much is measured once more when thirty-two lanes tell each other


def rows(name, pattern):
    with open(os.path.join(ROOT, "kernels", "cuda", name), encoding="utf-8") as file:
        return pattern.findall(file.read())


def stems():
    """{family: the stems of its kernels}"""
    families = {}
    for stem, family in rows("kernels.def", KERNEL):
        families.setdefault(family, set()).add(stem)
    return families


def path_of(family):
    return os.path.join(FATBINS, f"{family}.fatbin")


def text_of(family):
    with open(path_of(family), "rb") as file:
        code = file.read()
    begin = code.index(b".version")
    return code[begin:code.index(b"\0", begin)]


PARTS_OF = {"reduce": 2, "combine": 1}


@functools.cache
def kernels_of(family, sm):
    return machine_code.kernels(path_of(family), sm)


def instructions(kernel, operation, kinds, bucket):
    """The least that a warp issues for a bucket: the shortest way around the kernel's loop over buckets that does its work."""
    fours = bucket.fours
    codes = {kind: fours * n + (bucket.merged if kind == "minimum" else 0) for kind, n in kinds[0].items()}
    values = {kind: fours * n for kind, n in kinds[1].items()}
    work = {
        "encode": {"load 128": fours, "shared store 128": fours, **codes, "store": 1},
        "decode": {**values, "store 128": fours},
        "decode_add": {"load 128": fours, **values, "store 128": fours},
        # With one encoded part.
        "reduce": {**codes, "store 128": fours},
        "combine": {"store 128": fours},
    }[operation]
    if operation not in PARTS_OF:
        return machine_code.least_walk(kernel, work)[0]
    times = PARTS_OF[operation]  # that values are made: of the part, and of the own codes
    one = {**work, **{kind: work.get(kind, 0) + times * n for kind, n in values.items()}}
    more = {kind: one[kind] + n for kind, n in values.items()}
    short, done = machine_code.least_walk(kernel, {**one, "load of a list": 1})
    # Each part reads its own line of the job's list, so none can be done in place of another.
    lines = done["load of a list"]
    longer, _ = machine_code.least_walk(kernel, {**one, **more, "load of a list": 2 * lines})
    # The sum is stored as zero, with the part, and canonical.
    whole, _ = machine_code.least_walk(kernel, {**one, "load of a list": lines, "shared store 128": 3 * fours})
    return whole + (PARTS - 1) * (longer - short)


@unittest.skipUnless(any(os.path.exists(path_of(family)) for family in stems()), "skipped: built without nvcc")
class Fatbins(unittest.TestCase):
    def test_they_have_the_kernels_of_the_list(self):
        for family, own in stems().items():
            with self.subTest(family):
                operations = rows("operations.def", OPERATION)
                small = {f"{stem}_small" for stem in own & set(rows("kernels.def", QUANTIZER))}
                listed = {f"cgx_{stem}_{operation}" for stem in own | small for operation in operations}
                listed |= {f"cgx_{stem}_find_{operation}" for stem in own & set(rows("kernels.def", FOUND))
                           for operation in operations if operation != "encode"}
                listed |= {f"cgx_norms_{operation}" for operation in WRITING}
                if family == "sparse":
                    listed |= {f"cgx_pack_{operation}" for operation in WRITING}
                found = {name.decode() for name in re.findall(rb"\.visible \.entry (\w+)\(", text_of(family))}
                self.assertEqual(found, listed)

    def test_they_neither_contract_nor_approximate_nor_flush(self):
        for family in stems():
            with self.subTest(family):
                text = text_of(family)
                self.assertEqual(INEXACT.findall(text), [])
                if family in DIVIDING:
                    self.assertIn(b"div.rn.f32", text)  # the text is the kernels'

    def test_they_keep_to_their_instructions_and_registers(self):
        families = {stem: family for family, own in stems().items() for stem in own}
        for name, (kinds, most) in HELD.items():
            bucket = Bucket(name)
            for sm in ARCHITECTURES:
                code = kernels_of(families[name.removesuffix("_small")], sm)
                for operation in most:
                    with self.subTest(f"{operation}/{name}/sm_{sm}"):
                        kernel = code[f"cgx_{name}_{operation}"]
                        each = instructions(kernel, operation, kinds, bucket) * WARP / bucket.values
                        print(f"figure: {operation}/{name}/sm_{sm}: {each:.1f} instructions a value, "
                              f"{kernel.registers} registers, {len(kernel.code)} instructions", flush=True)
                        registers = MORE_REGISTERS.get((operation, name), REGISTERS_MAX[operation])
                        self.assertTrue(0 < kernel.registers <= registers)
                        self.assertLessEqual(each, most[operation])

    def test_they_know_where_their_loads_go(self):
        """Not through generic addresses, which nvcc may not move across stores to shared memory."""
        for family in set(stems()) - {"sparse"}:
            for sm in ARCHITECTURES:
                for name, kernel in kernels_of(family, sm).items():
                    if not name.startswith(("cgx_wide", "cgx_norms")):
                        with self.subTest(name, sm=sm):
                            self.assertGreater(kernel.count("load"), 0)  # these are loads
                            self.assertEqual(kernel.count("generic load"), 0)


if __name__ == "__main__":
    unittest.main()
