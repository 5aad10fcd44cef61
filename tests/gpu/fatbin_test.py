"""The machine code that nvcc makes has the kernels of kernels.def, all of them and no others, and exact arithmetic."""

import os
import re
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
FATBIN = os.path.join(os.environ.get("CGX_BUILD_DIR", "build/release"), "lib", "maxmin.fatbin")
ROW = re.compile(r"^X\((\w+)", re.MULTILINE)
# What would give other bits than the scalar lane.
INEXACT = re.compile(rb"[^\n]*(?:\bfma\.|\.approx|\.ftz)[^\n]*")


def rows(name):
    with open(os.path.join(ROOT, "kernels", "cuda", name), encoding="utf-8") as file:
        return ROW.findall(file.read())


@unittest.skipUnless(os.path.exists(FATBIN), "skipped: built without nvcc")
class Fatbin(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with open(FATBIN, "rb") as file:
            code = file.read()
        begin = code.index(b".version")
        cls.text = code[begin:code.index(b"\0", begin)]

    def test_it_has_the_kernels_of_the_list(self):
        listed = {f"cgx_{stem}_{operation}" for stem in rows("kernels.def") for operation in rows("operations.def")}
        found = {name.decode() for name in re.findall(rb"\.visible \.entry (\w+)\(", self.text)}
        self.assertEqual(found, listed | {"cgx_norms_encode", "cgx_norms_reduce"})

    def test_it_neither_contracts_nor_approximates_nor_flushes(self):
        self.assertEqual(INEXACT.findall(self.text), [])
        self.assertIn(b"div.rn.f32", self.text)  # the text is the kernels'


if __name__ == "__main__":
    unittest.main()
