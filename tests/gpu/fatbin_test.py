"""The machine code that nvcc makes has the kernels of kernels.def, all of them and no others, and exact arithmetic."""

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

# Of max-min with 4 bits: how many instructions a lane may spend on a value, and registers. So that all multiprocessors together
# keep up with 0.85 of an H100's memory these are 52 for encode, 99 for decode_add, 117 for reduce of four parts; the test holds
# what there is. No load goes through a generic address, which nvcc may not move across stores to shared memory.
INSTRUCTIONS_MAX = {"encode": 42, "decode": 21, "decode_add": 25, "reduce": 110, "combine": 90}
REGISTERS_MAX = {"encode": 64, "decode": 48, "decode_add": 64, "reduce": 80, "combine": 64}
ARCHITECTURES = (80, 90)

# A warp's work on a bucket of 512 values, aligned fp32, which is four fours of values for each lane: what it loads and stores
# sixteen bytes at a time, what it measures (and once more when lanes tell each other), rounds to codes and makes of codes.
BUCKET, LANES, FOURS = 512, 32, 4
ENCODING = {"minimum": FOURS + 1, "to integer": FOURS}
WORK = {
    "encode": {"load 128": FOURS, "shared store 128": FOURS, **ENCODING, "store": 2},  # codes and metadata
    "decode": {"to float": FOURS, "store 128": FOURS},
    "decode_add": {"load 128": FOURS, "to float": FOURS, "store 128": FOURS},
}
# With one encoded part; the sum is stored as zero, with the part, and canonical. And what a part more takes.
WORK_ON_ONE = {
    "reduce": {**ENCODING, "to float": 2 * FOURS, "store 128": FOURS},
    "combine": {"to float": FOURS, "store 128": FOURS},
}
SUMMING = {"shared store 128": 3 * FOURS}
PARTS = 4


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


def instructions(kernel, operation):
    """The least that a warp issues for a bucket: the shortest way around the kernel's loop over buckets that does its work."""
    if operation in WORK:
        return machine_code.least_walk(kernel, WORK[operation])[0]
    one = WORK_ON_ONE[operation]
    short, done = machine_code.least_walk(kernel, {**one, "load of a list": 1})
    # Each part reads its own line of the job's list, so none can be done in place of another.
    lines, floats = done["load of a list"], one["to float"]
    longer, _ = machine_code.least_walk(kernel, {**one, "load of a list": 2 * lines, "to float": floats + FOURS})
    whole, _ = machine_code.least_walk(kernel, {**one, "load of a list": lines, **SUMMING})
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
        for sm in ARCHITECTURES:
            code = machine_code.kernels(path_of("maxmin"), sm)
            for operation, most in INSTRUCTIONS_MAX.items():
                with self.subTest(operation, sm=sm):
                    kernel = code[f"cgx_maxmin4_{operation}"]
                    each = instructions(kernel, operation) * LANES / BUCKET
                    print(f"figure: {operation}/maxmin4/sm_{sm}: {each:.1f} instructions a value, {kernel.registers} registers, "
                          f"{kernel.count('generic load')} generic loads, {len(kernel.code)} instructions", flush=True)
                    self.assertGreater(kernel.count("load"), 0)  # these are loads
                    self.assertEqual(kernel.count("generic load"), 0)
                    self.assertTrue(0 < kernel.registers <= REGISTERS_MAX[operation])
                    self.assertLessEqual(each, most)


if __name__ == "__main__":
    unittest.main()
