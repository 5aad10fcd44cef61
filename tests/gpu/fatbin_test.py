"""The machine code that nvcc makes has the kernels of kernels.def, all of them and no others, and exact arithmetic."""

import os
import re
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
FATBINS = os.path.join(os.environ.get("CGX_BUILD_DIR", "build/release"), "lib")
KERNEL = re.compile(r"^X\((\w+), (\w+), ", re.MULTILINE)
OPERATION = re.compile(r"^X\((\w+)", re.MULTILINE)
# What would give other bits than the scalar lane.
INEXACT = re.compile(rb"[^\n]*(?:\bfma\.|\.approx|\.ftz)[^\n]*")
DIVIDING = {"maxmin", "symmetric", "sign"}  # in fp32


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


@unittest.skipUnless(any(os.path.exists(path_of(family)) for family in stems()), "skipped: built without nvcc")
class Fatbins(unittest.TestCase):
    def test_they_have_the_kernels_of_the_list(self):
        for family, own in stems().items():
            with self.subTest(family):
                listed = {f"cgx_{stem}_{operation}" for stem in own for operation in rows("operations.def", OPERATION)}
                found = {name.decode() for name in re.findall(rb"\.visible \.entry (\w+)\(", text_of(family))}
                self.assertEqual(found, listed | {"cgx_norms_encode", "cgx_norms_reduce"})

    def test_they_neither_contract_nor_approximate_nor_flush(self):
        for family in stems():
            with self.subTest(family):
                text = text_of(family)
                self.assertEqual(INEXACT.findall(text), [])
                if family in DIVIDING:
                    self.assertIn(b"div.rn.f32", text)  # the text is the kernels'


if __name__ == "__main__":
    unittest.main()
